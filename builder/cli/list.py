"""``builder list``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from builder.cli import table, words
from builder.cli.complete import names
from builder.cli.context import Context, json_option, pass_context

if TYPE_CHECKING:
    from builder.lock.model import Lock, Model
    from builder.status import Overview, Row


@click.command("list")
@click.argument("target", required=False, shell_complete=names("definitions", "models", "recipes"))
@click.option("--models", is_flag=True, help="One row a model: its image, status and the images before.")
@json_option
@pass_context
def list_(context: Context, target: str | None, models: bool, as_json: bool) -> None:
    """Show the numbered images and the models paired with each.

    TARGET limits the list to a definition, a repository, a model, or the image of a recipe.
    """
    from builder import listing

    lock, overview = listing.run(context.project, context.endpoint, target)
    if as_json:
        click.echo(json.dumps(document(lock, overview), indent=1, ensure_ascii=False))
        return
    if overview.engine_error:
        click.echo(f"no engine answers, so states are unknown: {overview.engine_error}", err=True)
    for repository in overview.stray:
        click.echo(f"{repository}:latest is not its current number; the next build or rollback mends that", err=True)
    if not lock.images:
        click.echo("no images yet: `builder build TARGET` makes the first")
    elif models:
        _print(("MODEL", "IMAGE", "STATUS", "BEFORE"), [_model_row(n, m) for n, m in sorted(lock.models.items())])
    else:
        _print(("IMAGE", "BUILT", "SIZE", "VLLM", "STATE", "MODELS"), [_image_row(row) for row in overview.rows])


def document(lock: Lock, overview: Overview) -> dict[str, Any]:
    """The list for programs, ``schema_version`` 1."""
    return {
        "schema_version": 1,
        "images": [image_document(row) for row in overview.rows],
        "models": [_model(name, model) for name, model in sorted(lock.models.items())],
    }


def _print(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    for number, line in enumerate(table.lines(headings, rows, table.width())):
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _image_row(row: Row) -> tuple[str, ...]:
    vllm = row.image.versions.get("vllm")
    said = [_where(row), "current" if row.current else "", row.image.status]
    said.append("pinned" if row.image.pinned else "")
    return (
        str(row.name),
        words.ago(row.image.built),
        words.size(row.image.size),
        vllm.version if vllm else "-",
        ", ".join(word for word in said if word),
        ", ".join(row.models) or "-",
    )


def _where(row: Row) -> str:
    """Where the image is, in words; nothing is asked of the registry."""
    if row.image.digest is None or row.state not in {"present", "missing"}:
        return row.state if row.state != "present" else ""
    return "pushed" if row.state == "present" else "in registry"


def _model_row(name: str, model: Model) -> tuple[str, ...]:
    before = ", ".join(str(pairing.image) for pairing in model.previous)
    return (name, str(model.pairing.image), model.pairing.status, before or "-")


def image_document(row: Row) -> dict[str, Any]:
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
        "platform": image.platform,
        "size": image.size,
        "fingerprint": image.fingerprint,
        "digest": image.digest,
        "vllm": _version(row, "vllm"),
        "flashinfer": _version(row, "flashinfer"),
        "mods": list(image.mods),
        "models": list(row.models),
    }


def _version(row: Row, source: str) -> dict[str, str | None] | None:
    found = row.image.versions.get(source)
    return {"version": found.version, "commit": found.commit} if found else None


def _model(name: str, model: Model) -> dict[str, Any]:
    pairing = model.pairing
    return {
        "model": name,
        "revision": pairing.revision,
        "image": str(pairing.image),
        "recipe": pairing.recipe,
        "status": pairing.status,
        "note": pairing.note,
        "previous": [str(before.image) for before in model.previous],
    }
