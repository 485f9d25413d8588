"""Compares copying a large image to other machines with `docker save | docker load`.

The nodes are two more engines on this machine. The whole cpu image is copied first, then changes of one mod file.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks import everyday
from benchmarks.measuring import RATIO, Row, Table, once
from benchmarks.sandbox import Sandbox
from builder.base.project import Project
from builder.engine import images
from tests import registries
from tests.registries import Front, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# One `docker save | docker load` takes half a minute.
MOST_RUNS, WHOLE_RUNS = 3, 2


@dataclass
class NumberedProject:
    """A project, the target nodes of its images, and the count of its numbers."""

    sandbox: Sandbox
    project: Project
    ours: Node
    theirs: Node
    change: Callable[[], None]
    made: int = 1
    saved: list[int] = field(default_factory=list)

    @property
    def latest(self) -> str:
        """The name of the latest number."""
        return f"{self.sandbox.prefix}-moved:{self.made}"

    def renew(self) -> None:
        """Changes one mod file and builds the next number."""
        self.change()
        self.made += 1

    def copy(self) -> None:
        """Copies the latest number to our node."""
        self.sandbox.builder(self.project, "copy", self.latest, "ours")

    def save_and_load(self) -> None:
        """Pipes the latest number to their node, and records the size in bytes."""
        docker = self.sandbox.docker
        save = [docker, "-H", self.sandbox.endpoint.host, "save", self.latest]
        load = [docker, "-H", self.theirs.host, "load", "--quiet"]
        with (
            subprocess.Popen(save, stdout=subprocess.PIPE) as saving,
            subprocess.Popen(load, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as loading,
        ):
            assert saving.stdout
            assert loading.stdin
            moved = 0
            while piece := saving.stdout.read(1 << 20):
                moved += loading.stdin.write(piece)
            loading.stdin.close()
        assert (saving.returncode, loading.returncode) == (0, 0)
        self.saved.append(moved)


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures the first copy of a whole image, and copies after one mod file has changed."""
    runs = min(runs, MOST_RUNS)
    with ExitStack() as stack:
        registry_image = stack.enter_context(registries.image(sandbox.endpoint))
        os.environ["BUILDER_REGISTRY_IMAGE"] = registry_image
        stack.callback(os.environ.pop, "BUILDER_REGISTRY_IMAGE")
        ours = stack.enter_context(registries.node("builder-bench1", "10.216.0.1/24"))
        theirs = stack.enter_context(registries.node("builder-bench2", "10.217.0.1/24"))
        project = sandbox.project("moved", sandbox.cpu())
        registries.configure(project, nodes={"ours": ours.host, "theirs": theirs.host})
        sandbox.builder(project, "build", "chat")
        numbers = NumberedProject(sandbox, project, ours, theirs, everyday.changing(sandbox, project))
        rows = [_whole(numbers), _again(numbers, runs), _changed(numbers, runs)]
        registry = stack.enter_context(registries.registry(sandbox.root / "registry"))
        rows.append(_pushed(numbers, stack.enter_context(registries.before(registry)), runs))
        mebibytes = sum(numbers.saved) / len(numbers.saved) / 2**20
        yield Table(
            "The second node",
            f"The nodes are two further engines on this machine. `docker save` sends {mebibytes:,.0f} MiB every time. "
            "`builder copy` uses a temporary registry unless builder.yaml names one, and verifies what arrived.\n\n"
            "The node unpacks a layer with one thread. For the whole image, that takes more than half of either "
            "command, so 0.5 times cannot be reached. For a changed file, half of the copy is the start and the end of "
            "the temporary registry and of the program.",
            rows,
        )


def _whole(numbers: NumberedProject) -> Row:
    """Measures copies to nodes without any part of the image: each run begins with empty nodes."""
    copied, loaded = [], []
    for _ in range(WHOLE_RUNS):
        for node in (numbers.ours, numbers.theirs):
            for tag in images.image_tags(node.endpoint):
                images.remove_image(node.endpoint, tag)
        copied.append(once(numbers.copy))
        loaded.append(once(numbers.save_and_load))
    return Row("the whole image, `builder copy`", copied, "`docker save \\| docker load`", loaded, 0.5, RATIO)


def _again(numbers: NumberedProject, runs: int) -> Row:
    copied = [once(numbers.copy) for _ in range(runs)]
    return Row("the same again: there already", copied)


def _changed(numbers: NumberedProject, runs: int) -> Row:
    copied, loaded = [], []
    for _ in range(runs):
        numbers.renew()
        copied.append(once(numbers.copy))
        loaded.append(once(numbers.save_and_load))
    return Row("one mod file changed, `builder copy`", copied, "`docker save \\| docker load`", loaded, 0.02, RATIO)


def _pushed(numbers: NumberedProject, front: Front, runs: int) -> Row:
    """Measures copies from the user's registry, and counts the bytes that the registry sends to the node."""
    registries.configure(numbers.project, registry=front.address, nodes={"ours": numbers.ours.host})
    numbers.sandbox.builder(numbers.project, "push", numbers.latest)
    copied, loaded, moved = [], [], []
    for _ in range(runs):
        numbers.renew()
        numbers.sandbox.builder(numbers.project, "push", numbers.latest)
        before = front.sent
        copied.append(once(numbers.copy))
        moved.append(front.sent - before)
        loaded.append(once(numbers.save_and_load))
    share = 100 * max(moved) / numbers.saved[-1]
    return Row(
        f"one mod file changed, `builder copy` from a registry that has it: at most {max(moved):,} bytes sent, "
        f"{share:.4f} % of `docker save`",
        copied,
        "`docker save \\| docker load`",
        loaded,
        0.02,
        RATIO,
    )
