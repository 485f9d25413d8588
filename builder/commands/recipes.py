"""The commands recipes check, add, list and show, and the export command."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import (
    BuilderError,
    ConflictError,
    FileProblemsError,
    ImageStateError,
    Location,
    LockError,
    Problem,
    SourceError,
    UsageError,
)
from builder.base.events import Report, as_messages
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean
from builder.building import vllm_choices
from builder.commands import mods
from builder.definitions import (
    build_target,
    cluster,
    command,
    configuration,
    container,
    image,
    mod,
    recipe,
    recipe_conversion,
    recipe_problems,
)
from builder.definitions.configuration import NOTHING_REQUESTED, Node
from builder.definitions.container import ContainerOptions, of_server
from builder.definitions.fields import read_text
from builder.definitions.recipe import ParsedRecipe, Recipe, read_recipe
from builder.lab import changes
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.moving import copies, recipe_registries
from builder.numbers import adopted, status
from builder.serving import advice, exports, image_words, preparation, selection
from builder.serving.running import PROJECT

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.command import ServeCommand
    from builder.moving.copies import PlannedCopy, Upstream
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import ServeRequest
    from builder.serving.selection import ServedImage
    from builder.sources.git import Notify


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe file: the recipe if it can be read, its problems, and notes. Notes never prevent serving."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def check_recipes(
    project: Project, paths: Sequence[str], answers: Mapping[str, image_words.ImageAnswer] | None = None
) -> tuple[CheckedRecipe, ...]:
    """Checks every recipe in ``paths`` (files, names or whole folders), or else the project's recipes. ``answers`` are
    answers of images' vLLM, by recipe file. Raises UsageError for any other path."""
    lock = _lock(project)
    answers = answers or {}
    return tuple(
        _check(project, lock, file, answers.get(project.relative(file))) for file in _all_files(project, paths)
    )


def check_recipes_on_images(workspace: Workspace, paths: Sequence[str], image: str = "") -> tuple[CheckedRecipe, ...]:
    """Checks the recipes like `check_recipes`, and lets the vLLM in each recipe's image check the command, if the
    engine has the image. If ``image`` names a number, that image checks all recipes. Raises UsageError, ImageStateError
    or ImageContentsError if ``image`` cannot be used."""
    project, lock = workspace.project, _lock(workspace.project)
    read = []
    for file in _all_files(project, paths):
        with suppress(FileProblemsError, UsageError):
            read.append(recipe.read_recipe(project, file).recipe)
    readable = list(filter(None, read))
    if image:
        name, recorded = status.named_number(project, lock, image)
        adopted.require_present(workspace.engine, name, recorded)
        answers = image_words.ask_image(workspace, str(name), readable)
    else:
        answers = image_words.ask_own_images(workspace, lock, readable)
    return check_recipes(project, paths, answers)


def _lock(project: Project) -> Lock:
    try:
        return lock_file.read_project_lock(project)
    except LockError:
        return Lock()  # the commands that need the lock report the error


def _all_files(project: Project, paths: Sequence[str]) -> Iterable[Path]:
    return dict.fromkeys(file for path in paths or (str(project.recipes),) for file in _files(project, path))


def _files(project: Project, text: str) -> tuple[Path, ...]:
    path = Path(text)
    if path.is_file():
        return (path,)
    if not path.is_dir() and (named := recipe.find_recipe(project, text)):
        return (named,)
    for folder in (path, project.recipes / text):
        if folder.is_dir() or folder == project.recipes:
            return recipe.recipe_files(folder)
    hint = did_you_mean(recipe.name_of(text), recipe.recipe_names(project))
    raise UsageError(f"{text}: no such file, folder or recipe", hint=hint)


def _check(project: Project, lock: Lock, path: Path, answer: image_words.ImageAnswer | None) -> CheckedRecipe:
    file = project.relative(path)
    try:
        parsed = recipe.read_recipe(project, path)
    except FileProblemsError as error:
        return CheckedRecipe(file, None, error.problems)
    except UsageError as error:
        return CheckedRecipe(file, None, (Problem(Location(file), error.message.removeprefix(f"{file}: ")),))
    if parsed.recipe is None:
        return CheckedRecipe(file, None, parsed.problems, parsed.notes)
    checked = parsed.recipe
    problems = {*parsed.problems, *recipe_problems.recipe_problems(checked)}
    if recipe_problems.is_built_here(project, checked):
        problems |= {*recipe_problems.missing_mods(project, checked)}  # a build could not start
    every_note = {*notes(project, lock, parsed)}
    with suppress(FileProblemsError, UsageError):  # if the command cannot be rendered, a problem is already recorded
        rendered = command.render_command(checked, {})
        config = configuration.Configuration()
        with suppress(FileProblemsError):  # the commands that need builder.yaml report the error
            config = configuration.load_configuration(project)
        facts = recipe_problems.image_facts(project, checked)
        mounting = replace(checked, volumes=(*checked.volumes, *config.container.volumes))
        at_launch, possible = recipe_problems.find_launch_problems(mounting, rendered, facts)
        problems |= {*at_launch}
        if answer is None and (choices := vllm_choices.at_hand(project, lock, facts.definitions)):
            problems |= {*recipe_problems.unknown_names(checked, rendered.words, choices.label, choices.values, facts)}
        every_note |= {*possible, *command.contradictions(checked, rendered.words)}
        if answer is None and (release := image_words.pinned_release(lock, facts.definitions)):
            mods = checked.mods or any(definition.mods for definition in facts.definitions)  # mods may add options
            (every_note if mods else problems).update(image_words.unknown_options(checked, release))
        for advised in advice.of_recipe_file(project, lock, checked, rendered.words, facts.definitions, config):
            line = Problem(Location(file), f"advisory {advised.message}; {advised.remedy}")
            (problems if advised.verdict == "error" else every_note).add(line)
    if answer:
        with suppress(FileProblemsError, UsageError):
            problems |= {*image_words.problems(checked, answer, problems)}
            every_note |= {*image_words.notes(checked, answer)}
    return CheckedRecipe(file, checked, tuple(sorted(problems)), tuple(sorted(every_note)))


def notes(project: Project, lock: Lock, parsed: ParsedRecipe) -> tuple[Problem, ...]:
    """All notes on a parsed recipe, from top to bottom."""
    if parsed.recipe is None:
        return tuple(sorted(parsed.notes))
    # Containers with numbers: repositories, and the original names of adopted images.
    numbered = {name for name, repository in lock.images.items() if repository.numbers}
    numbered |= {image.adopted.image.removesuffix(":latest") for _, image in lock.numbered() if image.adopted}
    return tuple(sorted({*parsed.notes, *recipe_problems.notes(project, parsed.recipe, numbered)}))


# ``recipes add`` copies recipes from another repository with their mods, or corrects a recipe from a page.


@dataclass(frozen=True)
class RecipeCopies:
    """Planned copies of recipes. ``mods`` are mods that the recipes name and their repository has. The project lacks
    them, or has them without an origin (after a kill), or has unedited files of this program. ``missing`` are mods that
    neither has, each with a sentence on how to get it; the sentence is empty if no source is known."""

    recipes: tuple[PlannedCopy, ...]
    mods: tuple[PlannedCopy, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True)
class MendedRecipe:
    """A recipe from a page, corrected to the text that its author typed; ``path`` gets this ``text``. ``change`` is the
    difference from the pasted file; None if nothing was corrected. ``replaces`` is true if that file is in
    ``recipes/``."""

    path: Path
    text: str
    change: changes.FileChange | None
    replaces: bool


def plan_recipe_copies(
    project: Project, text: str, name: str | None, report: Report, *, everything: bool, hardware: str | None = None
) -> RecipeCopies:
    """Plans the copy of the recipe at the address ``text``. The copy keeps its name or is called ``name``. With
    ``everything``, plans copies of all recipes there. ``@REGISTRY/NAME`` is a recipe in a registry. ``vllm:MODEL`` is
    converted from vLLM's own recipe, for ``hardware``. Raises the errors of `mods.plan_copies`, `find_in_registry` and
    `plan_vllm_recipe`."""
    notify = as_messages(report)
    name = name and name.removesuffix(".yaml")
    if text.startswith(recipe_registries.PREFIX):
        return RecipeCopies((recipe_registries.plan_vllm_recipe(project, text, hardware, name, notify),), (), {})
    if hardware:
        raise UsageError("--hardware applies only to recipes from vLLM: `builder recipes add vllm:MODEL`")
    if text.startswith("@"):
        text = recipe_registries.find_in_registry(project, text, notify)
    upstream, planned = mods.copies_at(project, "recipe", text, name, notify, everything=everything)
    return RecipeCopies(planned, *_named_mods(project, upstream, planned, notify))


def _named_mods(
    project: Project, upstream: Upstream, recipes: Iterable[PlannedCopy], notify: Notify
) -> tuple[tuple[PlannedCopy, ...], dict[str, str]]:
    """The mods to copy with the recipes, and remedies for mods that neither the project nor the repository has."""
    present = mod.mod_names(project)
    planned: dict[str, PlannedCopy] = {}
    missing: dict[str, str] = {}
    entries = (entry for copy in recipes for entry in copies.entries_of_recipe(copy.files[0].content, "mods"))
    for entry in dict.fromkeys(map(posixpath.normpath, entries)):
        path, own = _mod_folder(upstream, entry), posixpath.basename(entry)
        if mod.name_of(entry) not in present:
            if path:
                planned[path] = copies.plan_copy(project, upstream, "mod", path, own, notify)
            else:
                missing[mod.name_of(entry)] = mod.remedy(project, mod.name_of(entry))
        elif path and not copies.path_of(project, "mod", own).exists():
            # The project has the mod without an origin. If the files are equal, a copy was killed before it recorded
            # the origin. If the files came with this program and are unedited, the repository's files replace them.
            with suppress(SourceError, ConflictError):  # the project's own mod, with files that cannot be a copy
                copy = copies.plan_copy(project, upstream, "mod", path, own, notify)
                if copy.is_shipped or not copy.changes:
                    planned[path] = copy
    return tuple(planned.values()), missing


def _mod_folder(upstream: Upstream, entry: str) -> str:
    """The folder of a mod in a repository: at the top, in `mods/`, or the only folder of that name. Empty if none
    exists."""
    ends = tuple(f"/{posixpath.basename(entry)}/{file}" for file in copies.MOD_FILES)
    others = {posixpath.dirname(path) for path in upstream.paths if path.endswith(ends)}
    folders = (entry, f"mods/{entry}", *(others if len(others) == 1 else ()))
    return next((path for path in folders if any(f"{path}/{file}" in upstream.paths for file in copies.MOD_FILES)), "")


def plan_mended(project: Project, file: str, name: str | None) -> MendedRecipe:
    """Corrects the recipe in ``file``, and plans to write it as the recipe ``name`` (default: the file's name). A
    recipe of the project, which can also be given by name, keeps its place. Writes nothing. Raises UsageError if the
    file cannot be read or the name is invalid, ConflictError if another recipe has the name."""
    source = Path(file) if Path(file).is_file() else recipe.find_recipe(project, file) or Path(file)
    shown = project.relative(source)
    before = read_text(source, shown)
    after = recipe.mended(before)
    change = changes.of_contents(before.encode(), after.encode(), shown) if after != before else None
    if name is None and source.resolve().is_relative_to(project.recipes.resolve()):
        return MendedRecipe(source, after, change, replaces=True)
    own_name = recipe.name_of(name or source.name)
    copies.require_name("recipe", own_name)
    path = project.recipes / f"{own_name}.yaml"
    if path.exists():
        hint = "`--as NAME` gives it another name"
        raise ConflictError(f"recipes/{own_name}.yaml already exists: nothing was written", hint=hint)
    return MendedRecipe(path, after, change, replaces=False)


def put_mended(project: Project, mended: MendedRecipe) -> CheckedRecipe:
    """Writes a corrected recipe, and checks it."""
    files.make_folder(mended.path.parent)
    files.write_atomically(mended.path, mended.text.encode())
    return check_recipes(project, [str(mended.path)])[0]


def convert_recipe(project: Project, text: str, version: int | None) -> str:
    """The recipe ``text``, converted to the other version. Raises UsageError if there is no such recipe or it already
    has that version, FileProblemsError if it cannot be read."""
    path = Path(text) if Path(text).is_file() else recipe.find_recipe(project, text)
    if path is None:
        raise UsageError(f"{text}: no such file or recipe", hint=did_you_mean(text, recipe.recipe_names(project)))
    loaded = recipe.load_recipe(project, path)
    return recipe_conversion.converted(loaded, version or 3 - loaded.version)


# ``recipes list`` and ``recipes show``: each recipe with its image and its commands.


@dataclass(frozen=True)
class RecipeRow:
    """A recipe, the image that serves it now, and the state of the image in the engine. If there is no image yet,
    ``image`` is None and ``state`` is ``none``."""

    checked: CheckedRecipe
    image: ImageName | None
    paired: bool
    state: str


def list_recipes(workspace: Workspace) -> tuple[tuple[RecipeRow, ...], str]:
    """Reads the project's recipes and the images that serve them. The second value explains why all states are unknown;
    empty if an engine answered."""
    return _rows(workspace, lock_file.read_project_lock(workspace.project), check_recipes(workspace.project, ()))


def _rows(workspace: Workspace, lock: Lock, recipes: Iterable[CheckedRecipe]) -> tuple[tuple[RecipeRow, ...], str]:
    images = status.status_overview(workspace, lock)
    states = {row.name: row.state for row in images.rows}
    rows = []
    for checked in recipes:
        row = RecipeRow(checked, None, paired=False, state="none")
        with suppress(ImageStateError):
            if checked.recipe is not None:
                selected = selection.for_recipe(lock, checked.recipe)
                row = RecipeRow(checked, selected.image, selected.reason == "paired", states[selected.image])
        rows.append(row)
    return tuple(rows), images.engine_error


@dataclass(frozen=True)
class ShownNode:
    """A node and its commands: ``argv``, and ``ray`` on the head of Ray. They run in a container with the variables
    ``env`` and these devices and capabilities."""

    node: str
    argv: tuple[str, ...]
    ray: tuple[str, ...]
    env: dict[str, str]
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class ShownRecipe:
    """A recipe, its command, and the image that serves it. ``nodes`` are the requested nodes, the head first. ``note``
    names nodes that are not used, or explains why one machine cannot serve the recipe. ``origin`` is the source of a
    copy, with the commit."""

    row: RecipeRow
    command: ServeCommand
    nodes: tuple[ShownNode, ...]
    note: str
    origin: str = ""


def show_recipe(workspace: Workspace, request: ServeRequest) -> tuple[ShownRecipe, str]:
    """Reads a recipe and renders its command, for one machine and for the nodes. A node that is not in builder.yaml is
    used as an address. The second value explains why the state of the image is unknown; empty if it is known. Raises
    UsageError if there is no such recipe, FileProblemsError for an error in its file or the overrides."""
    recipe = build_target.find_recipe(workspace.project, request.text)
    rendered = command.render_command(recipe, request.overrides, request.extra)
    nodes, note = _nodes(workspace.project, recipe, rendered, request)
    parsed = read_recipe(workspace.project, workspace.project.root / recipe.file)
    lock = lock_file.read_project_lock(workspace.project)
    checked = CheckedRecipe(recipe.file, recipe, (), notes(workspace.project, lock, parsed))
    (row,), engine_error = _rows(workspace, lock, [checked])
    return ShownRecipe(row, rendered, nodes, note, _origin(workspace.project, recipe.file)), engine_error


def _origin(project: Project, file: str) -> str:
    with suppress(FileProblemsError):
        if origin := copies.read_origin(project, "recipe", recipe.name_of(file)):
            return f"{origin.address}, commit {origin.commit[:12]}"
    return ""


def _nodes(
    project: Project, recipe: Recipe, rendered: ServeCommand, request: ServeRequest
) -> tuple[tuple[ShownNode, ...], str]:
    configured = {node.name: node for node in configuration.load_configuration(project).nodes} if request.nodes else {}
    nodes = [configured.get(name, Node(name, name, address=name)) for name in dict.fromkeys(request.nodes)]
    cluster.require_several(request.backend, len(nodes))
    definition = image.of_repository(project, recipe.repository)
    of_image = image.serve_settings(project, definition) if definition else image.ServeSettings()
    if len(nodes) < 2:
        own = container.environment(rendered, of_image)
        note = "this recipe requires several machines: name them with --node" if recipe.cluster_only else ""
        return tuple(ShownNode(node.name, rendered.argv, (), own, (), ()) for node in nodes), note
    backend = cluster.backend_of(recipe, request.backend)
    together = cluster.cluster_of(recipe, request.overrides, request.extra, nodes, backend)
    own = container.environment(together.command, of_image)
    shown = []
    for member in together.members:
        env = cluster.combined(own, member.node, member.address, backend)
        link = cluster.devices(member.node, gpus=of_image.gpus == "all")
        shown.append(ShownNode(member.node.name, member.argv, member.ray, env, *link))
    return tuple(shown), together.note


# ``export`` writes how a recipe or a model is served, in other tools' formats.


FORMATS = {
    "compose": "a compose file, the image pinned by its number",
    "recipe": "a recipe with which other launchers serve exactly this image",
    "script": "a shell script with a plain `docker run` command",
    "opencode": "the provider for OpenCode's configuration",
    "llama-swap": "a configuration that starts each model on demand",
    "litellm": "a model list that points to the server of each model",
}
# Formats that describe a container give one text for each node, in files with these endings.
_ENDINGS = {"compose": ".yaml", "script": ".sh"}


@dataclass(frozen=True)
class ExportedRecipe:
    """The text for each node, the head first, or one text under an empty name. Also the images, and warnings."""

    texts: Mapping[str, str]
    image: str
    warnings: tuple[str, ...]


def export_recipe(
    project: Project, kind: str, request: ServeRequest, environ: Mapping[str, str], address: str = "127.0.0.1"
) -> ExportedRecipe:
    """Renders how the recipe or model is served, in the format ``kind``. If the request names none, exports all paired
    models. Clients reach the server at ``address``. Contacts no engine and starts nothing. Raises UsageError or
    FileProblemsError if rendering fails, ImageStateError if no image was built yet from the definition."""
    if kind in {"llama-swap", "litellm"}:
        return _routed(project, kind, request, environ, address)
    if not request.text:
        raise UsageError(f"`--format {kind}` exports one model: name the model or its recipe")
    lock = lock_file.read_project_lock(project)
    selected = _selected(project, lock, request.text)
    warnings = [selection.selection_warning(selected)]
    if kind == "recipe":
        lacking = (f"{mod} is not in {selected.name}: the launcher must apply it" for mod in selected.missing_mods)
        warnings += lacking
        if selection.serve_settings(project, selected).keep_entrypoint:
            warnings.append(f"{selected.name} needs its own entrypoint: start it with the launcher's --keep-entrypoint")
    else:
        warnings.append(selection.mods_warning(project, selected))
    if kind in _ENDINGS:
        planned = preparation.settings(project, selected, request, environ)
        warnings += [planned.note, *_not_written(planned.options)]
        render = exports.render_compose if kind == "compose" else exports.render_script
        names = [node.name for node in planned.nodes] if len(planned.containers) > 1 else [""]
        home = environ.get("HOME", "").rstrip("/")
        texts = {name: render(each, home) for name, each in zip(names, planned.containers, strict=True)}
    elif request.nodes or request.backend:
        raise UsageError("`--node` and `--ray` require `--format compose` or `--format script`")
    else:
        options, changed = preparation.settle_server_options(project, selected.recipe, request.container, environ)
        if kind == "recipe" and options.volumes:
            mounts = " ".join(f"-v {mount}" for mount in options.volumes)
            warnings.append(f"other launchers do not read a recipe's `volumes`: start yours with {mounts}")
        texts = {"": _of_server(kind, request, replace(selected, recipe=changed), options, address)}
    return ExportedRecipe(texts, selected.name, tuple(filter(None, warnings)))


def _selected(project: Project, lock: Lock, text: str) -> ServedImage:
    selected = selection.select_any(project, lock, text)
    if isinstance(selected, selection.UnnumberedImage) and selected.definition:
        return selection.for_recipe(lock, selected.recipe)
    return selected


def _not_written(options: ContainerOptions) -> list[str]:
    return [
        f"the value of {name} is not written: set {name} before you use the file"
        for name, value in options.env.items()
        if value is None
    ]


def _of_server(kind: str, request: ServeRequest, selected: ServedImage, options: ContainerOptions, address: str) -> str:
    rendered = command.render_command(selected.recipe, request.overrides, request.extra)
    if kind == "opencode":
        if rendered.port is None or not rendered.served:
            message = f"{selected.recipe.file}: the command does not show the port and the name of the model"
            hint = "write `--port N` and `--served-model-name NAME` into the command"
            raise UsageError(message, hint=hint)
        published = of_server(options.publish, rendered.port)
        reached = replace(rendered, port=published.port) if published else rendered
        return exports.render_opencode(selected.recipe, reached, address)
    if request.overrides or request.extra or request.container != NOTHING_REQUESTED:
        raise UsageError(
            "`--format recipe` takes no options for the command or the container: write them into the recipe"
        )
    exported = selected.recipe
    if exported.version == 2:
        converted = recipe.parse_recipe(recipe_conversion.converted(exported, 1), exported.file).recipe or exported
        exported, rendered = converted, command.render_command(converted, {})
    return exports.render_recipe(exported, rendered, selected.name, list(selected.missing_mods))


def _routed(
    project: Project, kind: str, request: ServeRequest, environ: Mapping[str, str], address: str
) -> ExportedRecipe:
    """The configuration of a router for one model, or for all paired models. A model that cannot be served is left out,
    with a warning. Raises UsageError if none is left."""
    if request.nodes or request.backend:
        raise UsageError(f"`--format {kind}` is for servers on this machine: leave `--node` and `--ray` out")
    lock = lock_file.read_project_lock(project)
    models, warnings = [], []
    for text in [request.text] if request.text else sorted(lock.models):
        try:
            routed, notes = _routed_model(project, lock, replace(request, text=text), environ)
        except BuilderError as error:
            if request.text:
                raise
            warnings.append(f"{text} is left out: {error.message.splitlines()[0]}")
        else:
            models.append(routed)
            warnings += notes
    if not models:
        if not warnings:
            hint = "`builder build RECIPE` pairs its model with the image that it makes"
            raise UsageError("no model is paired with an image yet", hint=hint)
        raise UsageError("\n".join(["none of the paired models can be served", *warnings]))
    warnings += exports.shared_ports(models)
    if kind == "litellm":
        text = exports.render_litellm(models, address)
    else:
        text = exports.render_llama_swap(models, environ.get("HOME", "").rstrip("/"))
    images = ", ".join(dict.fromkeys(model.image for model in models))
    return ExportedRecipe({"": text}, images, tuple(dict.fromkeys(warnings)))


def _routed_model(
    project: Project, lock: Lock, request: ServeRequest, environ: Mapping[str, str]
) -> tuple[exports.RoutedModel, list[str]]:
    """A model in a router's form, and notes. Raises UsageError if it needs several nodes or has no port."""
    selected = _selected(project, lock, request.text)
    planned = preparation.settings(project, selected, request, environ)
    if len(planned.containers) > 1 or planned.nodes:
        message = f"{selected.recipe.file} is served by several nodes, but a router uses one machine only"
        raise UsageError(message, hint="`--format compose` and `--format script` export a recipe for several nodes")
    (container,) = planned.containers
    rendered = command.render_command(selected.recipe, request.overrides, request.extra)
    published = of_server(planned.options.publish, rendered.port)
    port = published.port if published else rendered.port
    if port is None:
        hint = "write `--port N` into the command"
        raise UsageError(f"{selected.recipe.file}: the command does not show the port", hint=hint)
    labelled = replace(container, labels={**container.labels, PROJECT: str(project.root)})
    model = selected.recipe.model or rendered.model or selected.recipe.name
    notes = [
        selection.selection_warning(selected),
        selection.mods_warning(project, selected),
        *_not_written(planned.options),
    ]
    return exports.RoutedModel(model, rendered.served, selected.name, labelled, port), [note for note in notes if note]


def write_export(path: Path, exported: ExportedRecipe, kind: str) -> tuple[Path, ...]:
    """Writes the text to the file ``path``. Several texts go to separate files in the folder ``path``, which is made if
    missing. Each file is replaced in one step. Returns the files. Raises UsageError if a file cannot be written,
    OSError for a full disk."""
    texts = {path / f"{node}{_ENDINGS[kind]}" if node else path: text for node, text in exported.texts.items()}
    with files.named_by_user(path):
        if len(texts) > 1:
            path.mkdir(exist_ok=True)
        for file, text in texts.items():
            files.write_atomically(file, text.encode(), mode=0o755 if kind == "script" else 0o644)
    return tuple(texts)
