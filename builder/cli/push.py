"""``builder push``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, pass_context
from builder.cli.output import print_result
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from builder.commands.push import PushedImage
    from builder.engine.buildkit.attestations import Kind


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE:N…", shell_complete=names("numbered"))
@click.option("--sbom", is_flag=True, help="Attest which packages are in it (an SBOM, in SPDX).")
@click.option("--provenance", is_flag=True, help="Attest what it was built from (SLSA provenance).")
@verbosity_options
@pass_context
def push(context: Context, images: tuple[str, ...], sbom: bool, provenance: bool) -> None:
    """Push numbered images to the registry.

    The registry is that of builder.yaml; images.lock records the digests. The current number becomes `latest` there
    too. A number that the registry has with other content is not overwritten. To log in: `docker login REGISTRY`.

    The project's evidence of a number is put beside it, also where the number was there already.

    For --sbom and --provenance BuildKit rebuilds the number from its build directory and its cache; the content has to
    be the same. Both are stored beside the image in the registry, and the digest that is signed covers them.
    """
    from builder.commands import push as command

    kinds: set[Kind] = set()
    if sbom:
        kinds.add("sbom")
    if provenance:
        kinds.add("provenance")
    if kinds:
        from builder.cli import progress

        with progress.reporter() as build_report:
            pushed_images = command.run_attested(context.workspace(build_report), images, kinds)
    else:
        from builder.cli import progress

        with progress.reporter() as report:
            pushed_images = command.run(context.workspace(report), images)
    for image in pushed_images:
        print_pushed(image)


def print_pushed(pushed: PushedImage) -> None:
    """Prints the result of one push."""
    outcome = "is there already" if pushed.already else "pushed"
    print_result(
        f"{pushed.image} {outcome}{', now latest' if pushed.latest else ''}: {pushed.reference}@{pushed.digest}"
    )
    if pushed.evidence:
        print_result(f"  {humanize.counted(pushed.evidence, 'run')} of evidence beside it, as in-toto test results")
    if not pushed.already:
        print_result(f"  sign it with: `cosign sign {pushed.reference.rpartition(':')[0]}@{pushed.digest}`")
