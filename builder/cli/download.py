"""``builder download``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from builder.commands.download import Downloaded


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option("--revision", metavar="R", help="A branch, tag or commit, in place of the recorded one.")
@click.option(
    "--to", "nodes", multiple=True, metavar="NODE", shell_complete=names("nodes"), help="Copy to a node, too."
)
@json_option
@verbosity_options
@pass_context
def download(context: Context, what: str, revision: str | None, nodes: tuple[str, ...], as_json: bool) -> None:
    """Fetch a model and its draft model, for here and for nodes.

    They go into the Hugging Face cache, at the revision that the recipe names, or else the one that was recorded when
    the model was paired. An interrupted download resumes. HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are obeyed.
    """
    from builder.cli import progress
    from builder.commands import download as command

    with progress.reporter() as report:
        downloads = command.run(context.workspace(report), command.DownloadRequest(what, revision, nodes))
    if as_json:
        print_json({"models": [_document(model) for model in downloads], "copied_to": list(nodes)})
        return
    for model in downloads:
        took = (
            f"{humanize.size(model.fetched)} in {humanize.duration(model.seconds)}"
            if model.fetched
            else "it was here already"
        )
        print_result(f"{model.model} at {model.commit[:7]}: {took}")
        print_result(f"  {model.folder}")
    if nodes:
        print_result(f"copied to {', '.join(nodes)}")


def _document(model: Downloaded) -> dict[str, Any]:
    return {
        "model": model.model,
        "commit": model.commit,
        "folder": str(model.folder),
        "size": model.size or None,
        "fetched_bytes": model.fetched,
        "seconds": round(model.seconds, 1),
    }
