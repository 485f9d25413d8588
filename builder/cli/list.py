"""``builder list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import table
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_note, print_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import Lock, Model, Pairing, Status
    from builder.numbered.status import ImageOverview, ImageRow
    from builder.storage.huggingface_cache import CachedModel


@click.command("list")
@click.argument("target", required=False, shell_complete=names("definitions", "models", "recipes"))
@click.option("--models", is_flag=True, help="A row for each model, what the cache has of it, and the images before.")
@json_option
@pass_context
def list_(context: Context, target: str | None, models: bool, as_json: bool) -> None:
    """Show the numbered images and the models paired with each.

    TARGET limits the list to a definition, a repository, a model, or the image of a recipe.
    """
    from builder.commands import listing

    workspace = context.workspace()
    lock, overview = listing.run(workspace, target)
    lost = listing.lost_lock(workspace)
    if as_json:
        if lost:
            print_note(lost)
        held = listing.cached_models(workspace, lock)
        print_json(_document(lock, overview, held))
        return
    if overview.engine_error:
        print_note(f"no engine answers, so states are unknown: {overview.engine_error}")
    for repository in overview.stray:
        print_note(f"{repository}:latest is not its current number; the next build or rollback mends that")
    if lost:
        print_result(lost)
    elif not overview.rows:
        print_result("no images yet: `builder build TARGET` makes the first")
    elif models:
        held = listing.cached_models(workspace, lock)
        rows = [row for name, model in sorted(lock.models.items()) for row in _model_rows(name, model, held.get(name))]
        table.print_table(("MODEL", "IMAGE", "STATUS", "NOTE"), rows)
    else:
        rows = [shown for row in overview.rows for shown in _image_rows(row, lock)]
        table.print_table(("IMAGE", "BUILT", "SIZE", "VLLM", "STATE", "MODELS"), rows)


def _document(lock: Lock, overview: ImageOverview, held: Mapping[str, CachedModel]) -> dict[str, Any]:
    """The list for programs."""
    return {
        "images": [image_document(row) for row in overview.rows],
        "models": [_model(name, model, held.get(name)) for name, model in sorted(lock.models.items())],
    }


def _image_rows(row: ImageRow, lock: Lock) -> list[tuple[str, ...]]:
    """The image, and its note below. `untested` is said of it where nothing is said of a model that it serves."""
    vllm = row.image.versions.get("vllm")
    models = [(model, lock.models[model].pairing.status) for model in row.models]
    is_told = row.image.status != "untested" or all(status == "untested" for _, status in models)
    said = [_where(row), "current" if row.current else "", row.image.status if is_told else ""]
    said.append("pinned" if row.image.pinned else "")
    image = (
        str(row.name),
        humanize.ago(row.image.built),
        humanize.size(row.image.size),
        vllm.version if vllm else "-",
        ", ".join(word for word in said if word),
        ", ".join(_serves(model, status, row) for model, status in models) or "-",
    )
    return [image, *([("", "", "", "", "", f"note: {row.image.note}")] if row.image.note else [])]


def _serves(model: str, status: Status, row: ImageRow) -> str:
    """A model, with how it does on the image where that was said of it alone."""
    return f"{model} ({status})" if status not in {"untested", row.image.status} else model


def _where(row: ImageRow) -> str:
    """Where the image is, in words; nothing is asked of the registry."""
    if row.image.digest is None or row.state not in {"present", "missing"}:
        return row.state if row.state != "present" else ""
    return "pushed" if row.state == "present" else "in registry"


def _model_rows(name: str, model: Model, held: CachedModel | None) -> list[tuple[str, ...]]:
    """The pairing now, below it what the cache has of the model, and those before, the latest first."""
    now, *before = ((str(p.image), p.status, p.note or "-") for p in (model.pairing, *model.previous))
    return [(name, *now), (_cached(held), "", "", ""), *(("  before", *one) for one in before)]


def _cached(held: CachedModel | None) -> str:
    if held is None:
        return "  not downloaded"
    revision = f" at {held.revision[:7]}" if held.revision else ""
    return f"  {humanize.size(held.size)}{revision}{', incomplete' if held.incomplete else ''}"


def image_document(row: ImageRow) -> dict[str, Any]:
    """One numbered image for programs."""
    image = row.image
    return {
        "image": str(row.name),
        "repository": row.name.repository,
        "number": row.name.number,
        "definition": image.definition,
        "current": row.current,
        "pinned": image.pinned,
        "state": row.state,
        "status": image.status,
        "note": image.note,
        "built": image.built,
        "pruned": image.pruned,
        "platform": image.platform,
        "size": image.size,
        "fingerprint": image.fingerprint,
        "digest": image.digest,
        "vllm": _version(row, "vllm"),
        "flashinfer": _version(row, "flashinfer"),
        "mods": list(image.mods),
        "models": list(row.models),
    }


def _version(row: ImageRow, source: str) -> dict[str, str | None] | None:
    found = row.image.versions.get(source)
    return {"version": found.version, "commit": found.commit} if found else None


def _model(name: str, model: Model, held: CachedModel | None) -> dict[str, Any]:
    return {
        "model": name,
        **_pairing(model.pairing),
        "previous": [str(before.image) for before in model.previous],
        "history": [_pairing(before) for before in model.previous],
        "cached": held is not None and not held.incomplete,
        "cached_size": held.size if held else None,
        "cached_revision": held.revision if held else None,
    }


def _pairing(pairing: Pairing) -> dict[str, Any]:
    return {
        "revision": pairing.revision,
        "image": str(pairing.image),
        "recipe": pairing.recipe,
        "status": pairing.status,
        "note": pairing.note,
    }
