"""This page defines the command line of builder adopt and builder prune."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from builder import commands
from builder.base import words
from builder.cli import output, progress
from builder.cli.options import Context, json_and_context, parse_age, repeated, without
from builder.cli.output import agreed, data, print_json, print_line, print_note, print_result, styled

if TYPE_CHECKING:
    from builder.commands.keeping import AdoptedImage, Pruned, PrunePlan


@click.command()
@click.argument("image", metavar="IMAGE[:TAG]")
@click.option(
    "--as", "repository", metavar="REPOSITORY", help="Number the image in this repository instead of its own."
)
@repeated("--model", "models", metavar="MODEL", help="Pair this model with the image. Repeatable.")
@without("--no-promote", "promote", "Do not make the image current.")
@json_and_context
def adopt(
    context: Context, image: str, repository: str | None, models: tuple[str, ...], promote: bool, as_json: bool
) -> None:
    """Give a number to an image that was built elsewhere.

    IMAGE is a name, a digest or an id in the engine. Nothing is built or copied. The image gets the next number of its
    repository and becomes the current image. A container without a network reads the contents of the image. An image
    without vLLM cannot serve a model: with --model, nothing is recorded.
    """
    with progress.showing(f"reading {image}"):
        result = commands.keeping.adopt_image(context.workspace(), image, repository, models, promote=promote)
    if not as_json:
        _print(image, result)
        return
    adoption = result.record.adopted
    content = {
        **data(result, "image already restored adopted=record.adopted.image"),
        "digests": adoption.digests if adoption else [],
        **data(result.record, "platform fingerprint size"),
        "versions": dict(sorted(result.record.versions.items())),
        **data(result, "packages models current unknown"),
    }
    print_json(content)


def _print(image: str, result: AdoptedImage) -> None:
    if not result.already:
        print_result(styled(f"adopted {image} as {result.image}", bold=True) + f": {_contents(result)}")
    elif result.restored:
        print_result(f"{image} is {result.image}, which was missing from this engine and has its tag again")
    else:
        print_result(f"{image} is already {result.image}")
    for model in result.models:
        print_result(f"  paired with {model}")
    if result.current != result.image:
        go = f"builder promote {result.image}"
        print_result(f"  the current image is {result.current}; to use this one: `{go}`")
    if result.unknown:
        print_note(f"note: {result.unknown}")


def _contents(result: AdoptedImage) -> str:
    sources = (f"{name} {version.text}" for name, version in sorted(result.record.versions.items(), reverse=True))
    packages = f"{result.packages} Python packages" if result.packages else ""
    parts = (words.size_text(result.record.size), result.record.platform, *sources, packages)
    return ", ".join(part for part in parts if part)


KEEP = 3


@click.command()
@click.option("--keep", type=click.IntRange(min=0), default=KEEP, show_default=True, metavar="N",
              help="Keep the N newest numbers of each image.")  # fmt: skip
@click.option(
    "--older-than", callback=parse_age, metavar="AGE", help="Remove only images that are older than AGE: 30d, 12h, 2w."
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, but remove nothing.")
@json_and_context
def prune(context: Context, keep: int, older_than: timedelta | None, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove images that are no longer needed, and build leftovers.

    An image stays if it is current, kept (`builder keep`), paired with a model, used by a container, or among the N
    newest numbers. The base of an image that stays also stays. The command never removes anything that this project did
    not build.

    With an image, the command removes its compile caches on this machine. The command also removes fetched files that
    no pin or mod names, and old revisions of checkpoints that no pairing names. A removed number stays in images.lock
    and can be rebuilt. The command asks before it removes anything. Without a terminal, it removes only with --yes.
    """
    with progress.showing("looking for images to remove"):
        pruning = commands.keeping.plan_prune(context.workspace(), keep, older_than or timedelta(0), datetime.now(UTC))
    if not as_json:
        _print_plan(pruning)
    result = None
    if not pruning.is_empty and not dry_run and agreed("remove these?", yes=yes, as_json=as_json):
        with progress.showing("removing"):
            result = commands.keeping.prune_images(context.workspace(), pruning)
    if as_json:
        removed = data(result, "images=gone compiled refused build_cache=cache")
        print_json(
            {
                "going": data(pruning.going, "image=name built frees holder"),
                "kept": [{"image": name, "reasons": reasons} for name, reasons in pruning.kept.items()],
                "nameless": pruning.nameless,
                "compiled": data(pruning.compiled, "image=name folder frees=size"),
                "checkpoints": data(pruning.checkpoints, "checkpoint=name revision? frees=size"),
                "fetched": sum(pruning.fetched.values()),
                "frees": pruning.frees,
                "removed": removed,
            }
        )
    elif result:
        _print_removed(result)
    elif not pruning.is_empty:
        print_result("nothing was removed" + ("" if dry_run else "; --yes removes without asking"))


def _print_plan(pruning: PrunePlan) -> None:
    rows = [(str(name), ", ".join(reasons)) for name, reasons in pruning.kept.items()]
    if rows:
        output.print_table(("STAYS", "BECAUSE"), rows)
    if pruning.is_empty:
        print_result("nothing to remove")
        return
    print_line()
    going = [(str(image.name), words.ago_text(image.built), words.size_text(image.frees)) for image in pruning.going]
    if going:
        output.print_table(("GOES", "BUILT", "FREES"), going)
    for image in pruning.going:
        if image.holder:
            print_result(f"{image.name} is only recorded as pruned, because {image.holder} also has it")
    if pruning.nameless:
        print_result(
            f"and {words.counted(len(pruning.nameless), 'unnamed image')} that builds of this project left behind"
        )
    further = [
        *((f"the compile caches of {each.name}", each.size, f" in {each.folder}") for each in pruning.compiled),
        *((each.title, each.size, "") for each in pruning.checkpoints),
    ]
    if pruning.fetched:
        further.append(("files fetched for pins and mods that no longer name them", sum(pruning.fetched.values()), ""))
    for what, size, place in further:
        print_result(f"and {what}: {words.size_text(size)}{place}")
    layers = "unpacked layers, each counted once; compressed copies are freed as well"
    print_result(
        f"frees {words.size_text(pruning.frees)}" + (f": {layers}" if pruning.going or pruning.nameless else "")
    )


def _print_removed(result: Pruned) -> None:
    for line in result.refused:
        print_result(line)
    gone = f": {', '.join(map(str, result.gone))}" if result.gone else ""
    print_result(f"removed {words.counted(len(result.gone), 'image')}{gone}")
    if result.compiled:
        print_result(f"removed the compile caches of {', '.join(map(str, result.compiled))}")
    if result.cache:
        print_result(f"BuildKit freed {words.size_text(result.cache)} of its own copies")
