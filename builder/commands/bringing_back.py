"""A numbered image that this engine lacks, brought back: pulled, copied from a node that has it, or built again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.definitions import configuration
from builder.distribution import retrieval
from builder.engine import images
from builder.errors import BuilderError, ImageStateError
from builder.events import Message
from builder.numbered import adopted

if TYPE_CHECKING:
    from builder.lock.model import ImageName, Lock
    from builder.workspace import Workspace

_NODE_SECONDS = 10.0


def bring_back(workspace: Workspace, lock: Lock, name: ImageName) -> Literal["here", "pulled", "copied", "rebuilt"]:
    """Makes sure that the engine has the image that ``lock`` records for a number; returns how it came here.

    Raises ImageStateError where another image has its tag, where there is no way to it, and where a rebuild has other
    content; TransferError and BuildFailedError where a way fails.
    """
    recorded = lock.images[name.repository].numbers[name.number]
    if retrieval.is_present(workspace.engine, lock, name):
        return "here"
    if images.inspect(workspace.engine, str(name)) is not None:
        raise ImageStateError(
            f"{name} is not the image that images.lock records: its tag was moved in this engine",
            hint="`builder verify` tells more; `builder rollback` goes to the one before",
        )
    if recorded.digest and (address := configuration.load(workspace.project).registry):
        retrieval.pull(workspace, address, lock, name)
        return "pulled"
    if node := _node_with(workspace, lock, name):
        from builder.commands import copy

        copy.fetch(workspace, lock, name, node)
        return "copied"
    if recorded.adopted:
        raise ImageStateError(f"{name} is missing from this engine", hint=adopted.way_back(name, recorded))
    from builder.commands import rebuild

    workspace.report(Message(f"{name} is missing from this engine"))
    rebuilt = rebuild.run(workspace, str(name))
    if not rebuilt.same:
        raise ImageStateError(
            f"{name} is missing from this engine, and building it again made other content, kept as {rebuilt.kept}",
            hint=f"`builder adopt {rebuilt.kept}` gives that image a number of its own; `builder rebuild {name}` says"
            " what differs",
        )
    return "rebuilt"


def _node_with(workspace: Workspace, lock: Lock, name: ImageName) -> str:
    """The first node of builder.yaml that has the image; empty where none has. One that does not answer is passed
    over."""
    from builder.distribution import machines

    engines = machines.engines(workspace.project, workspace.environment, ())
    if not engines:
        return ""
    answers = machines.ask(
        engines, lambda _, engine: retrieval.is_present(engine, lock, name), _NODE_SECONDS, workspace.report
    )
    return next((node for node, has in answers.items() if not isinstance(has, BuilderError) and has), "")
