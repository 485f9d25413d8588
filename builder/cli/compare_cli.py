"""This page defines the command line of builder compare, and of builder checkpoints compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.base import words
from builder.cli import output
from builder.cli.options import Context, json_option, names, parse_settings, pass_context, together
from builder.cli.output import data, print_json, print_line, print_note, print_result, verbosity_options

if TYPE_CHECKING:
    from builder.commands.comparing import KeptLikeness
    from builder.lab.same.image_likeness import ComparedTexts

text_options = together(
    click.option(
        "--within",
        type=click.FloatRange(0, 99),
        metavar="PERCENT",
        help="Pass if the perplexity certainly changes by no more than this, instead of what the model requires.",
    ),
    click.option(
        "--sessions",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Also rate your own saved chat requests, .json or .jsonl. They stay on this machine.",
    ),
    click.option(
        "--depth",
        type=click.IntRange(128),
        default=None,
        metavar="TOKENS",
        help="Use at most this much of the context.",
    ),
    click.option("--times", type=click.IntRange(1, 100), default=1, metavar="N", help="Use N times as many texts."),
    click.option("--seed", type=click.IntRange(0), default=0, metavar="N", help="Choose other texts at random."),
    verbosity_options,
    json_option,
)


@click.command()
@click.argument(
    "what",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="A [B] [MODEL] [-- VLLM ARGUMENT…]",
    shell_complete=names("numbered", "models", "recipes"),
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value for any {KEY} of B's command.")
@click.option("--checkpoint", default="", metavar="NAME", help="Serve this checkpoint of the project as B.")
@click.option("--recipe", default="", metavar="FILE", shell_complete=names("recipes"), help="Serve B by this recipe.")
@text_options
@pass_context
def compare(
    context: Context,
    /,
    what: tuple[str, ...],
    settings: tuple[str, ...],
    checkpoint: str,
    recipe: str,
    as_json: bool,
    **texts: Any,
) -> int:
    """Check whether an image answers as well as another one.

    A and B are numbers, such as vllm-node-tf5:6 or 6. With one number, B is the same image with a change: --set,
    --checkpoint, --recipe, or arguments of vLLM after `--`. Both are served in turn, and rate the same texts of twelve
    kinds at several depths; nothing is generated, so sampling and drafts play no role. A rates the texts twice, in
    different batches. B is equivalent if it differs from A at most twice as much as A differs from itself. A hundred
    questions with one right answer come last. The result is kept in evidence/ beside images.lock. The model's own
    server is as before afterwards.

    \b
    Ends with
      0  if B is identical or equivalent, or surely within the limit
      1  if it differs, or the texts do not tell
    """
    from builder.commands import comparing as command

    first_option = next((place for place, word in enumerate(what) if word.startswith("-")), len(what))
    typed, extra = what[:first_option], what[first_option:]
    images = tuple(word for word in typed if word.isdecimal() or word.rpartition(":")[2].isdecimal())
    others = [word for word in typed if word not in images]
    if len(others) > 1 or len(images) > 2:
        raise click.UsageError("give one or two numbers, and one model or recipe")
    request = command.CompareRequest(
        images, others[0] if others else "", parse_settings(settings), extra, checkpoint, recipe
    )
    with context.working() as workspace:
        kept = command.compare_numbers(workspace, request, command.compare_options(**texts))
    return _show(kept, context, as_json=as_json)


@click.command("compare")
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option("--source", default="", metavar="NAME", help="Compare with this source instead of the first one.")
@text_options
@pass_context
def compare_checkpoint(context: Context, /, what: str, source: str, as_json: bool, **texts: Any) -> int:
    """Check whether a checkpoint answers as well as one of its sources.

    The source is served as A, then the checkpoint as B, both from the image that is paired: see `builder compare`.

    \b
    Ends with
      0  if the checkpoint is identical or equivalent, or surely within the limit
      1  if it differs, or the texts do not tell
    """
    from builder.commands import comparing as command

    with context.working() as workspace:
        kept = command.compare_checkpoint(workspace, what, source, command.compare_options(**texts))
    return _show(kept, context, as_json=as_json)


_MOST_DIFFERENCES = 4
_WORDS = {"identical": "pass", "equivalent": "pass", "different": "changed", "cannot tell": "unclear"}


_COMPARED = (
    "kind depth verdict=compared.verdict texts perplexity_change=compared.change low=compared.low high=compared.high "
    "apart=compared.apart noise=compared.noise same_next_token=agreement parting? needed=compared.needed?"
)


def document(kept: KeptLikeness) -> dict[str, Any]:
    """The comparison for programs."""
    likeness = kept.likeness
    before, after = likeness.right
    return {
        **data(kept, "first second model verdict=likeness.verdict prompts_differ=likeness.prompts_differ"),
        "answers": {"asked": likeness.questions, "before": before, "after": after, "differ": likeness.answers_differ},
        **data(likeness, "left_out perplexity_change=change.change low=change.low high=change.high"),
        "texts": data((*likeness.totals, *likeness.cells), _COMPARED),
        "passed": kept.outcome.verdict == "pass",
        "seconds": round(kept.outcome.seconds, 3),
        **data(kept, "within notes file"),
    }


def _show(kept: KeptLikeness, context: Context, *, as_json: bool) -> int:
    """Prints a comparison; returns the exit code."""
    if as_json:
        print_json(document(kept))
    else:
        print_likeness(kept, str(context.project.root))
    return int(kept.outcome.verdict != "pass")


def print_likeness(kept: KeptLikeness, folder: str) -> None:
    """Prints the verdict, a table of the kinds by depth, what differs, and the answers."""
    likeness = kept.likeness
    verdict = output.word(_WORDS[likeness.verdict], likeness.verdict, bold=True)
    took = words.duration_text(kept.outcome.seconds)
    print_result(f"{kept.second} compared with {kept.first}, {kept.model}: {verdict} (rated in {took})")
    by_place = {(each.kind, each.depth): each for each in (*likeness.cells, *likeness.totals)}
    depths = sorted({depth for _, depth in by_place})
    kinds = (*sorted({each.kind for each in likeness.cells}), likeness.totals[0].kind)
    rows = [(kind, *(_cell(by_place.get((kind, depth))) for depth in depths)) for kind in kinds]
    output.print_table(("texts", *(f"to {_depth(depth)}" for depth in depths)), rows)
    for kind in likeness.prompts_differ:
        print_result(f"  the prompt differs: {kind}; `builder prove` compares prompts", hanging=4)
    for each in likeness.differing[:_MOST_DIFFERENCES]:
        print_result(f"  {each.kind} to {_depth(each.depth)}: {each.difference}", hanging=4)
    if len(likeness.differing) > _MOST_DIFFERENCES:
        print_result(f"  and {len(likeness.differing) - _MOST_DIFFERENCES} more, see --json")
    print_result(f"all texts: {likeness.change_text}", hanging=2)
    print_result(f"answers: {likeness.answers_text}", hanging=2)
    for line in (*likeness.left_out, *kept.notes):
        print_note(f"  {line}")
    if kept.within is not None:
        word = {"pass": "passed", "fail": "failed"}.get(kept.outcome.verdict, "not passed")
        print_result(f"required is within {100 * kept.within:g} %: {word}")
    if likeness.verdict == "cannot tell":
        print_note(f"`--times {likeness.times}` uses enough texts to decide")
    if kept.file:
        print_result(f"kept in {str(kept.file).removeprefix(folder).lstrip('/')}")
    print_line()


def _cell(each: ComparedTexts | None) -> str:
    return "" if each is None else each.compared.verdict


def _depth(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"
