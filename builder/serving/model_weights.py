"""The weights of a served model: their revision, which a pairing records; a checkpoint of the project in their place
(``NAME@REVISION``, so that image and weights move together); and their copies on nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import files, hub_cache
from builder.base.errors import ConflictError, ImageStateError, SourceError, UnsafePathError, UsageError
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean, shell_word
from builder.definitions import recipe as recipes
from builder.definitions.container import HOME
from builder.lock import checkpoints_lock, lock_file
from builder.serving.selection import SelectedImage, ServedImage

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.base.hub_cache import CachedModel
    from builder.base.project import Project
    from builder.definitions.checkpoint_definition import CheckpointSource
    from builder.definitions.configuration import Node
    from builder.definitions.recipe import Recipe
    from builder.lock.checkpoints_lock import CheckpointName, CheckpointRevision, RecordedSource
    from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
    from builder.numbers.workspace import Workspace


# The revision of a model, and its pairing with an image.


def to_record(project: Project, environ: Mapping[str, str], model: str, recipe: Recipe | None) -> str | None:
    """Returns the revision for a new pairing. For a checkpoint, this is the latest one (``NAME@REVISION``). Otherwise
    it is the commit in the cache of the revision that the recipe requests, else that revision as written."""
    if recipe and recipe.checkpoint and recipe.model == model:
        newest = latest_weights(project, recipe.checkpoint)
        return str(newest) if newest else None
    requested = recipe.revision if recipe and recipe.model == model else None
    return hub_cache.revision(environ, model, requested or hub_cache.MAIN) or requested


def revision_warning(project: Project, environ: Mapping[str, str], lock: Lock, recipe: Recipe) -> str:
    """A line if the paired revision of the recipe's model differs from the revision that would be served now; else
    empty."""
    model = lock.models.get(recipe.model or "")
    if recipe.model is None or model is None or model.pairing.revision is None or recipe.checkpoint:
        return ""
    now = to_record(project, environ, recipe.model, recipe)
    before = hub_cache.revision(environ, recipe.model, model.pairing.revision) or model.pairing.revision
    if now is None or before == now or model.pairing.revision == recipe.revision:
        return ""
    now, before = (text[:7] if hub_cache.is_commit(text) else text for text in (now, before))
    return f"{recipe.model} is now at revision {now}; it was paired at {before}"


def record_revision(workspace: Workspace, model: str, recipe: Recipe | None = None) -> str | None:
    """Fills in the revision of a pairing that was made before the model was downloaded or its checkpoint was made;
    returns the revision if it was written. A recorded revision stays: the user decides about a change."""
    from builder.numbers import images_lock

    def lacks_revision(lock: Lock) -> bool:
        return model in lock.models and lock.models[model].pairing.revision is None

    if not lacks_revision(lock_file.read_lock(workspace.project.lock)):
        return None
    if not (commit := to_record(workspace.project, workspace.environment, model, recipe)):
        return None
    with images_lock.transaction(workspace) as transaction:
        if not lacks_revision(transaction.lock):
            return None
        paired = transaction.lock.models[model]
        pairing = replace(paired.pairing, revision=commit)
        transaction.commit(transaction.lock.with_model(model, replace(paired, pairing=pairing)))
    return commit


def cached_models(environ: Mapping[str, str], lock: Lock) -> dict[str, CachedModel]:
    """The models of ``lock`` in the cache. The revision is the paired one if the cache has it, else ``main``."""
    models = {name: cached_model for name in lock.models if (cached_model := hub_cache.find_model(environ, name))}
    for name, cached_model in models.items():
        named = lock.models[name].pairing.revision
        if named and (commit := hub_cache.revision(environ, name, named)):
            models[name] = replace(cached_model, revision=commit)
    return models


@dataclass(frozen=True)
class PairingSource:
    """The source of a model's pairings: the ``recipe`` that serves it, and the ``revision`` of the model."""

    recipe: Recipe | None
    revision: str | None


def pairing_source(
    project: Project,
    environ: Mapping[str, str],
    lock: Lock,
    model: str,
    repository: str,
    adopted: str = "",
    named: Recipe | None = None,
) -> PairingSource:
    """Finds the recipe and the revision for a model's pairing. The recipe is the ``named`` one, else the recipe of the
    present pairing, else the only recipe of the model for the repository or the image ``adopted``."""
    serving, recorded = named, lock.models[model].pairing.recipe if model in lock.models else None
    if named is None and recorded:
        with suppress(UnsafePathError):
            path = recipes.recorded(project, recorded)
            serving = recipes.read_recipe(project, path).recipe if path else None
    elif named is None:
        names = (repository, adopted.removesuffix(":latest"))
        of_model = [each for _, each in recipes.readable_recipes(project) if each.model == model]
        matching = [each for each in of_model if each.repository in names]
        serving = matching[0] if len(matching) == 1 else None
    return PairingSource(serving, to_record(project, environ, model, serving))


def new_pairing(lock: Lock, model: str, image: ImageName, origin: PairingSource) -> Pairing:
    """The pairing of a model with an image. If an earlier pairing with the image exists, its records are kept."""
    from builder.numbers import pointers

    record = lock.models.get(model)
    result = pointers.pairing_with(record, image)
    if result.recipe is None and origin.recipe:
        result = replace(result, recipe=origin.recipe.file)
    is_new = record is None or image not in {each.image for each in (record.pairing, *record.previous)}
    if result.revision is None or is_new:
        result = replace(result, revision=origin.revision or result.revision)
    return result


# A checkpoint of the project in place of the model's weights, or a source of the checkpoint.

_NAME_OPTION = re.compile(r"--served[-_]model[-_]name\b")
# The folders in the container. The links in a snapshot lead to blobs beside it, so the whole model folder of a source
# is mounted.
_FOLDERS = "/checkpoints"
_SOURCE = "/checkpoint-source"


@dataclass(frozen=True)
class ServedWeights:
    """A recipe whose ``{model}`` is the weights to serve, and the ``extra`` arguments that give them the model's name.
    ``checkpoint`` and ``made`` are None if the pairing names the model's own weights. ``requested`` is the checkpoint,
    or its source with the served commit."""

    recipe: Recipe
    extra: tuple[str, ...] = ()
    checkpoint: CheckpointName | None = None
    made: CheckpointRevision | None = None
    requested: str = ""


def latest_weights(project: Project, name: str) -> CheckpointName | None:
    """The newest revision of a checkpoint; None if the checkpoint was never made."""
    revision = checkpoints_lock.read_checkpoints_lock(project).current(name)
    return checkpoints_lock.CheckpointName(name, revision) if revision else None


def paired_revision(lock: Lock, selection: ServedImage) -> str | None:
    """The revision in the pairing of the selected image; None without such a pairing."""
    model = lock.models.get(selection.recipe.model or "")
    if model is None or not isinstance(selection, SelectedImage) or model.pairing.image != selection.image:
        return None
    return model.pairing.revision


def served_weights(
    project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage
) -> ServedWeights | None:
    """The weights that the recipe of ``selection`` serves: the paired weights, else the newest revision of the
    checkpoint. None for a recipe without a checkpoint. Raises ImageStateError if the checkpoint is not here,
    ConflictError for an image without a mod that the checkpoint needs."""
    recipe = selection.recipe
    if recipe.checkpoint is None:
        return None
    paired = paired_revision(lock, selection)
    if paired and checkpoints_lock.parse_name(paired) is None:
        return ServedWeights(replace(recipe, revision=paired))
    name = checkpoints_lock.parse_name(paired) if paired else latest_weights(project, recipe.checkpoint)
    made = checkpoints_lock.read_checkpoints_lock(project).find(name.name, name.revision) if name else None
    if name is None or made is None:
        what = name.short if name else f"the checkpoint {recipe.checkpoint}"
        if name:
            pairs = f"`builder pair {recipe.model} {selection.name} --checkpoint {name.name}`"
            hint = f"restore checkpoints.lock with git; or `builder checkpoints build {name.name}`, then {pairs}"
            raise ImageStateError(f"{recipe.file} serves {what}, which checkpoints.lock does not have", hint=hint)
        message = f"{recipe.file} serves {what}, which has not been built yet"
        raise ImageStateError(message, hint=f"`builder checkpoints build {recipe.checkpoint}` builds it")
    if isinstance(selection, SelectedImage):
        hint = f"`builder build {shell_word(recipe.file)}` builds an image with the mods that the checkpoint needs"
        _require_mods(selection.name, selection.record, name, made, hint)
    return _of_checkpoint(project, environ, recipe, name, made)


def _of_checkpoint(
    project: Project, environ: Mapping[str, str], recipe: Recipe, name: CheckpointName, made: CheckpointRevision
) -> ServedWeights:
    place = checkpoints_lock.result_place(project, environ, name.name, made.folder)
    folder = place.folder(name.revision)
    if not place.has(name.revision):
        message = f"{name.short} is not on this machine: {folder} is missing"
        hint = f"`builder checkpoints build {name.name}` builds it, if its definition has not changed"
        raise ImageStateError(message, hint=hint)
    inside, volumes = f"{_FOLDERS}/{name.name}", [f"{folder}:{_FOLDERS}/{name.name}:ro"]
    if place.is_cache:  # the cache is always mounted
        inside, volumes = f"{HOME}/.cache/huggingface/hub/{place.root.name}/snapshots/{name.revision}", []
    extra = () if _NAME_OPTION.search(recipe.command) else ("--served-model-name", made.model)
    return ServedWeights(_serving(recipe, inside, *volumes), extra, name, made, name.short)


def _serving(recipe: Recipe, model: str, *volumes: str) -> Recipe:
    """The recipe with the folder ``model`` in the container in place of its own model, which its command names by
    ``{model}`` or as it is. Raises UsageError for a command that does neither."""
    command, count = recipe.command, len(re.findall(r"\{model\b", recipe.command))
    if not count and recipe.model:
        named = rf"((?:\bserve|--model)(?:[\s\\]+|=))(['\"]?){re.escape(recipe.model)}\2(?!\S)"
        command, count = re.subn(named, r"\1{model}", command)
    if not count:
        message = f"builder cannot find the weights in the command of {recipe.file}"
        raise UsageError(message, hint="write `vllm serve {model}` in the command")
    defaults = {**recipe.defaults, "model": model}
    return replace(recipe, command=command, defaults=defaults, volumes=(*recipe.volumes, *volumes), revision=None)


def _require_mods(image: str, record: NumberedImage, name: CheckpointName, made: CheckpointRevision, hint: str) -> None:
    if lacking := [mod for mod in made.mods if mod not in record.mods]:
        raise ConflictError(f"{image} does not contain {', '.join(lacking)}, which {name.short} needs", hint=hint)


def weights_warning(project: Project, lock: Lock, selection: ServedImage) -> str:
    """A warning if the checkpoint has a newer revision than the paired one; else empty."""
    recipe = selection.recipe
    paired = paired_revision(lock, selection)
    if recipe.checkpoint is None or paired is None:
        return ""
    newest = latest_weights(project, recipe.checkpoint)
    name = checkpoints_lock.parse_name(paired)
    if newest is None or name == newest:
        return ""
    now = name.short if name else "its own weights"
    moves = f"to serve {newest.short}: `builder pair {recipe.model} {selection.name} --checkpoint {newest.name}`"
    return f"{recipe.model} is paired with {now}, not with the newest checkpoint; {moves}"


def missing_weights(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> str:
    """A warning if the checkpoint that a model is paired with is no longer here; else empty."""
    paired = lock.models.get(model)
    name = checkpoints_lock.parse_name(paired.pairing.revision or "") if paired else None
    if name is None:
        return ""
    made = checkpoints_lock.read_checkpoints_lock(project).find(name.name, name.revision)
    if made and checkpoints_lock.result_place(project, environ, name.name, made.folder).has(name.revision):
        return ""
    builds = f"`builder checkpoints build {name.name}` builds it again"
    return f"{model} is paired with {name.short}, which is not on this machine: {builds}"


def named_weights(project: Project, text: str, model: str, image: ImageName, record: NumberedImage) -> CheckpointName:
    """The checkpoint called ``text``: ``NAME``, or ``NAME@`` and the first digits of a revision. Raises UsageError for
    a checkpoint of another model, ConflictError for an image without a mod that the checkpoint needs."""
    name, _, start = text.partition("@")
    records = checkpoints_lock.read_checkpoints_lock(project)
    revisions = records.checkpoints.get(name, {})
    if not revisions:
        from builder.definitions import checkpoint_definition

        checkpoint_definition.load_checkpoint(project, name)  # an unknown name has another remedy
        message = f"the checkpoint {name} has not been built yet"
        raise UsageError(message, hint=f"`builder checkpoints build {name}` builds it")
    matching = [each for each in revisions if each.startswith(start)] if start else [records.current(name) or ""]
    if len(matching) != 1 or matching[0] not in revisions:
        made = ", ".join(each[:12] for each in revisions)
        problem = f"`{text}` matches several revisions" if len(matching) > 1 else f"checkpoints.lock has no `{text}`"
        raise UsageError(problem, hint=f"existing revisions of {name}: {made}")
    revision = revisions[matching[0]]
    if revision.model != model:
        raise UsageError(f"{name} is a checkpoint of {revision.model}, not of {model}")
    chosen = checkpoints_lock.CheckpointName(name, matching[0])
    mods = " ".join(f"--mod {each}" for each in revision.mods)
    _require_mods(str(image), record, chosen, revision, f"`builder build TARGET {mods}` builds an image with them")
    return chosen


def weights_of_checkpoint(
    project: Project, environ: Mapping[str, str], selection: SelectedImage, text: str
) -> ServedWeights:
    """The checkpoint called ``text``, even if another one is paired. Raises the errors of `named_weights`, and
    ImageStateError if the checkpoint is not on this machine."""
    recipe = selection.recipe
    name = named_weights(project, text, recipe.model or "", selection.image, selection.record)
    made = checkpoints_lock.read_checkpoints_lock(project).checkpoints[name.name][name.revision]
    return _of_checkpoint(project, environ, replace(recipe, checkpoint=None), name, made)


def source_weights_of(
    project: Project, environ: Mapping[str, str], lock: Lock, selection: ServedImage, source: str = ""
) -> ServedWeights:
    """The ``source`` of the checkpoint that the recipe of ``selection`` serves, at the commit that the checkpoint was
    made from. An empty ``source`` means the source of the first step. Raises ImageStateError if files of the source are
    missing here."""
    from builder.definitions import checkpoint_definition
    from builder.definitions.checkpoint_definition import TakeStep

    served = served_weights(project, environ, lock, selection)
    if served is None or served.checkpoint is None or served.made is None:
        message = f"{selection.recipe.file} serves no checkpoint of this project, so it has no source to compare with"
        hint = "write `model: checkpoint:NAME` in the recipe; `builder checkpoints list` shows the names"
        raise UsageError(message, hint=hint)
    definition = checkpoint_definition.load_checkpoint(project, served.checkpoint.name)
    name = source or next(step.source for step in definition.steps if isinstance(step, TakeStep))
    recorded = served.made.sources.get(name)
    if recorded is None or name not in definition.sources:
        suggestion = did_you_mean(name, definition.sources, code=True)
        message = f"{definition.name} has no source `{name}`" + (f"; {suggestion}" if suggestion else "")
        raise UsageError(message, hint=f"its sources: {', '.join(definition.sources)}")
    written = definition.sources[name]
    requested, mounted, inside = str(written), checkpoints_lock.expanded(project, environ, written.folder or ""), ""
    if written.model and recorded.commit:
        requested, inside = f"{written.model}@{recorded.commit}", f"/snapshots/{recorded.commit}"
        mounted = hub_cache.folder(environ, written.model)
    _require_whole(definition.name, Path(f"{mounted}{inside}"), written, recorded)
    recipe = _serving(replace(selection.recipe, checkpoint=None), f"{_SOURCE}{inside}", f"{mounted}:{_SOURCE}:ro")
    return replace(served, recipe=recipe, requested=requested)


def _require_whole(name: str, folder: Path, written: CheckpointSource, recorded: RecordedSource) -> None:
    """Raises ImageStateError if files are missing or have changed. Files may be missing because a build fetches only
    what it needs."""
    from builder.sources.safetensors_files import LARGEST_INDEX, NAME, HeaderError, parse_index

    wanted = {"config.json", *recorded.files}
    if (folder / NAME).exists():
        try:
            wanted |= set(parse_index(files.read_plain_file((folder / NAME).resolve(), LARGEST_INDEX)).values())
        except HeaderError as error:
            again = f"remove the file; `builder download {written.model} --revision {recorded.commit}` fetches it again"
            hint = again if written.model else f"copy the file into {folder} again"
            raise ImageStateError(f"{folder / NAME} is damaged: {error}", hint=hint) from None
    if missing := sorted(path for path in wanted if not (folder / path).exists()):
        fetches = f"`builder download {written.model} --revision {recorded.commit}` fetches all files"
        lacks = "1 file is" if len(missing) == 1 else f"{len(missing)} files are"
        message = f"{written} is not complete on this machine: {lacks} missing, such as {missing[0]}"
        raise ImageStateError(message, hint=fetches if written.model else f"the files belong in {folder}")
    for path, file in recorded.files.items():
        if (folder / path).stat().st_size != file.size:
            message = f"{folder / path} has changed size since the checkpoint was made from it"
            hint = f"`builder checkpoints build {name} --update` makes the checkpoint from the current source"
            raise ImageStateError(message, hint=hint)


# The copy on a node, by rsync over ssh: only missing data is sent.


@dataclass(frozen=True)
class CopyDestination:
    """A node's folder of models: the ``host`` for ssh (USER@HOST), its ``port``, and the folder ``hub``, either
    absolute or relative to the user's home there."""

    node: str
    host: str
    port: int | None
    hub: str


def copy_destination(environ: Mapping[str, str], node: Node) -> CopyDestination:
    """The destination of models for ``node``. Raises UsageError if the node is not reached over ssh, or this machine
    has no rsync."""
    import shutil

    from builder.engine import client

    if shutil.which("rsync") is None:
        message = "rsync is not installed on this machine, but is needed to copy models to nodes"
        raise UsageError(message, hint="`sudo apt-get install rsync`, here and on the nodes")
    address = client.of_node(environ, node.name, node.engine).host
    parts = urlsplit(address)
    if parts.scheme != "ssh" or not parts.hostname or parts.netloc.startswith("-") or "@-" in parts.netloc:
        message = f"node {node.name} is reached at {address}, but models are copied over ssh"
        hint = (
            f"set the engine of {node.name} to ssh://USER@HOST in builder.yaml, or run the same `builder download` on"
            " that machine, without `--to`"
        )
        raise UsageError(message, hint=hint)
    home = (node.models or ".cache/huggingface").removeprefix("~/").rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user = f"{parts.username}@" if parts.username else ""
    return CopyDestination(node.name, f"{user}{host}", parts.port, f"{home}/hub")


def copy_to_node(environ: Mapping[str, str], model: str, to: CopyDestination, report: Report) -> None:
    """Makes the node's copy of ``model`` equal to the copy on this machine. Older revisions on the node stay."""
    import subprocess

    from builder.base.events import TransferProgress
    from builder.base.processes import memory_file

    cached_model = hub_cache.find_model(environ, model)
    total = cached_model.size if cached_model else 0
    folder = hub_cache.folder(environ, model)
    argv = [
        "rsync",
        *("--recursive", "--links", "--perms", "--times"),
        # A blob may be a link into a store that all models share; the store itself is not copied.
        "--copy-unsafe-links",
        # An incomplete file never has the name of the complete one.
        *("--partial-dir=.rsync-partial", f"--exclude=*{hub_cache.INCOMPLETE}"),
        "--mkpath",
        # The file of a branch contains a commit: its size never changes, and its content may change twice in a second.
        "--modify-window=-1",
        *("--info=progress2", "--no-human-readable"),
        # The names of the folders go to the node's rsync directly, not through a shell.
        "--protect-args",
        *("--rsh", f"ssh -p {to.port}" if to.port else "ssh"),
        *("--", f"{folder}/", f"{to.host}:{to.hub}/{folder.name}/"),
    ]
    with memory_file() as stderr:
        # The progress line overwrites itself after \r, which ends a line of text.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**environ, "LC_ALL": "C"},
            text=True,
            errors="replace",
        ) as process:
            try:
                for line in process.stdout or ():
                    if copied := re.match(r"\s*(\d+)\s+\d+%", line):
                        report(TransferProgress(f"{model} to {to.node}", min(int(copied[1]), total), total))
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            stderr.seek(0)
            raise _error(model, to, process.returncode, stderr.read().decode(errors="replace"))


def _error(model: str, to: CopyDestination, code: int, stderr: str) -> SourceError:
    if "rsync: command not found" in stderr or "rsync: not found" in stderr:
        return SourceError(
            f"{model} cannot be copied to {to.node}: the node has no rsync",
            hint="run `sudo apt-get install rsync` on the node",
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("rsync error:")]
    reason = "; ".join(lines[-2:]) or f"rsync ended with {code}"
    port = f" -p {to.port}" if to.port else ""
    return SourceError(
        f"{model} cannot be copied to {to.node}: {reason}",
        hint=f"check that `ssh{port} {to.host}` works, then run the command again; files that have arrived are kept",
    )
