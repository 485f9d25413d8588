"""``builder show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import standing_text, table
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line

if TYPE_CHECKING:
    from builder.commands.show import ShownImage
    from builder.lock.model import NumberedImage
    from builder.project import Project

_FIRST_START = (
    "compiles FlashInfer's kernels, which this image lacks: minutes, and up to 8 GiB for each of MAX_JOBS compilers"
)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.option("--packages", is_flag=True, help="List the Python packages, too.")
@json_option
@pass_context
def show(context: Context, image: str, packages: bool, as_json: bool) -> None:
    """Show everything that is in an image.

    IMAGE is a repository or a definition; without a number, its current image.
    """
    from builder.commands import show

    shown = show.run(context.workspace(), image)
    if as_json:
        print_json(_document(shown, context.project))
        return
    table.print_facts(_facts(shown, context.project))
    if shown.evidence:
        from builder.cli import evidence_text

        for line in evidence_text.of_image(shown.evidence):
            print_line(line)
    if packages:
        print_line()
        table.print_table(("PACKAGE", "VERSION"), list(shown.packages.items()))


def _facts(shown: ShownImage, project: Project) -> list[tuple[str, str]]:
    row, image = shown.row, shown.row.image
    base = _takes(shown, "base")
    count = len(shown.packages)
    kept = shown.steps or shown.adopted
    facts = [
        ("image", str(row.name)),
        ("state", ", ".join([row.state, *(["current"] if row.current else []), *(["pinned"] if image.pinned else [])])),
        ("status", standing_text.mark(image.status) + (f": {image.note}" if image.note else "")),
        ("pruned", f"{image.pruned} ({humanize.ago(image.pruned)})" if image.pruned else ""),
        ("models", ", ".join(row.models) or "none"),
        ("evidence", _standings(shown)),
        ("recipe", image.recipe or "none"),
        ("definition", image.definition),
        ("adopted from", ", ".join((image.adopted.image, *image.adopted.digests)) if image.adopted else ""),
        ("platform", image.platform),
        ("adopted" if image.adopted else "built", f"{image.built} ({humanize.ago(image.built)})"),
        ("size", humanize.size(image.size)),
        ("GPU checks", _gpu_checks(shown)),
        *(("not checked", f"{name}: {reason}") for name, reason in image.unchecked.items()),
        *((source, v.version + (f" ({v.commit})" if v.commit else "")) for source, v in image.versions.items()),
        ("base", "" if image.adopted else f"{base.get('image', 'unknown')} {base.get('content', '')}".strip()),
        ("mods", "" if image.adopted and not image.mods else _mods(image)),
        ("packages", f"{count} Python packages (--packages lists them)" if count else "unknown"),
        ("first start", _FIRST_START if shown.compiles_kernels else ""),
        ("not known", shown.adopted.unknown if shown.adopted else ""),
        ("fingerprint", image.fingerprint),
        ("witnesses", _witnesses(shown)),
        ("built again", image.rebuilt or ""),
        ("input hash", image.input_hash),
        ("build folder", project.relative(shown.directory) if kept else "gone"),
    ]
    return [(name, value) for name, value in facts if value]


def _standings(shown: ShownImage) -> str:
    if shown.evidence is None:
        return ""
    from builder.cli import evidence_text

    return evidence_text.standings(shown.evidence)


def _witnesses(shown: ShownImage) -> str:
    if not (count := len(shown.witnesses.statements)):
        return ""
    return f"{humanize.counted(count, 'machine')} made the same content, {shown.witnesses.signed} signed"


def _gpu_checks(shown: ShownImage) -> str:
    image = shown.row.image
    if image.gpu:
        return f"passed on {image.gpu}"
    never = shown.uses_gpu and not image.adopted and "gpu" not in image.unchecked
    return "never run: it was built beside no GPU" if never else ""


def _mods(image: NumberedImage) -> str:
    return ", ".join(f"{name} ({digest[7:19]})" for name, digest in image.mods.items()) or "none"


def _document(shown: ShownImage, project: Project) -> dict[str, Any]:
    from builder.cli.list import image_document

    return {
        **image_document(shown.row, shown.evidence),
        "recipe": shown.row.image.recipe,
        "gpu": shown.row.image.gpu,
        "input_hash": shown.row.image.input_hash or None,
        "base": _takes(shown, "base"),
        "mod_hashes": shown.row.image.mods,
        "packages": shown.packages,
        "compiles_kernels": shown.compiles_kernels,
        "labels": dict(shown.adopted.labels) if shown.adopted else None,
        "build_metadata": dict(shown.adopted.metadata) if shown.adopted else None,
        "build_directory": project.relative(shown.directory) if shown.steps or shown.adopted else None,
    }


def _takes(shown: ShownImage, step: str) -> dict[str, str]:
    return next((each.takes for each in shown.steps if each.name == step), {})
