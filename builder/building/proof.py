"""The proof of a build: the behaviour of an image that is about to get a number, where it may be other than before."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from builder.errors import BuildFailedError, FileProblemsError, ImageContentsError, UsageError
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.building.baked_image import BakedImage
    from builder.building.request import BuildRequest
    from builder.definitions.mods.mod import Mod
    from builder.evidence.proof import Proof
    from builder.lock.model import NumberedImage
    from builder.plan.model import Step
    from builder.workspace import Workspace

# What a mod changes templates and parsers by; any script may.
_OF_BEHAVIOUR = re.compile(r"jinja|template|parser|reasoning|tokenizer", re.IGNORECASE)


def of_build(
    workspace: Workspace, baked: BakedImage, record: NumberedImage, request: BuildRequest
) -> tuple[Proof, ...]:
    """The proofs of a verified image that has no number yet; none where nobody counts on them (no number before was
    proven, and nothing requires it), nothing can differ, or it cannot be run here. A build does not end because its
    image cannot be proven: that is told."""
    planned = baked.planned
    plan, recipe = planned.plan, planned.recipe
    if not request.prove or request.candidate or recipe is None or recipe.model is None or "vllm" not in plan.versions:
        return ()
    if plan.definition.platform != baked.host_platform:
        return ()
    from builder.building import held_back
    from builder.evidence.record import Subject
    from builder.proving import prove, reference

    find = functools.partial(reference.find, workspace.project, planned.lock, plan.repository, None)
    is_required = recipe.model in held_back.models(workspace.project, planned)
    is_other = may_differ(planned.comparison.before, plan.steps, plan.mods)
    if not is_required and not (is_other and find(recipe.model)):
        return ()
    pairing = prove.ProvedPairing(recipe.model, planned.revisions.get(recipe.model) or recipe.revision, recipe)
    subject = Subject(plan.repository, record.fingerprint)
    try:
        return prove.prove(workspace, baked.work.tag, subject, (pairing,), find, baked.work.labels)
    except (BuildFailedError, FileProblemsError, ImageContentsError, UsageError) as error:
        workspace.report(Message(f"not proven: {error.message}"))
        return ()


def may_differ(before: Sequence[Step], steps: Sequence[Step], mods: Sequence[Mod]) -> bool:
    """True where an image of ``steps`` may behave otherwise than that of the steps ``before``: vLLM or anything below
    is another, or a mod that is new, other or gone has to do with templates or parsers."""
    earlier = {step.name: step for step in before}
    names = {step.name for step in steps}
    others = [step.name for step in steps if earlier.get(step.name) != step]
    others += [name for name in earlier if name not in names]
    by_step = {f"mod {mod.name}": mod for mod in mods}
    return not before or any(_is_of_behaviour(by_step.get(name)) for name in others)


def _is_of_behaviour(mod: Mod | None) -> bool:
    """True for all that is no mod of this build, and for a mod that has to do with templates or parsers."""
    if mod is None:
        return True
    return any(_OF_BEHAVIOUR.search(f"{file.path}\n{file.content.decode('utf-8', 'replace')}") for file in mod.files)
