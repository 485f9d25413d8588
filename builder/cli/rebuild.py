"""``builder rebuild``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.options import parse_settings, set_option
from builder.cli.output import print_result
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.building.image_differences import Kind
    from builder.commands.rebuild import Rebuilt

_MOST_PATHS = 20
_KINDS: dict[Kind, str] = {
    "time": "times of change alone",
    "bytecode": "bytecode",
    "compiled": "compiled objects",
    "package": "records of packages",
    "file": "other files",
}


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.option(
    "--accept-equivalent",
    is_flag=True,
    help="Take the new image for the number if nothing but times and bytecode differ.",
)
@click.option("--witness", is_flag=True, help="State in evidence/ that this machine made the same content.")
@click.option("--sign-with", "key", type=click.Path(path_type=Path), metavar="KEY", help="Sign that with an SSH key.")
@set_option
@verbosity_options
@pass_context
def rebuild(
    context: Context,
    image: str,
    accept_equivalent: bool,
    witness: bool,
    key: Path | None,
    settings: tuple[str, ...],
) -> int:
    """Rebuild a number from its build directory.

    A number that is missing from the engine gets its tag back if the content is the same. If the content differs, the
    new image is kept as IMAGE:N-rebuilt, the differences are listed by layer, path and kind, and the exit code is 1. A
    number that was proven is proven again then. --set takes build_jobs alone.
    """
    from builder.cli import progress
    from builder.commands import rebuild as command

    with progress.reporter() as report:
        workspace = context.workspace(report)
        result = command.run(
            workspace,
            image,
            parse_settings(settings),
            accept_equivalent=accept_equivalent,
            witness=witness or key is not None,
            key=key,
        )
    took = f"in {humanize.duration(result.seconds)}"
    if result.same:
        print_result(
            f"{result.image} built again {took}: the same content" + (", tagged again" if result.restored else "")
        )
        if result.statement:
            print_result(f"  witnessed in {result.statement}")
        return 0
    outcome = f"equivalent content, which is {result.image} now" if result.accepted else f"other content: {result.kept}"
    print_result(f"{result.image} built again {took}: {outcome}")
    for line in _lines(result):
        print_result(f"  {line}")
    return 0 if result.accepted else 1


def _lines(result: Rebuilt) -> Iterator[str]:
    yield f"recorded  {result.recorded}"
    yield f"built     {result.fingerprint}"
    if result.layers:
        yield "layers that differ: " + ", ".join(result.layers)
    if result.differences is None:
        yield "the first image is not in this engine, so its files cannot be compared"
    else:
        counts = Counter(each.kind for each in result.differences)
        yield "files that differ: " + ", ".join(
            f"{words} {counts[kind]}" for kind, words in _KINDS.items() if counts[kind]
        )
        telling = [each for each in result.differences if each.kind != "time"] or list(result.differences)
        yield from (f"  {each.path}: {each.what}" for each in telling[:_MOST_PATHS])
        if len(telling) > _MOST_PATHS:
            yield f"  and {len(telling) - _MOST_PATHS} more"
    for proof in result.proofs:
        yield f"proof for {proof.evidence.subject.model}: {proof.evidence.verdict}"
    if not result.accepted:
        yield f"`builder adopt {result.kept}` gives it a number; `docker image rm {result.kept}` removes it"
    yield f"log: {result.log}"
