"""``builder export-image`` and ``builder import-image``."""

from __future__ import annotations

from pathlib import Path

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result
from builder.cli.verbosity import verbosity_options

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("export-image")
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
@verbosity_options
@json_option
@pass_context
def export_image(context: Context, image: str, file: Path, force: bool, as_json: bool) -> None:
    """Write a numbered image into a file.

    For a machine without a network: `builder import-image FILE` imports it there. FILE is an OCI archive that `docker
    load` reads as well, with the build directory, the entry of images.lock and the evidence beside the image. FILE
    appears once it is complete.
    """
    from builder.cli import progress
    from builder.commands import export_image as command

    with progress.reporter() as report:
        result = command.run(context.workspace(report), image, file, replace=force)
    if as_json:
        print_json({"image": str(result.image), "file": str(file), "size": result.size, "layers": result.layers})
        return
    print_result(
        f"{result.image} is in {file}: {humanize.counted(result.layers, 'layer')}, {humanize.size(result.size)}"
    )


@click.command("import-image")
@click.argument("file", metavar="FILE", type=_FILE)
@verbosity_options
@json_option
@pass_context
def import_image(context: Context, file: Path, as_json: bool) -> None:
    """Import a numbered image from a file.

    FILE was written by `builder export-image`. The image gets its number only if every byte of it is what was exported;
    its build directory and its entry in images.lock come with it, and its evidence as that of others. The current
    number and the pairings of models stay as they are: the number becomes current only if the repository has no current
    one, and serves only models that no image serves yet. A number that is another image here is not overwritten.
    """
    from builder.cli import progress
    from builder.commands import import_image as command

    with progress.reporter() as report:
        result = command.run(context.workspace(report), file)
    if as_json:
        print_json(
            {
                "image": str(result.image),
                "already": result.already,
                "layers": result.layers,
                "size": result.bytes,
                "current": result.current,
                "models": list(result.models),
                "evidence": result.evidence,
            }
        )
        return
    outcome = (
        "is here already"
        if result.already
        else f"imported, {humanize.counted(result.layers, 'layer')}, {humanize.size(result.bytes)}"
    )
    print_result(f"{result.image} {outcome}")
    if result.models:
        print_result(f"it serves {', '.join(result.models)}")
    if result.evidence:
        print_result(f"{humanize.counted(result.evidence, 'run')} of others came along: `builder show {result.image}`")
    if not result.current:
        print_result(f"`builder promote {result.image}` makes it current")
