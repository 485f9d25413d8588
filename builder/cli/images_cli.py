"""The command line of builder list and builder show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.base.words import ago_text, size_text
from builder.cli import output
from builder.cli.options import Context, json_and_context, names
from builder.cli.output import data, print_json, print_line, print_note, print_result

if TYPE_CHECKING:
    from builder.base.hub_cache import CachedModel
    from builder.base.project import Project
    from builder.commands.listing import ShownImage
    from builder.evidence.standing import ImageEvidence
    from builder.lock.model import ImageName, Lock, Model, Pairing, Status
    from builder.numbers.status import ImageOverview, ImageRow


@click.command("list")
@click.argument("target", required=False, shell_complete=names("definitions", "models", "recipes"))
@click.option("--models", is_flag=True, help="Show a row for each model, with its cached files and earlier images.")
@json_and_context
def list_(context: Context, target: str | None, models: bool, as_json: bool) -> None:
    """Show the numbered images and the models paired with each.

    TARGET limits the list to a definition, a repository, a model, or the image of a recipe.
    """
    workspace = context.workspace()
    lock, overview = commands.listing.list_images(workspace, target)
    lost = commands.listing.lost_lock(workspace)
    if as_json:
        if lost:
            print_note(lost)
        cached = commands.listing.cached_models(workspace, lock)
        evidence = commands.listing.evidence(workspace, target, lock, overview)
        upgrades = commands.listing.interrupted_upgrades(workspace, lock)
        print_json(
            {
                "images": [image_document(row, evidence.get(row.name)) for row in overview.rows],
                "models": [_model(name, model, cached.get(name)) for name, model in sorted(lock.models.items())],
                "interrupted_upgrades": list(map(output.interrupted_upgrade, upgrades)),
            }
        )
        return
    for note in (*_notes(lock, overview, target), *map(str, commands.listing.interrupted_upgrades(workspace, lock))):
        print_note(note)
    if lost or not overview.rows:
        empty = "no images yet; to build the first: `builder build TARGET`"
        if target is not None:
            empty = f"no images of {target} yet; to build the first: `builder build {target}`"
        print_result(lost or f"{empty}; to number an existing image: `builder adopt IMAGE`")
        return
    evidence = commands.listing.evidence(workspace, target, lock, overview)
    for problem in (problem for each in evidence.values() for problem in each.problems):
        print_note(f"not counted: {problem}")
    if models:
        cached = commands.listing.cached_models(workspace, lock)
        rows = [
            row
            for name, model in sorted(lock.models.items())
            for row in _model_rows(name, model, cached.get(name), evidence)
        ]
        output.print_table(("MODEL", "IMAGE", "STATUS", "NOTE"), rows)
    else:
        rows = [shown for row in overview.rows for shown in _image_rows(row, lock, evidence.get(row.name))]
        output.print_table(("IMAGE", "BUILT", "SIZE", "VLLM", "STATE", "MODELS"), rows)


def _notes(lock: Lock, overview: ImageOverview, target: str | None) -> Iterator[str]:
    if overview.engine_error:
        yield f"the engine does not answer, so the states are unknown: {overview.engine_error}"
    for repository, is_unnumbered in overview.stray.items():
        fault = f"{repository}:latest does not point to its current number"
        corrects = f"to correct the tag: `builder promote {repository}:{lock.images[repository].current}`"
        adopts = f"; to keep the image that has the tag now, give it a number: `builder adopt {repository}`"
        yield f"{fault}; {corrects}{adopts if is_unnumbered else ''}"
    for repository, owner in overview.foreign.items():
        yield f"{repository}:latest is not the current image of this project; it belongs to {owner}"
    for image, users in overview.upstream.gone.items() if target is None else ():
        name, day = image.partition("@")[0], overview.upstream.at[:10]
        yield f"{name} was missing from its registry on {day}: the image is {users}"


def _image_rows(row: ImageRow, lock: Lock, evidence: ImageEvidence | None) -> list[tuple[str, ...]]:
    """The row of an image, and rows for its notes. The status is left out if it is `untested` but one of its models has
    another status. The standing is the most serious one of its models."""
    vllm = row.image.versions.get("vllm")
    models = [(model, lock.models[model].pairing.status) for model in row.models]
    shows_status = row.image.status != "untested" or all(status == "untested" for _, status in models)
    place: str = row.state if row.state != "present" else ""
    if row.image.digest and row.state in {"present", "missing"}:  # according to images.lock: no registry is contacted
        place = "pushed" if row.state == "present" else "in registry"
    words = [
        place,
        "current" if row.current else "",
        output.mark(row.image.status) if shows_status else "",
        "kept" if row.image.pinned else "",
        "adopted" if row.image.adopted else "",
        "only here" if row.only_here else "",
        (evidence.standing if evidence else "") or "",
    ]
    image = (
        str(row.name),
        ago_text(row.image.built),
        size_text(row.image.size),
        vllm.version if vllm else "-",
        ", ".join(map(output.word, filter(None, words))),
        ", ".join(_serves(model, status, row, evidence) for model, status in models) or "-",
    )
    notes = [f"note: {row.image.note}"] if row.image.note else []
    notes += [f"not checked: {name}: {reason}" for name, reason in row.image.unchecked.items()]
    for model, record in sorted(lock.models.items()):
        before = record.previous[0] if record.previous else None
        if before and before.image == row.name and before.note.startswith("put back on "):
            notes.append(f"{model} was {before.note}")
    return [image, *(("", "", "", "", "", note) for note in notes)]


def _serves(model: str, status: Status, row: ImageRow, evidence: ImageEvidence | None) -> str:
    """A model, with its status and standing on the image if they differ from the image's."""
    own = [status] if status not in {"untested", row.image.status} else []
    words = ", ".join(word for word in (*own, output.beside_model(evidence, model)) if word)
    return f"{model} ({words})" if words else model


def _model_rows(
    name: str, model: Model, cached: CachedModel | None, evidence: Mapping[ImageName, ImageEvidence]
) -> list[tuple[str, ...]]:
    """The rows of a model: its pairing, the state of its cached files, and its previous pairings, the latest first."""

    def status(pairing: Pairing) -> str:
        standing = evidence[pairing.image].standing_with(name) if pairing.image in evidence else None
        return ", ".join(word for word in (output.mark(pairing.status), output.word(standing)) if word)

    now, *before = ((str(p.image), status(p), p.note or "-") for p in (model.pairing, *model.previous))
    state = "  not downloaded"
    if cached:
        revision = f" at {cached.revision[:7]}" if cached.revision else ""
        state = f"  {size_text(cached.size)}{revision}{', incomplete' if cached.incomplete else ''}"
    return [(name, *now), (state, "", "", ""), *(("  before", *pairing) for pairing in before)]


_ROW = (
    "image=name repository=name.repository number=name.number definition=image.definition? adopted=image.adopted.image "
    "current pinned=image.pinned state only_here"
)
_IMAGE = "status note unchecked built pruned platform size fingerprint digest"


def image_document(row: ImageRow, evidence: ImageEvidence | None) -> dict[str, Any]:
    """A numbered image as JSON, with its evidence if there is any."""
    versions = {source: data(row.image.versions.get(source), "version commit") for source in ("vllm", "flashinfer")}
    return {
        **data(row, _ROW),
        **data(row.image, _IMAGE),
        **versions,
        "mods": list(row.image.mods),
        "models": row.models,
        "evidence": evidence
        and {
            **data(evidence, "standing pairings(model standing why run=run.file)"),
            "runs": commands.listing.run_documents(evidence),
            "problems": list(map(str, evidence.problems)),
        },
    }


def _model(name: str, model: Model, cached: CachedModel | None) -> dict[str, Any]:
    pairing = "revision image recipe status note"
    return {
        "model": name,
        **data(model.pairing, pairing),
        "previous": [before.image for before in model.previous],
        "history": data(model.previous, pairing),
        "cached": cached is not None and not cached.incomplete,
        "cached_size": cached.size if cached else None,
        "cached_revision": cached.revision if cached else None,
    }


_FIRST_START = (
    "compiles FlashInfer's kernels, which this image lacks; the compilers need minutes, and up to 8 GiB each"
    " (MAX_JOBS limits their number)"
)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.option("--packages", is_flag=True, help="Also list the Python packages in the image.")
@json_and_context
def show(context: Context, image: str, packages: bool, as_json: bool) -> None:
    """Show everything that is in an image.

    IMAGE is a number such as vllm-node:7. A repository or definition means its current image.
    """
    shown = commands.listing.show_image(context.workspace(), image)
    if as_json:
        print_json(_image_json(shown, context.project))
        return
    output.print_facts(_facts(shown, context.project))
    if shown.evidence:
        from builder.cli import evidence_cli

        for line in evidence_cli.of_image(shown.evidence):
            print_line(line)
    if packages:
        print_line()
        output.print_table(("PACKAGE", "VERSION"), list(shown.packages.items()))


def _facts(shown: ShownImage, project: Project) -> list[tuple[str, str]]:
    from builder.cli.evidence_cli import standings

    row, image = shown.row, shown.row.image
    mods = [f"{name} ({digest})" for name, digest in image.mods.items()]
    base = _takes(shown, "base")
    count = len(shown.packages)
    kept = shown.steps or shown.adopted
    facts = [
        ("image", str(row.name)),
        ("state", ", ".join([row.state, *(["current"] if row.current else []), *(["kept"] if image.pinned else [])])),
        ("status", output.mark(image.status) + (f": {image.note}" if image.note else "")),
        ("pruned", f"{image.pruned} ({words.ago_text(image.pruned)})" if image.pruned else ""),
        ("models", ", ".join(row.models) or "none"),
        ("evidence", standings(shown.evidence) if shown.evidence else ""),
        ("recipe", image.recipe or "none"),
        ("definition", image.definition),
        ("adopted from", ", ".join((image.adopted.image, *image.adopted.digests)) if image.adopted else ""),
        ("platform", image.platform),
        ("adopted" if image.adopted else "built", f"{image.built} ({words.ago_text(image.built)})"),
        ("size", words.size_text(image.size)),
        ("GPU checks", _gpu_checks(shown)),
        *(("not checked", f"{name}: {reason}") for name, reason in image.unchecked.items()),
        *((source, v.version + (f" ({v.commit})" if v.commit else "")) for source, v in image.versions.items()),
        ("base", "" if image.adopted else f"{base.get('image', 'unknown')} {base.get('content', '')}".strip()),
        ("mods", ", ".join(mods) or ("" if image.adopted else "none")),
        ("packages", f"{count} Python packages (--packages lists them)" if count else "unknown"),
        ("next start", _next_start(shown)),
        ("not known", shown.adopted.unknown if shown.adopted else ""),
        ("fingerprint", image.fingerprint),
        ("input hash", image.input_hash),
        ("build directory", project.relative(shown.directory) if kept else "gone"),
    ]
    return [(name, value) for name, value in facts if value]


def _next_start(shown: ShownImage) -> str:
    if shown.warm_from:
        shared = "" if shown.warm_from == shown.row.name else f", with the compile caches of {shown.warm_from}"
        return f"warm{shared}"
    return _FIRST_START if shown.compiles_kernels else ""


def _gpu_checks(shown: ShownImage) -> str:
    image = shown.row.image
    if image.gpu:
        return f"passed on {image.gpu}"
    never = shown.uses_gpu and not image.adopted and "gpu" not in image.unchecked
    return "never run: no GPU was present during the build" if never else ""


def _image_json(shown: ShownImage, project: Project) -> dict[str, Any]:
    return {
        **image_document(shown.row, shown.evidence),
        **data(shown.row.image, "recipe gpu input_hash?"),
        "base": _takes(shown, "base"),
        "mod_hashes": shown.row.image.mods,
        "warm": shown.warm_from is not None,
        **data(shown, "packages compiles_kernels labels=adopted.labels build_metadata=adopted.metadata"),
        "build_directory": project.relative(shown.directory) if shown.steps or shown.adopted else None,
    }


def _takes(shown: ShownImage, step: str) -> dict[str, str]:
    return next((each.takes for each in shown.steps if each.name == step), {})
