"""The mod that takes a culprit back, tried: baked onto the image that fails, and judged as the candidates were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.bisecting import candidate, trials
from builder.bisecting.search import TryCandidate
from builder.bisecting.trials import Tally
from builder.building import bake_run, work_folder
from builder.building.bake_run import BakeJob
from builder.commands.bisect_parts import judging, making
from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.engine import images
from builder.errors import BuildFailedError, FileProblemsError, UsageError
from builder.events import Message
from builder.lock import reading
from builder.lock.model import ImageName
from builder.lock.pins import BasePin, Pins
from builder.plan import make
from builder.plan.make import ImageInputs
from builder.project import Project

if TYPE_CHECKING:
    from builder.bisecting.session import Bisection
    from builder.bisecting.trials import Word
    from builder.commands.bisect_parts.reverting import RevertingMod
    from builder.workspace import Workspace

_TEMPLATE = """\
{% import "_parts/mods.j2" as parts_mods %}
FROM {{ base }} AS base
{{ parts_mods.bake(mods, workspace, "base") }}
"""


@dataclass(frozen=True)
class RevertTrial:
    """The outcome: ``word`` is the verdict, ``skip`` where it could not be tried; ``told`` says it in words."""

    word: Word
    told: str


def try_on(workspace: Workspace, bisection: Bisection, mod: RevertingMod) -> RevertTrial:
    """Tries the mod on the number that fails, in an image without a number."""
    name = ImageName(bisection.repository, bisection.numbers[-1])
    workspace.report(Message(f"trying the mod that takes it back, on {name}"))
    try:
        tag = _bake(workspace, name, mod)
    except (BuildFailedError, FileProblemsError, UsageError) as error:
        return RevertTrial("skip", f"not tried: an image of {name} with it does not build: {_first_line(error)}")
    tallies = trials.tallies(done.trial for done in bisection.done)
    ends = [candidate.of_number(number) for number in (bisection.numbers[0], bisection.numbers[-1])]
    noise = trials.noise(tallies, ends[0], ends[1])
    times = trials.lacking_of_end(Tally(), is_clean=noise.is_clean, single=bisection.judge.is_constant)
    judged = tuple(judging.trials(workspace, bisection, TryCandidate(ends[1], times), tag, ""))
    tally = trials.tallies(each.trial for each in judged).get(ends[1], Tally())
    note = judged[-1].trial.skipped or judged[-1].note if judged else ""
    return _outcome(noise.verdict(tally) or "unclear", tally, name, note)


def _outcome(word: Word, tally: Tally, name: ImageName, note: str) -> RevertTrial:
    because = f": {note}" if note else ""
    counts = f"passes {tally.passed} of {tally.tries} times"
    told = {
        "good": f"tried: an image of {name} with it {counts}",
        "bad": f"tried, and it is not enough: an image of {name} with it {counts}{because}",
        "unclear": f"tried without a clear verdict: an image of {name} with it {counts}",
        "skip": f"not tried: an image of {name} with it could not be told{because}",
    }
    return RevertTrial(word, told[word])


def _bake(workspace: Workspace, name: ImageName, mod: RevertingMod) -> str:
    """Bakes the mod onto a number; returns the tag of the image, which goes with those of the candidates."""
    project = workspace.project
    record = reading.of(project).image(name)
    if record is None or record.adopted:
        raise UsageError(f"{name} was built elsewhere")
    definition = replace(
        image.load(project, record.definition, record.platform),
        template=_TEMPLATE, base=str(name), parent=None, sources={}, python=None, mods=(), args={},
    )  # fmt: skip
    pins = Pins(base=BasePin(str(name), f"local:{record.fingerprint}"))
    files = {f"mods/{mod.name}/{path}": file for path, file in mod.files.items()}
    with work_folder.create(workspace, "bisect", files) as folder:
        loaded = mod_reading.load(Project(folder.directory), mod.name)
    plan = make.make(ImageInputs(definition, pins, {}, (loaded,)))
    tag = f"{making.repository(project)}:{mod.name}"
    with work_folder.create(workspace, "bisect", plan.files) as work:
        bake_run.bake(workspace, [BakeJob(work.directory, "bisect", plan.targets, work)])
        images.tag(workspace.engine, work.tag, tag)
    return tag


def _first_line(error: BuildFailedError | FileProblemsError | UsageError) -> str:
    return error.message.splitlines()[0]
