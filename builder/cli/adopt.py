"""``builder adopt``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import progress
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.commands.adopt import AdoptedImage


@click.command()
@click.argument("image", metavar="IMAGE[:TAG]")
@click.option(
    "--as", "repository", metavar="REPOSITORY", help="The repository that gets the number, in place of its own."
)
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Serve this model with it. May be given again.")
@click.option("--no-promote", is_flag=True, help="Leave the current image as it is.")
@json_option
@pass_context
def adopt(
    context: Context, image: str, repository: str | None, models: tuple[str, ...], no_promote: bool, as_json: bool
) -> None:
    """Give an image that was built elsewhere a number, as it is.

    IMAGE is a name, a digest or an id in the engine. Nothing is built or copied: it gets the next number of its
    repository and becomes the current image. What is in it is read in a container without a network. An image in which
    no vLLM is found serves no model: with --model, nothing is recorded.
    """
    from builder.commands import adopt as command

    request = command.AdoptRequest(image, repository, models, promote=not no_promote)
    with progress.showing(f"reading {image}"):
        result = command.run(context.workspace(), request)
    if as_json:
        print_json(_document(result))
        return
    _print(image, result)


def _print(image: str, result: AdoptedImage) -> None:
    if not result.already:
        print_result(styled(f"adopted {image} as {result.image}", bold=True) + f": {_contents(result)}")
    elif result.restored:
        print_result(f"{image} is {result.image}, which was missing from this engine and has its tag again")
    else:
        print_result(f"{image} is {result.image} already")
    for model in result.models:
        print_result(f"  paired with {model}")
    if result.current != result.image:
        go = f"builder promote {result.image}"
        print_result(f"  current is {result.current}; `{go}` makes {result.image} current")
    if result.same:
        print_result(f"  the same content as {', '.join(map(str, result.same))}")
    if result.unknown:
        print_note(f"note: {result.unknown}")


def _contents(result: AdoptedImage) -> str:
    sources = (
        f"{name} {version.version}" + (f" ({version.commit[:9]})" if version.commit else "")
        for name, version in sorted(result.record.versions.items(), reverse=True)
    )
    packages = f"{result.packages} Python packages" if result.packages else ""
    parts = (humanize.size(result.record.size), result.record.platform, *sources, packages)
    return ", ".join(part for part in parts if part)


def _document(result: AdoptedImage) -> dict[str, Any]:
    """The adopted image as JSON."""
    record = result.record
    return {
        "image": str(result.image),
        "already": result.already,
        "restored": result.restored,
        "adopted": record.adopted.image if record.adopted else None,
        "digests": list(record.adopted.digests) if record.adopted else [],
        "platform": record.platform,
        "fingerprint": record.fingerprint,
        "size": record.size,
        "versions": {name: {"version": v.version, "commit": v.commit} for name, v in sorted(record.versions.items())},
        "packages": result.packages,
        "models": list(result.models),
        "current": str(result.current),
        "same": [str(name) for name in result.same],
        "unknown": result.unknown,
    }
