"""The command line of builder recipes and builder export."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import mods_cli, options, output
from builder.cli.main import Group
from builder.cli.options import Context, json_and_context, names, node_options, pass_context, serve_request
from builder.cli.output import data, print_document, print_json, print_line, print_message, print_note, print_result
from builder.commands.recipes import FORMATS, CheckedRecipe, RecipeRow

if TYPE_CHECKING:
    from builder.definitions.command import ServeCommand
    from builder.definitions.recipe import Recipe


BROKEN = 2


@click.group(cls=Group)
def recipes() -> None:
    """Show, check, copy and convert recipes."""


recipes.add_command(mods_cli.update_recipes)


@recipes.command("list")
@json_and_context
def list_(context: Context, as_json: bool) -> None:
    """Show the project's recipes, and the image that serves each."""
    rows, engine_error = commands.recipes.list_recipes(context.workspace())
    if as_json:
        print_json({"recipes": list(map(_row_document, rows))})
        return
    if engine_error:
        print_note(f"the engine does not answer, so the states are unknown: {engine_error}")
    if rows:
        output.print_table(("RECIPE", "IMAGE", "STATE", "MODEL"), [_row(row) for row in rows])
    else:
        print_result("no recipes in recipes/; to copy one: `builder recipes add ADDRESS`")


@recipes.command()
@click.argument("recipe", shell_complete=names("recipes"))
@options.extra_argument
@options.serve_options
@node_options
@json_and_context
def show(context: Context, /, recipe: str, as_json: bool, **chosen: Any) -> None:
    """Show what a recipe starts, and the image that serves it.

    With --node, the command shows what each node starts. A NAME that is not in builder.yaml means an address.
    """
    shown, engine_error = commands.recipes.show_recipe(context.workspace(), serve_request(recipe, chosen))
    if as_json:
        command = data(shown.command, "argv env port host model script=is_script served_names=served before")
        print_json({**_row_document(shown.row), "note": shown.note, "command": command, "nodes": shown.nodes})
        return
    if engine_error:
        print_note(f"the engine does not answer, so the image's state is unknown: {engine_error}")
    if shown.row.checked.recipe is not None:
        output.print_facts(_facts(shown.row.checked.recipe, shown.row, shown.command, shown.origin))
    if shown.note:
        print_note(shown.note)
    for node in shown.nodes:
        print_line(f"\n{node.node}:")
        for argv in filter(None, (node.ray, node.argv)):
            print_line(_shell_lines(argv))
    if not shown.nodes:
        print_line(f"\n{_shell_lines(shown.command.argv)}")


@recipes.command("add")
@click.argument("address", metavar=f"{mods_cli.ADDRESS}|@REGISTRY/NAME|vllm:MODEL|FILE")
@click.option("--as", "name", metavar="NAME", help="Give the recipe this name in the project.")
@mods_cli.all_option
@click.option("--with-mods", is_flag=True, help="Also copy the mods that the recipe names and the project lacks.")
@click.option(
    "--hardware", metavar="NAME", help="With vllm:MODEL: vLLM's name for the machine (default: dgx_spark_gb10)."
)
@click.option("--mend", is_flag=True, help="Correct a recipe in FILE that was pasted from a web page.")
@mods_cli.yes_option
@mods_cli.force_option
@pass_context
def add(
    context: Context,
    address: str,
    name: str | None,
    everything: bool,
    with_mods: bool,
    hardware: str | None,
    mend: bool,
    yes: bool,
    force: bool,
) -> int:
    """Copy a recipe from another repository, and record where it came from.

    The address is a git repository, then // and the recipe's path, then @ and a branch, tag or commit (else the
    default branch). With --with-mods, or if you agree, the command also copies mods that the recipe names and the
    project lacks. It then offers mods that the repository lacks, if builder knows another source.

    @REGISTRY/NAME is a recipe in a registry that sparkrun or `recipe_registries` in builder.yaml names. vllm:MODEL
    converts the recipe that vLLM publishes for one kind of machine. Comments name the source file and key of each line.

    With --mend, FILE contains a recipe that was pasted from a web page. FILE may be a recipe of the project. Quotes,
    dashes, bullets, spaces, indentation and the backslashes of the recipe's command are restored. The command shows
    each line that changes, and checks the result. It ends with 2 if the recipe cannot be served.
    """
    if mend:
        if everything or with_mods or force or hardware:
            raise click.UsageError("--mend cannot be combined with --all, --with-mods, --hardware or --force")
        return _mend(context, address, name, yes=yes)
    planned = commands.recipes.plan_recipe_copies(
        context.project, address, name, print_message, everything=everything, hardware=hardware
    )
    named = ", ".join(mod.name for mod in planned.mods)
    asks = bool(named) and not with_mods and not yes and sys.stdin.isatty()
    if asks:
        mods_cli.print_scripts(planned.mods)
        with_mods = output.confirm(f"also copy the mods that the recipe names ({named})?", default=True)
    every = (*(planned.mods if with_mods else ()), *planned.recipes)  # a recipe comes after its mods
    code = mods_cli.make_copies(context, every, yes=yes, force=force, scripts_shown=asks)
    lacking = ", ".join(mod.name for mod in planned.mods if not mod.is_shipped)
    shipped = ", ".join(mod.name for mod in planned.mods if mod.is_shipped and mod.replaces)
    if lacking and not with_mods:
        print_note(f"the recipe names mods that the project lacks: {lacking}; --with-mods copies them as well")
    if shipped and not with_mods:
        print_note(f"the project keeps mods that came with builder: {shipped}; --with-mods copies the repository's")
    if code == 0:
        taken = mods_cli.offer_mods(context.project, planned.missing) if sys.stdin.isatty() else ()
        for mod, remedy in planned.missing.items():
            if mod not in taken:
                print_note(f"neither the project nor the repository has the mod {mod}{remedy and f'; {remedy}'}")
    return code


@recipes.command()
@click.argument("recipe", metavar="FILE|NAME", shell_complete=names("recipes"))
@click.option("--to", "version", type=click.Choice(["1", "2"]), help="Write this version (default: the other version).")
@pass_context
def convert(context: Context, recipe: str, version: str | None) -> None:
    """Print a recipe in the other version of the format: 1 is spark-vllm-docker's, 2 is sparkrun's.

    Comments at the top list what the other version cannot express. The command then reads the result. It ends with an
    error if the result would start a different server.
    """
    print_document(commands.recipes.convert_recipe(context.project, recipe, int(version) if version else None))


@recipes.command()
@click.argument("paths", nargs=-1, metavar="[PATH|FOLDER|NAME]…", shell_complete=names("recipes"))
@click.option(
    "--image",
    default="",
    metavar="NAME[:N]",
    shell_complete=names("numbered"),
    help="Check every recipe with the vLLM in this image.",
)
@json_and_context
def check(context: Context, paths: tuple[str, ...], image: str, as_json: bool) -> int:
    """Check whether recipes can be served.

    The command checks the named files and folders, or all recipes of the project. It ends with 2 if a recipe cannot be
    served. A note never makes a recipe fail.

    If the engine has a recipe's image, the vLLM in that image parses the command, in a container without network or
    GPU. The check finds unknown options, invalid values, and VLLM_ variables that nothing reads. The results are kept
    until the recipe or the image changes.
    """
    checked = commands.recipes.check_recipes_on_images(context.workspace(), paths, image)
    if as_json:
        print_json({"recipes": data(checked, _CHECKED)})
        return BROKEN if any(recipe.problems for recipe in checked) else 0
    return _print_checked(checked)


def _print_checked(checked: Sequence[CheckedRecipe]) -> int:
    broken = [recipe for recipe in checked if recipe.problems]
    # Recipes that cannot be served come last, so that they remain visible after many notes.
    for recipe in (*(each for each in checked if not each.problems), *broken):
        for note in recipe.notes:
            print_result(str(note).replace(": ", ": note: ", 1))
        for problem in recipe.problems:
            print_result(str(problem))
    print_result(f"{words.counted(len(checked), 'recipe')} checked: {_summary(checked)}")
    return BROKEN if broken else 0


def _mend(context: Context, file: str, name: str | None, *, yes: bool) -> int:
    from builder.cli import diff_cli

    mended = commands.recipes.plan_mended(context.project, file, name)
    for line in diff_cli.of_files([mended.change] if mended.change else [], full=True):
        print_line(line)
    shown = context.project.relative(mended.path)
    if mended.replaces and not mended.change:
        print_result(f"{shown}: nothing to correct")
    elif mended.replaces and not output.agreed("write this?", yes=yes):
        print_result("nothing was changed; --yes writes without asking")
        return 1
    checked = commands.recipes.put_mended(context.project, mended)
    print_result(f"{shown} was written" if mended.change or not mended.replaces else f"{shown} is unchanged")
    return _print_checked([checked])


def _summary(checked: Sequence[CheckedRecipe]) -> str:
    """The number of recipes with problems, with only notes, and with neither."""
    broken = [recipe for recipe in checked if recipe.problems]
    well = len(checked) - len(broken)
    noted = sum(bool(recipe.notes) for recipe in checked if not recipe.problems)
    with_notes = "" if not noted else ", with notes" if noted == well else f", {noted} of them with notes"
    if not broken:
        return f"no problems{with_notes}"
    problems = words.counted(sum(len(recipe.problems) for recipe in broken), "problem")
    return f"{problems} in {len(broken)} of them" + (f"; the other {well} can be served{with_notes}" if well else "")


def _row(row: RecipeRow) -> tuple[str, ...]:
    recipe = row.checked.recipe
    name = row.checked.file.removeprefix("recipes/").removesuffix(".yaml").removesuffix(".yml")
    if recipe is None or row.checked.problems:
        return (name, "-", "broken", "`builder recipes check` shows the problem")
    image = str(row.image) if row.image else recipe.container
    return (name, image, _state(row), recipe.model or "-")


def _state(row: RecipeRow) -> str:
    if row.image is None:
        return "not built"
    return f"{row.state}, {'paired' if row.paired else 'not paired'}"


def _facts(recipe: Recipe, row: RecipeRow, command: ServeCommand, origin: str) -> list[tuple[str, str]]:
    machines = "one machine only" if recipe.solo_only else "several machines only" if recipe.cluster_only else "any"
    if recipe.min_nodes > 2 or (recipe.max_nodes or 1) > 1:
        machines = (
            f"{recipe.min_nodes} or more" if not recipe.max_nodes else f"{recipe.min_nodes} to {recipe.max_nodes}"
        )
    facts = [
        ("recipe", recipe.file),
        ("copied from", origin),
        ("name", recipe.name),
        ("description", recipe.description),
        ("model", recipe.model or command.model or "unknown"),
        ("revision", recipe.revision or ""),
        ("draft model", recipe.draft_model or ""),
        ("answers to", ", ".join(command.served)),
        ("listens on", f"{command.host or 'any address'}, port {command.port or 'unknown'}"),
        ("image", f"{row.image or recipe.container} ({_state(row)})"),
        ("mods", ", ".join(recipe.mods) or "none"),
        ("volumes", ", ".join(recipe.volumes)),
        ("machines", machines),
        ("environment", " ".join(f"{name}={shlex.quote(value)}" for name, value in command.env.items())),
        *(("runs before", step) for step in command.before),
        *(("note", note.message) for note in row.checked.notes),
    ]
    return [(name, value) for name, value in facts if value]


def _shell_lines(argv: tuple[str, ...]) -> str:
    """Quotes the command for a shell, with one option on each line. A script is its own text."""
    if argv[:2] == ("bash", "-c") and len(argv) == 3:
        return argv[2]
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines if line)


_RECIPE = "name description model revision draft_model container mods volumes cluster solo_only cluster_only"
_PROBLEM = "(line=location.line column=location.column message)"
_CHECKED = f"file problems{_PROBLEM} notes{_PROBLEM}"


def _row_document(row: RecipeRow) -> dict[str, Any]:
    facts = data(row.checked.recipe, _RECIPE) or {}
    return {**data(row.checked, _CHECKED), **facts, **data(row, "image paired state")}


_LINES = "\n".join(f"{name:<10}   {line}" for name, line in FORMATS.items())
_HELP = f"""\
Export the server of a recipe or model for other tools.

\b
{_LINES}

llama-swap and litellm serve several models on one port. Without a name, they serve all paired models.

With several --node, compose and script write a file for each node to the folder --output: NODE.yaml or NODE.sh. Start
the other nodes first, and the first node last.
"""


@click.command(help=_HELP)
@click.argument("what", required=False, metavar="[RECIPE|MODEL]", shell_complete=names("recipes", "models"))
@options.extra_argument
@click.option("--format", "kind", type=options.WordChoice(list(FORMATS)), required=True, help="Export in this format.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to this file, or, for several nodes, to this folder.",
)
@click.option(
    "--address",
    default="127.0.0.1",
    metavar="HOST",
    help="With opencode or litellm: the host name or address of the machine that serves.",
)
@options.serve_options
@node_options
@options.container_options
@pass_context
def export(context: Context, /, what: str | None, kind: str, output: Path | None, address: str, **chosen: Any) -> None:
    """Exports, as the help says."""
    request = serve_request(what or "", chosen)
    exported = commands.recipes.export_recipe(context.project, kind, request, os.environ, address)
    for warning in exported.warnings:
        print_note(warning)
    several = len(exported.texts) > 1
    if output is None:
        # A stream of YAML has several documents.
        heading = "---\n# node {}\n" if kind == "compose" else "# ---- node {} ----\n"
        for node, text in exported.texts.items():
            print_document((heading.format(node) if several else "") + text)
        return
    files = commands.recipes.write_export(output, exported, kind)
    for file, node in zip(files, exported.texts, strict=True):
        print_result(f"{file}: {exported.image}" + (f" on {node}" if several else ""))
    if several:
        print_result(f"start {files[0]} last")
