"""The up command brings up a model: its image, its weights and its server. Parts that are done are not repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from builder.base import hub_cache, words
from builder.base.errors import BuilderError, ImageStateError, SourceError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building.request import BuildRequest, Built
from builder.commands import build, rollback, transfers
from builder.commands import servers as serving
from builder.definitions import command, configuration, mod
from builder.engine import client, images, machine
from builder.lock import lock_file
from builder.numbers import named_registry
from builder.serving.selection import SelectedImage, ServedImage, UnnumberedImage, for_recipe, select_any

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import ServeRequest


PartName = Literal["image", "nodes", "model", "server"]
PartOutcome = Literal["here", "built", "pulled", "rebuilt", "copied", "downloaded", "left", "started"]
_SHOWN = {"here": "is here already", "rebuilt": "built again, unchanged", "left": "left unchanged"}


@dataclass(frozen=True)
class UpPart:
    """A finished part: its subject, such as an image, the outcome, the time in seconds, and the reason."""

    part: PartName
    subject: str
    outcome: PartOutcome
    note: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        took = "" if self.outcome in {"here", "left"} else f" in {words.duration_text(self.seconds)}"
        note = f": {self.note}" if self.note and self.outcome == "left" else ""
        return f"{self.part}: {self.subject} {_SHOWN.get(self.outcome, self.outcome)}{took}{note}"


def ensure_image(workspace: Workspace, selection: ServedImage) -> UpPart:
    """Makes sure that the engine has the image. A missing number is brought back. Without a number, a definition's
    image is built, and any other image is pulled."""
    name = selection.name
    outcome: PartOutcome = "here"
    if isinstance(selection, SelectedImage):
        outcome = rollback.bring_back(workspace, lock_file.read_project_lock(workspace.project), selection.image)
    elif selection.definition:
        results = [*build.build_targets(workspace, BuildRequest((selection.recipe.file,)))]
        outcome = "built" if any(isinstance(result, Built) for result in results) else "here"
        # Without its required evidence, a new number does not become current, so another number may serve.
        name = for_recipe(lock_file.read_project_lock(workspace.project), selection.recipe).name
    elif images.inspect_image(workspace.engine, name) is None:
        named_registry.pull_unnumbered(workspace, name)
        outcome = "pulled"
    return UpPart("image", name, outcome)


def ensure_on_nodes(workspace: Workspace, selection: ServedImage, nodes: Sequence[str]) -> UpPart:
    """Makes sure that the nodes have a numbered image. Raises the error of the first node that failed."""
    if isinstance(selection, UnnumberedImage):
        message = f"{selection.name} has no number, but only numbered images can be copied to nodes"
        hint = f"`builder adopt {selection.name}` gives it a number"
        raise ImageStateError(message, hint=hint)
    copied = transfers.copy_image(workspace, selection.name, nodes)
    for outcome in copied.outcomes.values():
        if isinstance(outcome, BuilderError):
            raise outcome
    was_there = all(outcome is None for outcome in copied.outcomes.values())
    return UpPart("nodes", ", ".join(copied.outcomes), "here" if was_there else "copied", selection.name)


def ensure_model(workspace: Workspace, recipe: Recipe, text: str, nodes: Sequence[str]) -> UpPart:
    """Downloads missing files of the model and its draft model. A folder is left unchanged. If the hub does not answer,
    a complete copy in the cache is left unchanged, too."""
    model = recipe.model or command.render_command(recipe, {}, ()).model or ""
    if not model or not hub_cache.is_id(model):
        return UpPart("model", model or recipe.name, "left", "it is not a model on Hugging Face")
    try:
        models = transfers.download_model(workspace, text, nodes=nodes)
    except SourceError as error:
        cached = hub_cache.find_model(workspace.environment, model)
        if nodes or cached is None or cached.incomplete:
            raise
        return UpPart("model", model, "left", f"the local copy is used: {error.message}")
    fetched = any(each.fetched for each in models)
    names = ", ".join(f"{each.model} at {each.commit[:7]}" for each in models)
    return UpPart("model", names, "downloaded" if fetched else "here")


@dataclass(frozen=True)
class UpResult:
    """A model that was brought up: its parts and its server."""

    parts: tuple[UpPart, ...]
    served: serving.ServeResult


def lacking_mods(workspace: Workspace, text: str) -> tuple[str, ...]:
    """The mods that a build of the image for ``text`` needs and the project lacks."""
    selection = select_any(workspace.project, lock_file.read_project_lock(workspace.project), text)
    if not isinstance(selection, UnnumberedImage) or selection.definition is None:
        return ()
    existing = mod.mod_names(workspace.project)
    return tuple(name for name in map(mod.name_of, selection.recipe.mods) if name not in existing)


def bring_up(workspace: Workspace, request: ServeRequest, *, detach: bool) -> UpResult:
    """Brings up a recipe or a model, and reports each part. After an error, the same command continues."""
    lock = lock_file.read_project_lock(workspace.project)
    selection = select_any(workspace.project, lock, request.text)
    recipe = selection.recipe
    configured = configuration.load_configuration(workspace.project)
    nodes = tuple(request.nodes)
    if recipe.cluster_only and not nodes:
        nodes = tuple(node.name for node in configured.nodes)
        if not nodes:
            raise UsageError(f"{recipe.file} is for several nodes", hint="write them under `nodes:` in builder.yaml")
    parts: list[UpPart] = []

    def bring(part: Callable[[], UpPart]) -> None:
        began = time.monotonic()
        brought = part()
        parts.append(replace(brought, seconds=time.monotonic() - began))
        workspace.report(Message(str(parts[-1])))

    bring(lambda: ensure_image(workspace, selection))
    if nodes:
        now = select_any(workspace.project, lock_file.read_project_lock(workspace.project), request.text)
        bring(lambda: ensure_on_nodes(workspace, now, nodes))
    # Models are downloaded into this machine's cache, then copied to nodes on other machines.
    engines = [client.of_node(workspace.environment, name, configured.node(name).engine) for name in nodes]
    far = [name for name, engine in zip(nodes, engines, strict=True) if not machine.is_here(engine.host)]
    bring(lambda: ensure_model(workspace, recipe, request.text, far))
    served = serving.run_server(workspace, request, detach=detach)
    outcome: PartOutcome = "here" if served.already else "started"
    parts.append(UpPart("server", served.server.name, outcome, seconds=served.seconds or 0.0))
    workspace.report(Message(str(parts[-1])))
    return UpResult(tuple(parts), served)
