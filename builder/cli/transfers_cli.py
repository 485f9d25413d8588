"""The command line of builder adopt, prune, copy, export-image, import-image, pull, push, download and nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.base.errors import BuilderError
from builder.cli import options, output, progress
from builder.cli.main import Group
from builder.cli.options import Context, json_and_context, names, parse_age, repeated, verbosity_and_context, without
from builder.cli.output import (
    agreed,
    data,
    print_json,
    print_line,
    print_message,
    print_note,
    print_result,
    styled,
    verbosity_options,
)

if TYPE_CHECKING:
    from builder.commands.keeping import AdoptedImage, Pruned, PrunePlan
    from builder.commands.nodes import Discovery, NodeState
    from builder.moving.machines import LinkChoice


@click.command()
@click.argument("image", metavar="IMAGE[:TAG]")
@click.option(
    "--as", "repository", metavar="REPOSITORY", help="Number the image in this repository instead of its own."
)
@repeated("--model", "models", metavar="MODEL", help="Pair this model with the image. Repeatable.")
@without("--no-promote", "promote", "Do not make the image current if its repository already has a current image.")
@json_and_context
def adopt(
    context: Context, image: str, repository: str | None, models: tuple[str, ...], promote: bool, as_json: bool
) -> None:
    """Give a number to an image that was built elsewhere.

    IMAGE is a name, a digest or an id in the engine. Nothing is built or copied. The image gets the next number of its
    repository and becomes the current image. A container without a network reads the contents of the image. An image
    without vLLM cannot serve a model, so --model refuses it.
    """
    with progress.showing(f"reading {image}"):
        result = commands.keeping.adopt_image(context.workspace(), image, repository, models, promote=promote)
    if not as_json:
        _print_adopted(image, result)
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


def _print_adopted(image: str, result: AdoptedImage) -> None:
    if not result.already:
        sources = (f"{name} {each.text}" for name, each in sorted(result.record.versions.items(), reverse=True))
        packages = f"{result.packages} Python packages" if result.packages else ""
        contents = (words.size_text(result.record.size), result.record.platform, *sources, packages)
        title = styled(f"adopted {image} as {result.image}", bold=True)
        print_result(f"{title}: {', '.join(filter(None, contents))}")
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


@click.command()
@click.option("--keep", type=click.IntRange(min=0), default=3, show_default=True, metavar="N",
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
    newest numbers. The base of an image that stays also stays. An adopted image stays until it is pushed or marked bad.
    The command never removes anything that other projects or programs made.

    The compile caches of removed images on this machine are also removed. The command also removes fetched files that
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
                **data(pruning, "nameless compiled(image=name folder frees=size)"),
                **data(pruning, "checkpoints(checkpoint=name revision? frees=size)"),
                "fetched": sum(pruning.fetched.values()),
                "frees": pruning.frees,
                "removed": removed,
            }
        )
    elif result:
        _print_removed(pruning, result)
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
        output.print_table(("TO REMOVE", "BUILT", "FREES"), going)
    for image in pruning.going:
        if image.holder:
            print_result(f"{image.name} is only recorded as pruned, because {image.holder} also has it")
        elif image.names:
            print_result(f"{image.name} loses its number, but its image stays as {', '.join(image.names)}")
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


def _print_removed(pruning: PrunePlan, result: Pruned) -> None:
    for line in result.refused:
        print_result(line)
    gone = f": {', '.join(map(str, result.gone))}" if result.gone else ""
    if pruning.going:
        print_result(f"removed {words.counted(len(result.gone), 'image')}{gone}")
    if result.compiled:
        print_result(f"removed the compile caches of {', '.join(map(str, result.compiled))}")
    elif not pruning.going:
        print_result("removed")
    if result.cache:
        print_result(f"BuildKit freed {words.size_text(result.cache)} of its own copies")


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
    here = f"is already here{'; images.lock records it now' if result.lacked else ''}"
    imported = f"imported, {words.counted(result.layers, 'layer')}, {words.size_text(result.bytes)}"
    print_result(f"{result.image} {here if result.already else imported}")
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
    pushed_images: list[commands.transfers.PushedImage] = []
    try:
        with context.working() as workspace:
            pushed_images.extend(commands.transfers.push_images(workspace, images))
    finally:  # an image that was pushed is printed even if a later one fails
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
@repeated("--to", "nodes", metavar="NODE", kinds="nodes", help="Also copy the models to NODE. Repeatable.")
@options.json_option
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
        took = f"{words.size_text(model.fetched)} in {words.duration_text(model.seconds)}"
        print_result(f"{model.model} at {model.commit[:7]}: {took if model.fetched else 'already here'}")
        print_result(f"  {model.folder}")
    if nodes:
        print_result(f"copied to {', '.join(nodes)}")


_timeout_option = click.option(
    "--timeout",
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="Wait at most SECONDS for a node's answer (default: `node_timeout` in builder.yaml, or 10).",
)


@click.group(cls=Group, invoke_without_command=True)
@_timeout_option
@json_and_context
def nodes(context: Context, timeout: int | None, as_json: bool) -> None:
    """Show which images each node has, and what each node serves.

    A `latest` is stale if it is not this project's current number. A container is stale if its model is now paired with
    another image. The command asks all nodes at once. It ends with 1 if a node did not answer.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        if as_json or timeout:
            option = "--json" if as_json else "--timeout"
            raise click.UsageError(f"`{option}` goes after `{ctx.invoked_subcommand}`", ctx)
        return
    states = commands.nodes.nodes_state(context.project, os.environ, timeout, print_message)
    if as_json:
        of_images, of_servers = "images(image state latest current stale)", "serving(name image model? state stale)"
        print_json({"nodes": data(states, f"node engine=host error? {of_images} {of_servers}")})
    elif not states:
        print_result(
            "builder.yaml names no nodes. Add them there: `nodes: {spark2: ssh://USER@HOST}`; "
            "`builder nodes discover` fills in their links"
        )
    else:
        rows = [row for state in states for row in _rows(state)]
        output.print_table(("NODE", "IMAGE", "STATE", "SERVES"), rows)
    if any(state.error for state in states):
        ctx.exit(1)


@nodes.command()
@click.argument("node_names", nargs=-1, metavar="[NODE]…", shell_complete=names("nodes"))
@click.option("--yes", is_flag=True, help="Write builder.yaml without asking.")
@_timeout_option
@json_and_context
def discover(context: Context, node_names: tuple[str, ...], yes: bool, timeout: int | None, as_json: bool) -> int:
    """Fill in the link of each node in builder.yaml: address, interface and RoCE devices.

    The command reads the RoCE devices of each machine, over ssh or locally. Two active links mean a pair of machines,
    or a switch. Four active links mean a ring of three machines. The command shows what would change in builder.yaml,
    and asks before it writes.

    The command ends with 1 if a machine could not be reached.
    """
    discovery = commands.nodes.discover_nodes(context.project, os.environ, node_names, print_message, timeout)
    if not as_json:
        output.print_table(("NODE", "SETTING", "VALUE"), list(_discovered_rows(discovery)))
        if discovery.changed:
            print_line()
        for line in discovery.difference() if discovery.changed else ():
            print_line(output.line(line))
    written = discovery.changed and agreed("write builder.yaml?", yes=yes, as_json=as_json)
    if written:
        commands.nodes.write_nodes(context.project, discovery)
    if as_json:
        shown = [_discovered_json(node, *answer) for node, answer in discovery.nodes.items()]
        print_json({"nodes": shown, "difference": list(discovery.difference()), "written": written})
    elif written:
        print_result("builder.yaml was written; to test it: `builder nodes check`")
    elif discovery.changed:
        print_result("nothing was written; --yes writes without asking")
    elif unread := [node for node, (_, answer) in discovery.nodes.items() if isinstance(answer, BuilderError)]:
        print_result(f"nothing to write: {', '.join(unread)} could not be read")
    elif not all(answer.interface for _, answer in discovery.nodes.values() if not isinstance(answer, BuilderError)):
        print_result("nothing to write: not every node has a link")
    else:
        print_result("builder.yaml already has these settings")
    return 1 if any(isinstance(answer, BuilderError) for _, answer in discovery.nodes.values()) else 0


@nodes.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@repeated("--node", "node_names", metavar="NAME", kinds="nodes", help="Check only this node. Repeatable.")
@_timeout_option
@json_and_context
def check(context: Context, what: str | None, node_names: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Try everything that nodes need to serve one model together.

    On each node, the command checks ssh, the engine, the image's fingerprint, the RoCE devices, the model and the
    clock. It also checks the interface, its address and its subnet. With RECIPE or MODEL, each node must have the image
    and the model. Otherwise, each node must have what the other nodes have. The command ends with 1 if anything is
    wrong.
    """
    by_node = commands.nodes.check_nodes(context.project, os.environ, what, node_names, timeout, print_message)
    findings = [(node, each) for node, own in by_node.items() for each in own]
    if as_json:
        keys = "check=subject verdict message remedy?"
        print_json({"findings": [{"node": node, **data(each, keys)} for node, each in findings]})
    else:
        rows = [(node, each.subject, output.word(each.verdict), each.message) for node, each in findings]
        output.print_table(("NODE", "CHECK", "STATE", "FINDING"), rows)
        for remedy in dict.fromkeys(each.remedy for _, each in findings if each.remedy):
            print_result(f"→ {remedy}")
    return 1 if any(each.verdict == "error" for _, each in findings) else 0


def _discovered_rows(discovery: Discovery) -> Iterator[tuple[str, str, str]]:
    for node, (_, answer) in discovery.nodes.items():
        if isinstance(answer, BuilderError):
            yield node, "unknown", answer.message + (f"; {answer.hint}" if answer.hint else "")
            continue
        settings = {"link": answer.shape, "interface": answer.interface, "address": answer.address}
        rows = [*settings.items(), ("rdma", ", ".join(answer.rdma))]
        rows += [("env", f"{name}={value}") for name, value in answer.env.items()]
        rows += [("problem", problem) for problem in answer.problems]
        shown = [row for row in rows if row[1]]
        yield from ((node if not number else "", *row) for number, row in enumerate(shown))


def _discovered_json(node: str, host: str, answer: LinkChoice | BuilderError) -> dict[str, Any]:
    if isinstance(answer, BuilderError):
        nothing = dict.fromkeys(("link", "address", "interface"))
        return {"node": node, "engine": host, "error": answer.message, **nothing, "rdma": [], "env": {}, "problems": []}
    settings = data(answer, "link=shape address? interface? rdma env problems")
    return {"node": node, "engine": host, "error": None, **settings}


def _rows(state: NodeState) -> list[tuple[str, ...]]:
    if state.error:
        return [(state.node, "-", "unknown", state.error)]
    rows: list[tuple[str, ...]] = []
    for image in state.images:
        latest = "stale latest" if image.stale else "latest" if image.latest else ""
        words = (image.state if image.state != "present" else "", latest)
        rows.append(
            (state.node, str(image.image), _listed(words) or "present", _serving_words(state, str(image.image)))
        )
    others = {server.image for server in state.serving} - {str(image.image) for image in state.images}
    rows += [(state.node, image or "-", "not in images.lock", _serving_words(state, image)) for image in sorted(others)]
    return rows or [(state.node, "-", "none", "-")]


def _serving_words(state: NodeState, image: str) -> str:
    texts = []
    for server in state.serving:
        if server.image == image:
            more = _listed((server.state if server.state != "running" else "", "stale" if server.stale else ""))
            texts.append(server.name + (f" ({more})" if more else ""))
    return ", ".join(texts) or "-"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(filter(None, words))
