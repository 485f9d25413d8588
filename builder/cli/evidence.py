"""``builder evidence``."""

from __future__ import annotations

from pathlib import Path

import click

from builder import humanize
from builder.cli.command_table import Group
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result


@click.group(cls=Group)
def evidence() -> None:
    """Give the runs of your images to others, and take theirs.

    Own and foreign runs are told apart everywhere, and foreign ones count for nothing here: they are shown.
    """


@evidence.command("export")
@click.argument("images", nargs=-1, metavar="[IMAGE]…", shell_complete=names("numbered", "definitions"))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default="evidence.json",
    show_default=True,
    metavar="FILE",
    help="The file to write.",
)
@json_option
@pass_context
def export(context: Context, images: tuple[str, ...], output: Path, as_json: bool) -> None:
    """Write the project's own runs into a file.

    Those of the images named, numbers or whole repositories, or of all. The file says of each image what its content
    is: who takes it needs the same image, under whatever number.
    """
    from builder.commands import evidence_export

    shared = evidence_export.run(context.project, images, output)
    if as_json:
        counts = [{"image": each.image, "runs": len(each.runs)} for each in shared]
        print_json({"file": str(output), "images": counts})
        return
    for each in shared:
        print_result(f"{each.image}: {humanize.counted(len(each.runs), 'run')}")
    print_result(f"written: {output}")


@evidence.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--from", "origin", default="", metavar="NAME", help="Whose they are; the file's name, unless given.")
@json_option
@pass_context
def import_(context: Context, file: Path, origin: str, as_json: bool) -> int:
    """Keep the runs in a file as those of others.

    They are put beside the images of the same content. Nothing in the file can make them the project's own.

    \b
    Ends with
      0  if runs were taken, or were here already
      1  if no image here has the content of those in the file
    """
    from builder.commands import evidence_import

    taken = evidence_import.run(context.project, file, origin)
    if as_json:
        rows = [
            {
                "image": str(each.image) if each.image else None,
                "theirs": each.theirs,
                "runs": each.count,
                "new": each.new,
            }
            for each in taken
        ]
        print_json({"images": rows})
    else:
        for each in taken:
            count = humanize.counted(each.count, "run")
            taken_for = f"for {each.image}, {each.new} of them new" if each.image else ""
            print_result(f"{each.theirs}: {count} {taken_for or 'not taken: no image here has its content'}")
    return int(not any(each.image for each in taken))
