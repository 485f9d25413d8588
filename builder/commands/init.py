"""The init and migrate commands make a project of a folder or of an existing checkout. Edited files stay unchanged."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as replaced
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, processes, words
from builder.base import project as projects
from builder.base.errors import BuilderError, ConflictError, Problem, UsageError
from builder.base.events import Diagnosis, ignore
from builder.base.values import dataclass
from builder.commands import keeping
from builder.commands.recipes import check_recipes
from builder.definitions import configuration, mod
from builder.definitions import recipe as recipes
from builder.definitions.fields import read_text
from builder.engine import client as endpoints
from builder.engine import machine
from builder.lock import lock_file
from builder.lock.model import Lock
from builder.moving import checkout, copies, machines, shipped
from builder.numbers import images_lock
from builder.numbers.workspace import Workspace, open_workspace
from builder.sources import foreign_files

if TYPE_CHECKING:
    from builder.moving.checkout import AdoptableImage, Checkout, SettingsPlan, UpstreamCommit
    from builder.moving.shipped import Contents, PlannedFile, Selection


PROC = Path("/proc")

_CHECKOUT = "spark-vllm-docker"


def machine_findings(project: projects.Project, environ: Mapping[str, str], proc: Path = PROC) -> Iterator[Diagnosis]:
    """Yields the parts of this machine that a project can use; each part is reported as soon as it is found."""
    yield _machine(machines.read_spark_facts(environ, proc), proc)
    try:
        workspace = open_workspace(project, environ, ignore)
    except BuilderError as error:
        yield Diagnosis("engine", "warning", error.message, error.hint)
        return
    engine = None
    try:
        engine = machine.require_supported(workspace.engine)
        text = f"Docker {engine.engine}, buildx {engine.buildx} at {workspace.engine.host}"
        yield Diagnosis("engine", "ok", text)
    except BuilderError as error:
        yield Diagnosis("engine", "warning", error.message, error.hint)
    # Checkouts are usually in the user's home folder or beside the project.
    places = (Path(environ.get("HOME") or "/"), project.root.parent)
    for folder in dict.fromkeys((place / _CHECKOUT).resolve() for place in places):
        with suppress(BuilderError, OSError):
            there = checkout.find_checkout(folder)
            parts = f"{words.counted(len(there.recipes), 'recipe')}, {words.counted(len(there.mods), 'mod')}"
            migrates = f"`builder migrate {words.shell_word(folder)}` migrates it"
            yield Diagnosis(_CHECKOUT, "ok", f"{folder}: {parts}", migrates)
    if engine:
        every = [recipe for _, recipe in recipes.readable_recipes(project)]
        with suppress(BuilderError):
            for image in checkout.adoptable(workspace, every):
                message = f"{image.tag} ({words.size_text(image.size)}) has no number"
                yield Diagnosis("images", "ok", message, f"`builder adopt {image.tag}` gives it a number")


def _machine(spark: machines.SparkFacts | None, proc: Path) -> Diagnosis:
    sizes = spark.sizes if spark else processes.sizes(processes.text(proc / processes.MEMORY))
    memory = f", {words.size_text(sizes['MemTotal'])} of memory" if sizes.get("MemTotal") else ""
    if spark is None:
        return Diagnosis("machine", "ok", f"not a DGX Spark: {platform.machine()}{memory}")
    if not spark.compute_capability:
        silence = f"nvidia-smi does not report its compute capability: {spark.silence}"
        return Diagnosis("machine", "warning", f"DGX Spark: GB10{memory}; {silence}", "`builder doctor` shows more")
    chip = f"GB10 (sm_{spark.compute_capability.replace('.', '')})"
    driver = f", driver {spark.machine.driver}" if spark.machine.driver else ""
    return Diagnosis("machine", "ok", f"DGX Spark: {chip}{driver}{memory}")


# The init command: makes a project from the files of this program. The folder `_LAST` marks a project, and comes last.

_LAST = "dockerfiles"


@dataclass(frozen=True)
class InitResult:
    """The new project. ``reason`` explains the choice of contents if the user did not choose them. ``first`` is the
    first recipe to try. ``kept`` are files that were left unchanged. ``git`` is true if a repository was created."""

    project: projects.Project
    selection: Selection
    first: str | None
    reason: str
    written: tuple[str, ...]
    kept: tuple[str, ...]
    git: bool


def init_project(
    folder: Path, contents: Contents | None, environ: Mapping[str, str], proc: Path = PROC, *, git: bool = False
) -> InitResult:
    """Makes a project in ``folder`` with these ``contents``, or with contents that suit this machine. ``git`` also
    makes a repository. A killed process leaves either no project or a complete one; the next run continues.

    Raises ConflictError if the folder is a project, is inside a project, or contains different files with these names;
    nothing is written. Raises UsageError if the folder cannot be a project, LockError if images.lock was lost."""
    root = _folder(folder, environ)
    contents, reason = (contents, "") if contents else suited(proc)
    selected = shipped.select(contents)
    project = projects.Project(root)
    planned = shipped.plan_shipped(project, selected.files, None)
    if conflicts := [each.path for each in planned if each.state == "edited"]:
        message = f"{root} already has different files with these names: nothing was written\n" + "\n".join(conflicts)
        raise ConflictError(message, hint="move them away, or name another folder")
    last = [each for each in planned if each.path.startswith(f"{_LAST}/")]
    has_lock = project.lock.exists()
    lock_file.read_project_lock(project)  # reports a damaged or lost lock before anything is written
    files.make_folder(root)
    shipped.write_shipped(project, [each for each in planned if each.state != "same" and each not in last])
    staged = project.state / "new-files"
    shutil.rmtree(staged, ignore_errors=True)
    if not has_lock:
        with lock_file.writing(project.lock, root=staged) as writer:
            writer.commit(selected.pins)
    digests = {each.path: words.sha256_of(each.after) for each in planned if each.path not in shipped.LINES}
    shipped.write_shipped_record(project, shipped.InitRecord(str(shipped.of_this_program()), contents, digests))
    _put_last(project, staged, last)
    return InitResult(
        project=project,
        selection=selected,
        first=_first(selected, proc),
        reason=reason,
        written=(*(each.path for each in planned if each.state != "same"), *(() if has_lock else (project.lock.name,))),
        kept=(project.lock.name,) if has_lock else (),
        git=git and foreign_files.begin(root),
    )


def suited(proc: Path) -> tuple[Contents, str]:
    if machines.is_spark(proc):
        return "spark", "This is a DGX Spark, so the definitions for a Spark were added"
    if any(proc.glob(processes.GPUS)):
        return "all", "This machine has an NVIDIA GPU, so all definitions were added"
    return "cpu", "No NVIDIA GPU found, so only the CPU definitions were added"


def _first(selected: Selection, proc: Path) -> str | None:
    """The recipe whose image is the fastest to build, if possible among the recipes that this machine can serve."""
    if suited(proc)[0] == "cpu" and selected.contents == "all":
        without_gpu = shipped.select("cpu").recipes
        return next((file for file in selected.recipes if file in without_gpu), None)
    return next(iter(selected.recipes), None)


def _folder(folder: Path, environ: Mapping[str, str]) -> Path:
    """The folder to make a project of. Raises UsageError for a file, for / and for the home folder, and for a path that
    is not text. Raises ConflictError for a project and for a folder inside one."""
    root = folder.expanduser().resolve()
    if root.exists() and not root.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder; it need not exist")
    if root in {Path(root.anchor), Path(environ.get("HOME") or "/").resolve()}:
        hint = "name a new or empty folder: `builder init FOLDER`"
        raise UsageError(f"{root} cannot be a project, because it contains all your other files", hint=hint)
    projects.require_text(root)
    try:
        around = projects.find_project(root)
    except UsageError:
        return root
    if around.root == root:
        hint = "`builder init --update` updates its files to this release"
        raise ConflictError(f"{root} is already a project: nothing was written", hint=hint)
    message = f"{root} is inside the project {around.root}: nothing was written"
    raise ConflictError(message, hint="name a folder outside that project")


def _put_last(project: projects.Project, staged: Path, planned: Sequence[PlannedFile]) -> None:
    """Writes the folder that marks a project to a temporary place, then moves it into place in one step."""
    for each in planned:
        path = staged / each.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each.after)
        path.chmod(0o755 if each.file.executable else 0o644)
    files.put_folder_in_place(staged / _LAST, project.dockerfiles)


# The ``init --update`` command: brings newer files of this release into a project.


@dataclass(frozen=True)
class InitUpdate:
    """The files that a project would get, the ``pins`` of definitions without pins here, and the record of the last
    update. ``before`` is the recorded release of the project's files; empty if there is none."""

    project: projects.Project
    contents: Contents
    files: tuple[PlannedFile, ...]
    pins: Lock
    record: shipped.InitRecord | None
    before: str
    now: str

    @property
    def writable(self) -> tuple[PlannedFile, ...]:
        """The files that can be written without losing anything."""
        return tuple(each for each in self.files if each.state in {"new", "newer"})

    @property
    def edited(self) -> tuple[PlannedFile, ...]:
        """The files that were edited here and differ from this release."""
        return tuple(each for each in self.files if each.state == "edited")


def plan_update(project: projects.Project, contents: Contents | None) -> InitUpdate:
    """Compares the project with the files of this release, for ``contents`` or for the project's recorded contents.
    Writes nothing. Raises FileProblemsError if the record is damaged."""
    recorded = shipped.read_shipped_record(project)
    wanted = contents or (recorded.contents if recorded else "all")
    selected = shipped.select(wanted)
    files = shipped.plan_shipped(project, selected.files, recorded)
    now = str(shipped.of_this_program())
    pinned = lock_file.read_project_lock(project).pins
    lacking = {name: pins for name, pins in selected.pins.pins.items() if pins and not pinned.get(name)}
    return InitUpdate(project, wanted, files, Lock(lacking), recorded, recorded.release if recorded else "", now)


def update_project(update: InitUpdate, environ: Mapping[str, str], *, force: bool = False) -> tuple[str, ...]:
    """Writes the files that lose nothing; with ``force``, also replaces edited files. Returns the written files. The
    next update completes an update that was killed. Pins do not move, but a definition without pins here gets the
    shipped pins. Raises ConflictError if a file changed after it was shown, and OSError."""
    chosen = [*update.writable, *(update.edited if force else ())]
    now = shipped.plan_shipped(update.project, {each.path: each.file for each in chosen}, update.record)
    changed = [each.path for each, shown in zip(now, chosen, strict=True) if each.before != shown.before]
    if changed:
        message = f"{', '.join(changed)} changed after the differences were shown: nothing was written"
        raise ConflictError(message, hint="run this command again: it shows the new differences first")
    shipped.write_shipped(update.project, chosen)
    written = [each.path for each in chosen]
    digests = dict(update.record.files) if update.record else {}
    for each in update.files:
        if each.path not in shipped.LINES and (each.path in written or each.state == "same"):
            digests[each.path] = words.sha256_of(each.after)
    if update.pins.pins:
        with images_lock.transaction(open_workspace(update.project, environ, ignore)) as transaction:
            lock = transaction.lock
            lacking = {name: pins for name, pins in update.pins.pins.items() if not lock.pins.get(name)}
            transaction.commit(replaced(lock, pins={**lock.pins, **lacking}))
        written.append(update.project.lock.name)
    result = shipped.InitRecord(update.now, update.contents, digests)
    if result != update.record:
        shipped.write_shipped_record(update.project, result)
    return tuple(written)


# The ``migrate`` command: takes over a checkout of spark-vllm-docker with its recipes, mods, settings and images.
# Existing files of the project stay, except with ``--replace``, or if they came with this program and are unedited.


@dataclass(frozen=True)
class Migration:
    """The plan of a migration. ``problems`` has the problems of recipes, by name. ``run_time`` has the reasons why mods
    cannot be baked. ``missing`` are mods that recipes name but that neither the checkout nor the project has, each with
    a remedy if one is known. ``settings`` is None if there is no ``.env``."""

    checkout: Checkout
    upstream: UpstreamCommit | None
    parts: tuple[copies.PlannedCopy, ...]
    problems: Mapping[str, tuple[Problem, ...]]
    run_time: Mapping[str, str]
    missing: Mapping[str, str]
    settings: SettingsPlan | None
    images: tuple[AdoptableImage, ...]
    notes: tuple[str, ...]
    replace: bool

    @property
    def wanted(self) -> tuple[copies.PlannedCopy, ...]:
        """The parts to write. Mods come before recipes, because recipes name mods."""
        states = ("new", "unrecorded", "shipped", *(["differs"] if self.replace else []))
        return tuple(part for part in self.parts if part.state in states)

    @property
    def changes_something(self) -> bool:
        return bool(self.wanted or self.images or (self.settings and self.settings.changed))


@dataclass(frozen=True)
class MigrationResult:
    """The written parts, the images that got numbers, and the error of each part that failed."""

    written: tuple[copies.PlannedCopy, ...]
    settings_written: bool
    adopted: tuple[keeping.AdoptedImage, ...]
    errors: tuple[tuple[str, BuilderError], ...]


def plan_migration(
    workspace: Workspace,
    path: Path,
    recipe_names: Sequence[str] = (),
    *,
    env_file: Path | None = None,
    replace: bool = False,
    with_images: bool = True,
) -> Migration:
    """Plans to take over the checkout at ``path``: the named recipes, or all recipes, with their mods. Writes nothing.
    ``env_file`` is read instead of the checkout's ``.env``. ``replace`` replaces files that differ here. Without
    ``with_images``, no image gets a number. Raises UsageError if the folder is not a checkout or lacks a recipe."""
    project, there = workspace.project, checkout.find_checkout(path)
    if there.root == project.root.resolve():
        raise UsageError(f"{path} is this project itself", hint="name the spark-vllm-docker checkout to migrate")
    upstream = checkout.find_upstream_commit(there.root)
    names = {name: there.recipes[name] for name in checkout.choose_checkout(there, recipe_names)}
    named = dict.fromkeys(entry for path in names.values() for entry in checkout.mods_named(path))
    entries = {entry: place for entry in named if (place := checkout.mod_at(there, entry))}
    own_names = {entry: path.name.removesuffix(".zip") for entry, path in entries.items()}
    every = {**({} if recipe_names else there.mods), **{own_names[entry]: path for entry, path in entries.items()}}
    present = {*every, *mod.mod_names(project), *entries}
    mods = [checkout.plan_part(project, there, "mod", name, path, upstream) for name, path in sorted(every.items())]
    recipes = [checkout.plan_part(project, there, "recipe", name, path, upstream) for name, path in names.items()]
    checked = {
        part.name: check_recipes(project, [str(names[part.name])])[0] for part in recipes if part.state != "unfit"
    }
    notes = [
        f"a recipe names the mod {entry}, which is called mods/{name} here: write mods/{name} in the recipe"
        for entry, name in own_names.items()
        if name != mod.name_of(entry)
    ]
    planned_settings = _plan_settings(workspace, env_file or there.root / checkout.ENV_FILE, notes, replace=replace)
    readable = [each.recipe for each in checked.values() if each.recipe]
    adoptable: tuple[AdoptableImage, ...] = ()
    try:
        adoptable = checkout.adoptable(workspace, readable) if with_images else ()
    except BuilderError as error:
        notes.append(f"the images cannot be listed: {error.message}")
    return Migration(
        checkout=there,
        upstream=upstream,
        parts=(*mods, *recipes),
        problems={name: each.problems for name, each in checked.items() if each.problems},
        run_time=dict(_run_time(there, mods)),
        missing={name: mod.remedy(project, name) for name in map(mod.name_of, named) if name not in present},
        settings=planned_settings,
        images=adoptable,
        notes=tuple(notes),
        replace=replace,
    )


def _plan_settings(workspace: Workspace, path: Path, notes: list[str], *, replace: bool) -> SettingsPlan | None:
    """Plans the settings of an ``.env`` file, if it exists, and adds its problems to ``notes``."""
    if not path.exists():
        return None
    env = checkout.parse_env_file(read_text(path, str(path)), str(path))
    here = workspace.engine.host if machine.is_here(workspace.engine.host) else endpoints.DEFAULT_HOST
    planned = checkout.plan_settings(workspace.project, env, here, replace=replace)
    notes += [f"no settings are migrated: {planned.error}"] if planned.error else []
    notes += map(str, env.problems)
    return planned


def migrate(workspace: Workspace, migration: Migration) -> MigrationResult:
    """Carries out the plan. After an error in one part, the other parts continue."""
    written: list[copies.PlannedCopy] = []
    adopted: list[keeping.AdoptedImage] = []
    errors: list[tuple[str, BuilderError]] = []
    settings_written = False

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        try:
            yield
        except BuilderError as error:
            errors.append((what, error))

    for part in migration.wanted:
        with noted(f"{part.kind} {part.name}"):
            copies.put_in_place(workspace.project, part)
            written.append(part)
    if migration.settings and migration.settings.changed:
        with noted(configuration.FILE):
            configuration.write_change(workspace.project, migration.settings)
            settings_written = True
    for image in migration.images:
        with noted(f"image {image.tag}"):
            adopted.append(keeping.adopt_image(workspace, image.tag, promote=image.promote))
    return MigrationResult(tuple(written), settings_written, tuple(adopted), tuple(errors))


def _run_time(there: Checkout, mods: Sequence[copies.PlannedCopy]) -> Iterator[tuple[str, str]]:
    for part in mods:
        if part.state == "unfit" or part.name not in there.mods:
            continue
        try:
            facts = mod.read_script_facts(mod.load_mod(projects.Project(there.root), part.name))
            text = facts.instead if facts else ""
        except BuilderError as error:
            text = error.message
        if text:
            yield part.name, text
