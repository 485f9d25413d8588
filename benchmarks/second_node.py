"""How a large image gets to other machines, beside `docker save | docker load`. Two further engines here are the nodes.

The cpu image is measured, once whole and then after changes of one mod file.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks import everyday
from benchmarks.measuring import RATIO, Row, Table, once
from benchmarks.stage import Stage
from builder.engine import images
from builder.project import Project
from tests import registries
from tests.registries import Front, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHOLE_RUNS = 2


@dataclass
class Numbers:
    """A project, the nodes that its images go to, and how many numbers it has."""

    stage: Stage
    project: Project
    ours: Node
    theirs: Node
    change: Callable[[], None]
    made: int = 1
    saved: list[int] = field(default_factory=list)

    @property
    def latest(self) -> str:
        """The image of the last number."""
        return f"{self.stage.prefix}-moved:{self.made}"

    def renew(self) -> None:
        """Builds the next number, with one mod file changed."""
        self.change()
        self.made += 1

    def copy(self) -> None:
        """Gives our node the last number."""
        self.stage.builder(self.project, "copy", self.latest, "ours")

    def save_and_load(self) -> None:
        """Gives their node the last number, and notes how many bytes went through the pipe."""
        docker = self.stage.docker
        save = [docker, "-H", self.stage.endpoint.host, "save", self.latest]
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


def tables(stage: Stage, runs: int) -> Iterator[Table]:
    """The first copy of a whole image, and copies after one mod file has changed."""
    with ExitStack() as stack:
        registry_image = stack.enter_context(registries.image(stage.endpoint))
        os.environ["BUILDER_REGISTRY_IMAGE"] = registry_image
        stack.callback(os.environ.pop, "BUILDER_REGISTRY_IMAGE")
        ours = stack.enter_context(registries.node("builder-bench1", "10.216.0.1/24"))
        theirs = stack.enter_context(registries.node("builder-bench2", "10.217.0.1/24"))
        project = stage.project("moved", stage.cpu())
        registries.configure(project, nodes={"ours": ours.host, "theirs": theirs.host})
        stage.builder(project, "build", "chat")
        numbers = Numbers(stage, project, ours, theirs, everyday.changing(stage, project))
        rows = [_whole(numbers), _again(numbers, runs), _changed(numbers, runs)]
        registry = stack.enter_context(registries.registry(stage.root / "registry"))
        rows.append(_pushed(numbers, stack.enter_context(registries.before(registry)), runs))
        mebibytes = sum(numbers.saved) / len(numbers.saved) / 2**20
        yield Table(
            "The second node",
            f"The nodes are two further engines on this machine. `docker save` sends {mebibytes:,.0f} MiB every time. "
            "`builder copy` starts a registry beside the engine for as long as it copies, unless builder.yaml names "
            "one, and reads back from the node what arrived.",
            rows,
        )


def _whole(numbers: Numbers) -> Row:
    """The image as no node has it. Each run begins with empty nodes."""
    copied, loaded = [], []
    for _ in range(WHOLE_RUNS):
        for node in (numbers.ours, numbers.theirs):
            for tag in images.tags(node.endpoint):
                images.remove(node.endpoint, tag)
        copied.append(once(numbers.copy))
        loaded.append(once(numbers.save_and_load))
    return Row("the whole image, `builder copy`", copied, "`docker save \\| docker load`", loaded, 1, RATIO)


def _again(numbers: Numbers, runs: int) -> Row:
    copied = [once(numbers.copy) for _ in range(runs)]
    return Row("the same again: there already", copied)


def _changed(numbers: Numbers, runs: int) -> Row:
    copied, loaded = [], []
    for _ in range(runs):
        numbers.renew()
        copied.append(once(numbers.copy))
        loaded.append(once(numbers.save_and_load))
    return Row("one mod file changed, `builder copy`", copied, "`docker save \\| docker load`", loaded, 0.05, RATIO)


def _pushed(numbers: Numbers, front: Front, runs: int) -> Row:
    """Through a registry of the person's, whose bytes to the node are counted."""
    registries.configure(numbers.project, registry=front.address, nodes={"ours": numbers.ours.host})
    numbers.stage.builder(numbers.project, "push", numbers.latest)
    copied, loaded, moved = [], [], []
    for _ in range(runs):
        numbers.renew()
        numbers.stage.builder(numbers.project, "push", numbers.latest)
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
        0.05,
        RATIO,
    )
