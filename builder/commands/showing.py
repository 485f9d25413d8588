"""The show command: the contents of one image, from images.lock and its build directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.commands import listing
from builder.definitions import image
from builder.lock import lock_file
from builder.numbers import adopted, build_directory, status
from builder.serving import compile_caches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.evidence.standing import ImageEvidence
    from builder.lock.model import ImageName
    from builder.numbers.adopted import AdoptedContents
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import Step


@dataclass(frozen=True)
class ShownImage:
    """An image. ``steps`` is empty where its build directory is gone, and of an adopted image; ``adopted`` are the
    contents of such a one, None where they are gone. ``args`` are what its templates were told, and ``uses_gpu`` is
    true of a vLLM that gets the machine's GPUs. ``evidence`` is None where the project has none of any image.
    ``warm_from`` is the number whose compile caches its next start here uses, None where that start is cold."""

    row: status.ImageRow
    steps: tuple[Step, ...]
    adopted: AdoptedContents | None
    directory: Path
    args: Mapping[str, object] = field(default_factory=dict)
    uses_gpu: bool = False
    evidence: ImageEvidence | None = None
    warm_from: ImageName | None = None

    @property
    def compiles_kernels(self) -> bool:
        """True if FlashInfer has none of its kernels ready, so that the first start compiles them. False as well where
        nothing is known of what is in the image."""
        packages = self.packages
        built = any(step.name.rpartition(": ")[2] == "flashinfer" and "commit" in step.takes for step in self.steps)
        if not built and "flashinfer-python" not in packages:
            return False
        if any(name.startswith("flashinfer-jit-cache") for name in packages):
            return False
        return not (built and self.args.get("flashinfer_jit_cache") is True)

    @property
    def packages(self) -> dict[str, str]:
        """The version of each Python package, by name; empty where they are not known."""
        return dict(self.adopted.packages) if self.adopted else build_directory.packages(self.steps)


def show_image(workspace: Workspace, text: str) -> ShownImage:
    """Reads what is known of the image called ``text``. Raises UsageError where there is no such image."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    name, _ = status.named_number(project, lock, text)
    overview = status.status_overview(workspace, lock.only(name))
    row = overview.rows[0]
    directory = project.build_directory(name.repository, name.number)
    args = build_directory.read_metadata(directory).get("build_args")
    serves = "vllm" in row.image.versions
    return ShownImage(
        row,
        steps=build_directory.read_if_possible(directory) or (),
        adopted=adopted.read_adopted(directory),
        directory=directory,
        args=args if isinstance(args, dict) else {},
        uses_gpu=serves and image.serve_settings(project, row.image.definition).gpus != "none",
        evidence=listing.evidence(workspace, None, lock, overview).get(name),
        warm_from=compile_caches.warm_from(project, workspace.environment, name),
    )
