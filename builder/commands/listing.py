"""The list, show, matrix and report commands: the images, the contents of an image, and the evidence for models."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import files
from builder.base.errors import BuilderError, ConflictError, ImageStateError, UsageError
from builder.base.values import dataclass, field, replace
from builder.base.words import did_you_mean, parse_version
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import status

if TYPE_CHECKING:
    from builder.base.hub_cache import CachedModel
    from builder.base.project import Project
    from builder.evidence.run_record import Kind
    from builder.evidence.standing import ImageEvidence, Matrix
    from builder.lab.report import Part
    from builder.lab.upgrade_journal import InterruptedUpgrade
    from builder.numbers.adopted import AdoptedContents
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import Step


def list_images(workspace: Workspace, target: str | None) -> tuple[Lock, status.ImageOverview]:
    """Reads the lock, limited to ``target``, and the state of its images in the engine. Raises UsageError if ``target``
    names nothing, LockError if images.lock is lost."""
    if target is None:
        lock = lock_file.read_lock(workspace.project.lock)
    else:
        lock = _only(workspace.project, lock_file.read_project_lock(workspace.project), target)
    return lock, status.status_overview(workspace, lock)


def lost_lock(workspace: Workspace) -> str:
    """Explains how to restore a lost images.lock. Empty if the file exists, or if nothing was built yet."""
    from builder.lock.checking import TAKE_BACK

    return f"images.lock is {lock_file.MESSAGE}: {TAKE_BACK}" if lock_file.is_lost(workspace.project) else ""


def evidence(
    workspace: Workspace, target: str | None, lock: Lock, overview: status.ImageOverview
) -> dict[ImageName, ImageEvidence]:
    """The evidence of each listed image; empty if the project has none."""
    project = workspace.project
    if target is not None and project.evidence.is_dir():
        lock = lock_file.read_project_lock(project)  # the target's lock lacks earlier pairings of other models
    return present_evidence(project, lock, [row.name for row in overview.rows], workspace.environment)


def present_evidence(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str]
) -> dict[ImageName, ImageEvidence]:
    """The evidence of these images. A run is stale if its probe, profile or text changed."""
    if not project.evidence.is_dir():
        return {}
    from builder.evidence import standing

    return standing.evidence_overview(project, lock, names, environ, partial(present_set, project))


def run_documents(evidence: ImageEvidence) -> list[dict[str, Any]]:
    """The documents of all runs of an image, each with the name of its file."""
    from builder.evidence.run_record import evidence_document

    return [{"file": run.file, **evidence_document(run)} for run in evidence.runs]


def present_set(project: Project, kind: Kind, name: str) -> str | None:
    """The present digest of a probe, a profile or the texts of comparisons. None if the file is missing or invalid, and
    for proofs: their answers are compared one by one."""
    if kind == "prove":
        return None
    from builder.definitions import configuration
    from builder.lab.measure import bench, image_likeness, probes

    try:
        if kind == "bench":
            return bench.bench_digest(configuration.load_configuration(project).profile(name))
        if kind == "same":
            return image_likeness.same_digest()
        return probes.tools_long_digest() if name == probes.NAME else configuration.load_probe(project, name).digest
    except BuilderError:
        return None


def interrupted_upgrades(workspace: Workspace, lock: Lock) -> tuple[InterruptedUpgrade, ...]:
    """The interrupted upgrades of models and images in ``lock``, and upgrades whose journal cannot be read."""
    if not workspace.project.upgrading.is_dir():
        return ()
    from builder.lab import upgrade_journal

    upgrades = []
    for each in upgrade_journal.interrupted_upgrades(workspace.project, lock):
        repository = each.upgrade.before.rpartition(":")[0] if each.upgrade else ""
        if each.model in lock.models or repository in {*lock.images, ""}:
            upgrades.append(each)
    return tuple(upgrades)


def cached_models(workspace: Workspace, lock: Lock) -> dict[str, CachedModel]:
    """The cached part of each model of ``lock``, by name, from the Hugging Face cache of this machine."""
    from builder.serving import model_weights

    return model_weights.cached_models(workspace.environment, lock)


def _only(project: Project, lock: Lock, text: str) -> Lock:
    if text in lock.models:
        return _of_model(lock, text)
    repository = status.named_repository(project, lock, text)
    if repository is None:
        from builder.definitions import build_target
        from builder.serving import selection

        if recipe := build_target.find_target(project, text, lock.models).recipe:
            repository = recipe.repository
            with suppress(ImageStateError):  # no image serves the recipe yet
                repository = selection.for_recipe(lock, recipe).image.repository
    if repository is None:
        raise UsageError(f"`{text}` is not a model, repository, definition or recipe")
    return replace(
        lock,
        images={name: record for name, record in lock.images.items() if name == repository},
        models={name: model for name, model in lock.models.items() if model.pairing.image.repository == repository},
    )


def _of_model(lock: Lock, name: str) -> Lock:
    """The lock with one model and its present and earlier images."""
    model = lock.models[name]
    paired = {model.pairing.image, *(pairing.image for pairing in model.previous)}
    images = {}
    for repository, record in lock.images.items():
        numbers = {n: image for n, image in record.numbers.items() if ImageName(repository, n) in paired}
        if numbers:
            images[repository] = replace(record, numbers=numbers)
    return replace(lock, images=images, models={name: model})


# The show command: the contents of one image, from images.lock and its build directory.


@dataclass(frozen=True)
class ShownImage:
    """An image. ``steps`` is empty if the build directory is gone, or if the image was adopted. ``adopted`` are the
    contents of an adopted image; None if they are gone. ``args`` are the arguments of its templates. ``uses_gpu`` is
    true if vLLM in the image gets the machine's GPUs. ``evidence`` is None if no image of the project has evidence.
    ``warm_from`` is the number whose compile caches the next start here uses; None for a cold start."""

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
        """True if no FlashInfer kernels are ready, so that the first start compiles them. False if the contents of the
        image are unknown."""
        packages = self.packages
        built = any(step.name.rpartition(": ")[2] == "flashinfer" and "commit" in step.takes for step in self.steps)
        if not built and "flashinfer-python" not in packages:
            return False
        # Since 0.7, this package only depends on separate packages with the kernels of each architecture.
        whole = parse_version(packages.get("flashinfer-jit-cache", "0.7"))
        if any(name.startswith("flashinfer-jit-cache-sm") for name in packages) or (whole and whole.release < (0, 7)):
            return False
        return not (built and self.args.get("flashinfer_jit_cache") is True)

    @property
    def packages(self) -> dict[str, str]:
        """The version of each Python package, by name; empty if the packages are unknown."""
        from builder.numbers import build_directory

        return dict(self.adopted.packages) if self.adopted else build_directory.packages(self.steps)


def show_image(workspace: Workspace, text: str) -> ShownImage:
    """Reads all facts about the image called ``text``. Raises UsageError if there is no such image."""
    from builder.definitions import image
    from builder.numbers import adopted, build_directory
    from builder.serving import compile_caches

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
        evidence=evidence(workspace, None, lock, overview).get(name),
        warm_from=compile_caches.warm_from(project, workspace.environment, name),
    )


# The matrix and report commands: the evidence of a project as a table, and the state of the project as one page.


def matrix_of(workspace: Workspace, models: Sequence[str] = (), images: Sequence[str] = ()) -> Matrix:
    """Reads the table from the files, for all numbers and models, or only for ``images`` (numbers, repositories or
    definitions) and ``models`` (or their recipes). Raises UsageError if a name is unknown, and LockError."""
    from builder.evidence import standing

    project = workspace.project
    lock = lock_file.read_project_lock(project)
    names = _images(workspace, lock, images)
    evidence = present_evidence(project, lock, names, workspace.environment)
    every = standing.models_of(lock, evidence.values())
    chosen = sorted({_model(workspace, text, every) for text in models}) if models else every
    return standing.build_matrix(names, chosen, evidence)


def _images(workspace: Workspace, lock: Lock, wanted: Sequence[str]) -> tuple[ImageName, ...]:
    """The numbers, sorted by repository; the newest of each repository first."""
    names = [name for name, _ in lock.numbered()]
    chosen = set() if wanted else {*names}
    for text in wanted:
        repository = status.named_repository(workspace.project, lock, text)
        if repository in lock.images:
            chosen |= {name for name in names if name.repository == repository}
        else:
            chosen.add(status.named_number(workspace.project, lock, text)[0])
    return tuple(name for name in names if name in chosen)


def _model(workspace: Workspace, text: str, every: Sequence[str]) -> str:
    """The model called ``text``, or the model of the recipe called ``text``."""
    from builder.definitions import recipe

    if text in every:
        return text
    path = recipe.find_recipe(workspace.project, text)
    model = recipe.load_recipe(workspace.project, path).model if path else None
    if model:
        return model
    hint = did_you_mean(text, every) or f"known names: {', '.join(every) or 'none yet'}"
    raise UsageError(f"`{text}` is neither a recipe nor a model that was paired with an image or served", hint=hint)


def write_report(workspace: Workspace, output: Path, *, publish: bool = False, full: bool = False) -> tuple[Path, ...]:
    """Writes the page to the file ``output``. With ``publish``, ``output`` is a folder, which gets index.html and
    report.json. Only a ``full`` page shows paths, machine names and notes. Returns the files, the page first. Raises
    LockError if images.lock is lost or unreadable, ConflictError if ``output`` is a folder but must be a file, or the
    reverse."""
    from builder.lab import report

    if output.is_dir() and not publish:
        raise ConflictError(f"{output} is a folder", hint="name a file, such as report.html, or add `--publish`")
    if publish and output.exists() and not output.is_dir():
        raise ConflictError(f"{output} is a file", hint="`--publish` requires a folder")
    project, environ = workspace.project, workspace.environment
    page = report.collect_page(project, environ, workspace.report, present_evidence, full=full)
    texts = {output / "index.html" if publish else output: report.render_page(page)}
    if publish:
        texts[output / "report.json"] = page_as_json(page)
    for path, text in texts.items():
        files.make_folder(path.parent)
        files.write_atomically(path, text.encode(errors="replace"), mode=0o644)
    return tuple(texts)


def page_as_json(page: Part) -> str:
    content = {"schema_version": 1, **vars(page)}
    return json.dumps(content, default=vars, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
