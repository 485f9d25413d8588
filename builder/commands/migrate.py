"""The ``migrate`` command: a checkout of spark-vllm-docker taken over, with its recipes, mods, settings and images.

A plan is made first, with nothing written. What the project has already stays, unless it is to be replaced, or came
with this program and nobody edited it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.commands import adopt, recipes_check
from builder.definitions import configuration
from builder.definitions.mods import known_sources, mod_reading, script_facts
from builder.definitions.reading import read_text
from builder.engine.client import endpoint as endpoints
from builder.errors import BuilderError, UsageError
from builder.migration import checkout as checkouts
from builder.migration import env_file, images, origins, settings, taking
from builder.nodes import machine_shell
from builder.project import Project
from builder.storage import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.commands.adopt import AdoptedImage
    from builder.definitions.recipes.recipe import Recipe
    from builder.errors import Problem
    from builder.migration.checkout import Checkout
    from builder.migration.images import AdoptableImage, ContainerState, UntaggedImage
    from builder.migration.origins import UpstreamCommit
    from builder.migration.settings import SettingsPlan
    from builder.migration.taking import TakenPart
    from builder.workspace import Workspace


@dataclass(frozen=True)
class MigrateRequest:
    """A request to take over the checkout at ``path``: the ``recipes`` named, or all, with the mods that they name;
    ``env_file`` in place of its ``.env``. With ``replace`` what differs here is replaced; without ``with_images``
    no image gets a number."""

    path: Path
    recipes: tuple[str, ...] = ()
    env_file: Path | None = None
    replace: bool = False
    with_images: bool = True


@dataclass(frozen=True)
class Migration:
    """The plan of a migration. ``problems`` are those of its recipes by name, ``run_time`` tells of mods what belongs
    to run time and cannot be baked; ``missing`` are mods that recipes name and that are neither here nor there, each
    with the sentence that says how to get it, empty where no place of it is known,
    ``renamed`` those that lie elsewhere than in mods/ there, with the name that they get here.
    ``settings`` is None where there is no ``.env``. ``engine_error`` says why nothing is known of images.
    ``untagged`` are images without a name that hold vLLM, and ``unread`` counts those that could not be looked into.
    ``launch_scripts`` and ``dockerfiles`` are the user's own ones, which are not taken."""

    checkout: Checkout
    upstream: UpstreamCommit | None
    parts: tuple[TakenPart, ...]
    problems: Mapping[str, tuple[Problem, ...]]
    run_time: Mapping[str, str]
    missing: Mapping[str, str]
    renamed: Mapping[str, str]
    settings: SettingsPlan | None
    env_problems: tuple[Problem, ...]
    containers: tuple[ContainerState, ...]
    images: tuple[AdoptableImage, ...]
    untagged: tuple[UntaggedImage, ...]
    unread: int
    engine_error: str
    launch_scripts: tuple[str, ...]
    dockerfiles: tuple[str, ...]
    replace: bool

    @property
    def wanted(self) -> tuple[TakenPart, ...]:
        """The parts that would be written, mods before the recipes that name them."""
        states = ("new", "unrecorded", "shipped", *(["differs"] if self.replace else []))
        return tuple(part for part in self.parts if part.state in states)

    @property
    def changes_something(self) -> bool:
        """True if there is anything to do."""
        return bool(self.wanted or self.images or (self.settings and self.settings.changed))


@dataclass(frozen=True)
class MigrationResult:
    """The result of a migration: the parts that were written, the images that got numbers, and what could not be
    done, each with its error."""

    written: tuple[TakenPart, ...]
    settings_written: bool
    adopted: tuple[AdoptedImage, ...]
    errors: tuple[tuple[str, BuilderError], ...]


def plan(workspace: Workspace, request: MigrateRequest) -> Migration:
    """Plans to take over a checkout; nothing is written. Raises UsageError for a folder that is none, or a recipe that
    it does not have."""
    project = workspace.project
    checkout = checkouts.find(request.path)
    if checkout.root == project.root.resolve():
        raise UsageError(f"{request.path} is this project itself", hint="name the checkout that is to be taken over")
    names = checkouts.choose(checkout, request.recipes)
    upstream = origins.find(checkout.root)
    named = tuple(dict.fromkeys(entry for name in names for entry in taking.mods_named(checkout, name)))
    paths = {entry: path for entry in named if (path := checkouts.mod_at(checkout, entry))}
    here = mod_reading.names(project)
    every = {
        **({} if request.recipes else checkout.mods),
        **{taking.name_of_mod(path): path for path in paths.values()},
    }
    mods = [taking.mod(project, checkout, every[name], upstream) for name in sorted(every)]
    recipes = [taking.recipe(project, checkout, name, upstream) for name in names]
    checked = {
        name: recipes_check.run(project, [str(checkout.recipes[name])])[0]
        for name, part in zip(names, recipes, strict=True)
        if part.state != "unfit"
    }
    readable = [each.recipe for each in checked.values() if each.recipe]
    states, adoptable, engine_error = _images(workspace, readable, wanted=request.with_images)
    is_looked_for = request.with_images and not engine_error
    untagged, unread = images.untagged(workspace, readable) if is_looked_for else ((), 0)
    settings_plan, env_problems = _settings(workspace, checkout, request)
    return Migration(
        checkout=checkout,
        upstream=upstream,
        parts=(*mods, *recipes),
        problems={name: each.problems for name, each in checked.items() if each.problems},
        run_time=dict(_run_time(checkout, mods)),
        missing={
            name: known_sources.remedy(project, name)
            for name in map(mod_reading.name_of, named)
            if name not in {*every, *here, *paths}
        },
        renamed={
            entry: name
            for entry, path in paths.items()
            if (name := taking.name_of_mod(path)) != mod_reading.name_of(entry)
        },
        settings=settings_plan,
        env_problems=env_problems,
        containers=states,
        images=adoptable,
        untagged=untagged,
        unread=unread,
        engine_error=engine_error,
        launch_scripts=origins.edited(upstream, checkout.root, checkout.launch_scripts),
        dockerfiles=origins.edited(upstream, checkout.root, checkout.dockerfiles) if upstream else (),
        replace=request.replace,
    )


def run(workspace: Workspace, migration: Migration) -> MigrationResult:
    """Does what was planned. What cannot be done keeps nothing else from it."""
    written: list[TakenPart] = []
    adopted: list[AdoptedImage] = []
    errors: list[tuple[str, BuilderError]] = []
    for part in migration.wanted:
        try:
            taking.put_in_place(workspace.project, part)
            written.append(part)
        except BuilderError as error:
            errors.append((f"{part.kind} {part.name}", error))
    settings_written = False
    if migration.settings and migration.settings.changed:
        try:
            _write_settings(workspace.project, migration.settings)
            settings_written = True
        except BuilderError as error:
            errors.append((configuration.FILE, error))
    for image in migration.images:
        try:
            adopted.append(adopt.run(workspace, adopt.AdoptRequest(image.tag, promote=image.promote)))
        except BuilderError as error:
            errors.append((f"image {image.tag}", error))
    return MigrationResult(tuple(written), settings_written, tuple(adopted), tuple(errors))


def _run_time(checkout: Checkout, mods: Sequence[TakenPart]) -> Iterator[tuple[str, str]]:
    for part in mods:
        if part.state == "unfit" or part.name not in checkout.mods:
            continue
        try:
            facts = script_facts.of(mod_reading.load(Project(checkout.root), part.name))
        except BuilderError as error:
            yield part.name, error.message
        else:
            if facts and facts.instead:
                yield part.name, facts.instead


def _settings(
    workspace: Workspace, checkout: Checkout, request: MigrateRequest
) -> tuple[SettingsPlan | None, tuple[Problem, ...]]:
    path = request.env_file or checkout.root / checkouts.ENV_FILE
    if not path.exists() and request.env_file is None:
        return None, ()
    shown = str(request.env_file or path)
    env = env_file.read(path, shown)
    host = workspace.engine.host
    own_engine = host if machine_shell.is_here(host) else endpoints.DEFAULT_HOST
    return settings.plan(workspace.project, env, own_engine, replace=request.replace), env.problems


def _images(
    workspace: Workspace, recipes: Sequence[Recipe], *, wanted: bool
) -> tuple[tuple[ContainerState, ...], tuple[AdoptableImage, ...], str]:
    try:
        adoptable = images.adoptable(workspace, recipes) if wanted else ()
        return images.states(workspace, recipes, adoptable), adoptable, ""
    except BuilderError as error:
        return images.without_engine(workspace.project, recipes), (), error.message


def _write_settings(project: Project, planned: SettingsPlan) -> None:
    """Writes builder.yaml as it was shown. Raises UsageError where it was changed since, or cannot be written."""
    path = project.root / configuration.FILE
    now = read_text(path, configuration.FILE) if path.exists() else ""
    if now != planned.before:
        raise UsageError(f"{configuration.FILE} was changed meanwhile: it was not written", hint="run this again")
    try:
        atomic_file.write(path, planned.after.encode())
    except OSError as error:
        raise UsageError(f"{configuration.FILE}: {error.strerror}") from None
