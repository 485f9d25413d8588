"""This page defines the command line of builder copy, export-image, import-image, pull, push and download."""

from __future__ import annotations

from pathlib import Path

import click

from builder import commands
from builder.base import words
from builder.base.errors import BuilderError
from builder.cli import output
from builder.cli.options import Context, json_and_context, json_option, names, repeated, verbosity_and_context
from builder.cli.output import data, print_json, print_result, verbosity_options


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…", shell_complete=names("nodes"))
@verbosity_and_context
def copy(context: Context, image: str, nodes: tuple[str, ...]) -> int:
    """Copy a numbered image to other machines.

    NODE is a name in builder.yaml. The command copies to all nodes at the same time. Each node gets only the layers
    that it lacks, through the registry in builder.yaml or a temporary registry on this machine. On each node, the
    content is compared with images.lock before the image gets its number. The current number also becomes `latest`.
    Nodes with the same chip also get the compile caches of the image. If one node fails, the other nodes continue, and
    the exit code is 1.
    """
    with context.working() as workspace:
        result = commands.transfers.copy_image(workspace, image, nodes)
    failed = {node: outcome for node, outcome in result.outcomes.items() if isinstance(outcome, BuilderError)}
    reached = ", ".join(node for node in result.outcomes if node not in failed)
    if reached:
        output.print_result(f"{result.image} is on {reached}{', and latest there' if result.latest else ''}")
    for node, error in failed.items():
        output.print_error(error, f"{result.image} is not on {node}:")
    return 1 if failed else 0


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("export-image")
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions"))
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--with-caches", is_flag=True, help="Include the compile caches of the image on this machine.")
@verbosity_options
@json_and_context
def export_image(context: Context, image: str, file: Path, force: bool, with_caches: bool, as_json: bool) -> None:
    """Write a numbered image into a file.

    FILE is for a machine without a network: `builder import-image FILE` imports the image there. FILE is an OCI archive
    that `docker load` also reads. It contains the image, its build directory and its entry in images.lock. FILE appears
    when it is complete. With --with-caches, a machine with the same chip starts the model without compiling.
    """
    with context.working() as workspace:
        name, size, layers = commands.image_files.export_image(
            workspace, image, file, replace=force, with_caches=with_caches
        )
    if as_json:
        print_json({"image": name, "file": file, "size": size, "layers": layers})
        return
    print_result(f"{name} is in {file}: {words.counted(layers, 'layer')}, {words.size_text(size)}")


@click.command("import-image")
@click.argument("file", metavar="FILE", type=_FILE)
@verbosity_options
@json_and_context
def import_image(context: Context, file: Path, as_json: bool) -> None:
    """Import a numbered image from a file.

    `builder export-image` wrote FILE. The image gets its number only if every byte matches the export. The command also
    imports the image's build directory and its entry in images.lock. The current number and the pairings of models stay
    unchanged. The number becomes current only if the repository has no current number. It serves only models that no
    image serves yet. A number that means another image here is not overwritten."""
    with context.working() as workspace:
        result = commands.image_files.import_image(workspace, file)
    if as_json:
        print_json(result, "image already layers size=bytes current models")
        return
    outcome = (
        "is already here"
        if result.already
        else f"imported, {words.counted(result.layers, 'layer')}, {words.size_text(result.bytes)}"
    )
    print_result(f"{result.image} {outcome}")
    if result.models:
        print_result(f"the image serves {', '.join(result.models)}")
    if not result.current:
        print_result(f"`builder promote {result.image}` makes it current")


@click.command()
@click.argument("image", metavar="IMAGE:N|RECIPE", shell_complete=names("numbered", "recipes", "models"))
@verbosity_and_context
def pull(context: Context, image: str) -> None:
    """Pull a numbered image from the registry.

    Name a number, or a recipe or model to pull the image that serves it. The image gets its number only if its content
    matches images.lock. Compile caches that were pushed from the same chip are pulled, too.
    """
    with context.working() as workspace:
        name, layers = commands.transfers.pull_image(workspace, image)
    print_result(f"{name} pulled, {layers}" if layers else f"{name} is already here")


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE:N…", shell_complete=names("numbered"))
@verbosity_and_context
def push(context: Context, images: tuple[str, ...]) -> None:
    """Push numbered images to the registry.

    builder.yaml names the registry; images.lock records the digests. The current number also becomes `latest` in the
    registry. A number that has different content in the registry is not overwritten. The compile caches of the image
    are also pushed. To log in: `docker login REGISTRY`.
    """
    with context.working() as workspace:
        pushed_images = commands.transfers.push_images(workspace, images)
    for image in pushed_images:
        print_pushed(image)


def print_pushed(pushed: commands.transfers.PushedImage) -> None:
    """Prints the result of one push."""
    outcome = "already exists" if pushed.already else "pushed"
    print_result(
        f"{pushed.image} {outcome}{', now latest' if pushed.latest else ''}: {pushed.reference}@{pushed.digest}"
    )
    if not pushed.already:
        print_result(f"  sign it with: `cosign sign {pushed.reference.rpartition(':')[0]}@{pushed.digest}`")


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option("--revision", metavar="R", help="Download this branch, tag or commit instead of the recorded revision.")
@repeated("--to", "nodes", metavar="NODE", kinds="nodes", help="Also copy the models to NODE.")
@json_option
@verbosity_and_context
def download(context: Context, what: str, revision: str | None, nodes: tuple[str, ...], as_json: bool) -> None:
    """Download a model and its draft model, also to nodes.

    The models go into the Hugging Face cache, at the revision in the recipe, or else at the revision that the pairing
    recorded. An interrupted download resumes. HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE apply.
    """
    with context.working() as workspace:
        downloads = commands.transfers.download_model(workspace, what, revision, nodes)
    if as_json:
        models = data(downloads, "model commit folder size? fetched_bytes=fetched seconds~")
        print_json({"models": models, "copied_to": nodes})
        return
    for model in downloads:
        took = (
            f"{words.size_text(model.fetched)} in {words.duration_text(model.seconds)}"
            if model.fetched
            else "already here"
        )
        print_result(f"{model.model} at {model.commit[:7]}: {took}")
        print_result(f"  {model.folder}")
    if nodes:
        print_result(f"copied to {', '.join(nodes)}")
