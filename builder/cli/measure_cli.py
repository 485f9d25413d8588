"""The command line of builder bench, probe, prove and compare, with measurements as tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import options, output
from builder.cli.options import Context, json_option, names, pass_context, set_option, together, verbosity_and_context
from builder.cli.output import data, print_json, print_line, print_note, print_result, verbosity_options

if TYPE_CHECKING:
    from builder.evidence.run_record import Evidence, ProvedImage
    from builder.lab.measure.measurement import ComparedFigure, ComparedNumbers


_image_option = click.option(
    "--image",
    default="",
    metavar="IMAGE:N",
    shell_complete=names("numbered"),
    help="Serve this number, even if another one is paired.",
)


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    metavar="NAME",
    shell_complete=names("profiles"),
    help="Use quick, community, deep, or a profile under `bench:` in builder.yaml.",
)
@click.option(
    "--compare",
    "pair",
    nargs=2,
    metavar="A B",
    shell_complete=names("numbered"),
    help="Serve A and B in turn, and report whether B is better or worse.",
)
@_image_option
@json_option
@verbosity_and_context
def bench(context: Context, what: str, profile: str, pair: tuple[str, str] | None, image: str, as_json: bool) -> int:
    """Measure how fast a model is served, or compare two images.

    The benchmark measures throughput at depth with llama-benchy, the acceptance of drafted tokens, free memory, the
    tokens that fit the cache, and the start-up time. The command uses a running server. If no server runs, it starts
    one, and stops it at the end. The result is kept in evidence/ beside images.lock.

    With --compare, A and B are served in turn, three to eight rounds each. The rounds end when the noise is smaller
    than the difference that counts.

    The command ends with 1 if the server failed, or if B is worse.
    """
    if pair and image:
        raise click.UsageError("--compare and --image cannot be combined: --compare names both numbers")
    with context.working() as workspace:
        result = (
            commands.measuring.compare_bench(workspace, what, pair, profile)
            if pair
            else commands.measuring.run_bench(workspace, what, profile, image)
        )
    if isinstance(result, commands.measuring.KeptOutcome):
        if as_json:
            print_json(result, _OUTCOME)
        else:
            print_outcome(result, str(context.project.root))
        return int(result.outcome.verdict != "pass")
    if as_json:
        keys = "name at unit means change=comparison.change values=comparison.values verdict=comparison.verdict"
        figures = [
            {**data(each, keys), "band": [each.comparison.low, _finite(each.comparison.high)]}
            for each in result.figures
        ]
        chosen = data(result.chosen, "name before after")
        whole = data(result, "first second rounds verdict=judgement failures")
        print_json({**whole, "chosen": chosen, "figures": figures})
    else:
        print_comparison(result)
    return int(result.judgement == "worse" or bool(result.failures))


_WORDS = {"pass": "passed", "fail": "failed", "unclear": "unclear"}
# A finding that passed is not a fault: it explains what the figures do not include.
_FINDING_WORDS = {**_WORDS, "pass": "note"}
_MOST_FINDINGS = 6


_OUTCOME = (
    "server image figures file kind=outcome.kind name=outcome.name version=outcome.version set=outcome.set "
    "started=outcome.started seconds=outcome.seconds~ verdict=outcome.verdict findings=outcome.findings "
    "counts=outcome.counts"
)


def print_outcome(kept: commands.measuring.KeptOutcome, folder: str) -> None:
    """Prints a measurement. ``folder`` is the project's folder; the evidence file is shown relative to it."""
    outcome = kept.outcome
    verdict = output.word(outcome.verdict, _WORDS.get(outcome.verdict, outcome.verdict), bold=True)
    print_result(
        f"{outcome.name} of {kept.server} from {kept.image}: {verdict} ({words.duration_text(outcome.seconds)})"
    )
    if outcome.counts and outcome.kind == "probe":
        print_result("  " + ", ".join(f"{count} {name}" for name, count in outcome.counts.items()), hanging=4)
    if outcome.figures:
        rows = []
        for figure in outcome.figures:
            count, unit = len(figure.values), "" if figure.unit == "bytes" else figure.unit
            spread = words.amount_text(figure.std, unit) if count > 1 and unit else ""
            mean = words.amount_text(figure.mean, figure.unit)
            rows.append((_name(figure.name, figure.at), mean, spread, str(count), unit))
        output.print_table(("figure", "mean", "± std", "runs", "unit"), rows)
    for finding in outcome.findings[:_MOST_FINDINGS]:
        place = f" ({finding.at})" if finding.at else ""
        word = _FINDING_WORDS.get(finding.verdict, finding.verdict)
        print_result(f"  {word}: {finding.check}{place}: {finding.text}", hanging=4)
    if len(outcome.findings) > _MOST_FINDINGS:
        all_of_them = "the file below has all" if kept.file else "with --json, the command shows all"
        print_result(f"  and {len(outcome.findings) - _MOST_FINDINGS} more: {all_of_them}")
    if kept.file:
        print_result(f"kept in {str(kept.file).removeprefix(folder).lstrip('/')}")


def print_comparison(compared: ComparedNumbers) -> None:
    """Prints the comparison of the second number with the first."""
    word = output.word(compared.judgement, bold=True)
    rounds = words.counted(compared.rounds, "round")
    print_result(f"{compared.second} compared with {compared.first}: {word}, after {rounds} of each in turn")
    rows = [(_name(figure.name, figure.at), *_compared(figure)) for figure in compared.figures]
    if rows:
        output.print_table(("figure", "first", "second", "change", "confidence interval", "n", "verdict"), rows)
    for failure in compared.failures:
        print_result(f"  failed: {failure}", hanging=4)
    for change in compared.chosen:
        print_result(f"  vLLM's own choice changed: {change}", hanging=4)
    print_line()


def _name(name: str, at: Mapping[str, int | str]) -> str:
    """A figure with its conditions, in the notation of the community's tables: tg128 @ d32768 c4."""
    size = at.get(name, "") if name in {"pp", "tg"} else ""
    depth = f" @ d{at['depth']}" if at.get("depth") else ""
    several = f" c{at['concurrency']}" if at.get("concurrency") not in {None, 1} else ""
    share = f" @ {at['share']} %" if "share" in at else ""
    prompt = f" pp{at['pp']}" if name in {"ttfr", "ttft"} and "pp" in at else ""
    return f"{name}{size}{prompt}{depth}{several}{share}"


def _compared(figure: ComparedFigure) -> tuple[str, ...]:
    comparison = figure.comparison
    high = f"{comparison.high:+.1%}" if _finite(comparison.high) is not None else "?"
    first, second = (words.amount_text(mean, "") for mean in figure.means)
    count = str(min(comparison.values))
    return first, second, f"{comparison.change:+.1%}", f"{comparison.low:+.1%} … {high}", count, comparison.verdict


def _finite(value: float) -> float | None:
    return value if abs(value) < 1e6 else None


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.argument("wanted", metavar="[NAME…]", nargs=-1, shell_complete=names("probes"))
@_image_option
@json_option
@verbosity_and_context
def probe(context: Context, what: str, wanted: tuple[str, ...], image: str, as_json: bool) -> int:
    """Check a served model: tool calls, and checks of your own.

    \b
    NAME is
      tools-long   12 tool calls with 46 tools on offer, each result returned,
                   with 0, 50 and 75 % of the context full
      or a folder probes/NAME with a probe.yaml: a command of your own

    Without a name, all probes run. Each probe repeats as often as its results require. The command uses a running
    server. If no server runs, it starts one, and stops it at the end. The results are kept in evidence/ beside
    images.lock.

    The command ends with 1 unless all probes passed.
    """
    with context.working() as workspace:
        results = tuple(commands.measuring.run_probes(workspace, what, wanted, image))
    if as_json:
        print_json({"probes": data(results, _OUTCOME)})
    for kept in () if as_json else results:
        print_outcome(kept, str(context.project.root))
    return int(any(kept.outcome.verdict != "pass" for kept in results))


_PROOF_WORDS = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_COUNTS = ("conversations", "outputs", "compared", "too_long", "limits")  # a run of another version may lack a count
_SHOWN = 10
_PROOF = (
    "model=evidence.subject.model verdict=evidence.verdict version=evidence.version recipe=evidence.subject.recipe "
    "revision=evidence.subject.revision template=evidence.subject.template stand_in compared_with=reference "
    "counts=evidence.counts seconds=evidence.seconds~ accepted=evidence.accepted findings=evidence.findings file"
)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@click.argument("models", nargs=-1, metavar="[MODEL]…", shell_complete=names("models", "recipes"))
@click.option("--accept", is_flag=True, help="Accept the changes that the last proof found: they were intended.")
@click.option("--note", metavar="TEXT", help="Record this reason with --accept.")
@options.json_and_context
def prove(context: Context, image: str, models: tuple[str, ...], accept: bool, note: str | None, as_json: bool) -> int:
    """Prove an image's chat templates and parsers, without a GPU.

    The command starts vLLM's front end in the image once, without a network and without weights. It proves all models
    that are paired with the image, or each MODEL or recipe. vLLM renders conversations, and parses recorded outputs of
    models, whole and in pieces. No part of a message may be lost, and arguments must come back unchanged.

    The prompts are compared with the prompts of the previous number. If a prompt differs, the command shows the
    difference. The verdict is then `changed`, not `failed`; --accept records that the change was intended.

    \b
    Ends with
      0  if every model is proven
      1  if a proof failed, found a change, or reached no verdict
    """
    if note is not None and not accept:
        raise click.UsageError("--note is allowed only with --accept")
    if accept:
        results = commands.measuring.accept_changes(context.project, image, models, note or "accepted")
    else:
        results = commands.measuring.prove_image(context.workspace(), image, models)
    if as_json:
        print_json({"image": results[0].image, "proofs": data(results, _PROOF)})
    else:
        for result in results:
            print_proof(result)
    return int(any(result.evidence.verdict != "pass" for result in results))


def print_proof(result: ProvedImage) -> None:
    """Prints the verdict for one model, and the reasons."""
    evidence = result.evidence
    word = output.word(evidence.verdict, _PROOF_WORDS[evidence.verdict], bold=True)
    print_result(f"{word}: {evidence.subject.model} on {result.image}{summary(evidence)}")
    if evidence.accepted:
        print_result(f"  accepted: {evidence.accepted}")
        return
    if result.stand_in:
        print_result(f"  with a substitute for the model's tokenizer: {result.stand_in}")
    for finding in evidence.findings[:_SHOWN]:
        at = f" {finding.at}" if finding.at else ""
        first, *rest = finding.text.splitlines() or [""]
        print_result(f"  {output.finding_word(finding)} {finding.check}{at}: {first}")
        for line in rest:
            print_result(f"    {line}")
    if len(evidence.findings) > _SHOWN:
        print_result(f"  and {len(evidence.findings) - _SHOWN} more, in {result.file}")
    if evidence.verdict == "changed":
        accepts = f"`builder prove {result.image} {words.shell_word(evidence.subject.model)} --accept`"
        print_note(f"  {accepts} accepts the change, if you intended it")


def summary(evidence: Evidence) -> str:
    """The numbers of conversations and outputs of a proof, to follow its verdict; empty if there are none."""
    conversations, outputs, of_before, too_long, limits = (evidence.counts.get(name, 0) for name in _COUNTS)
    if not conversations and not outputs:
        return ""
    rendered = words.counted(conversations, "conversation")
    parsed = words.counted(outputs, "output")
    compared = f", {of_before} compared with the previous number" if of_before else ""
    left_out = f", {too_long} longer than the context" if too_long else ""
    own = f", {words.counted(limits, 'limit')} of the template" if limits else ""
    return f", {rendered} and {parsed} in {words.duration_text(evidence.seconds)}{compared}{left_out}{own}"


# Comparing the answers of two images (``compare``), or of a checkpoint and its source (``checkpoints compare``).

_MOST_TIMES = 100
text_options = together(
    click.option(
        "--within",
        type=click.FloatRange(0, 99),
        metavar="PERCENT",
        help="Pass if the whole confidence interval of the perplexity's change is within PERCENT. The default is the"
        " limit that the model requires, if any.",
    ),
    click.option(
        "--sessions",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Also rate your own saved chat requests (.json or .jsonl). They stay on this machine.",
    ),
    click.option(
        "--depth",
        type=click.IntRange(128),
        default=None,
        metavar="TOKENS",
        help="Use at most this many tokens of the context.",
    ),
    click.option(
        "--times", type=click.IntRange(1, _MOST_TIMES), default=1, metavar="N", help="Use N times as many texts."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, metavar="N", help="Random seed for choosing the texts."),
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
@set_option("Set the placeholder {KEY} in B's command. Repeatable.")
@click.option("--checkpoint", default="", metavar="NAME", help="Serve this checkpoint as B.")
@click.option("--recipe", default="", metavar="FILE", shell_complete=names("recipes"), help="Serve B with this recipe.")
@text_options
@pass_context
def compare(
    context: Context,
    /,
    what: tuple[str, ...],
    settings: dict[str, str],
    checkpoint: str,
    recipe: str,
    as_json: bool,
    **texts: Any,
) -> int:
    """Check whether an image answers as well as another image.

    A and B are numbers, such as vllm-node-tf5:6 or 6. With one number, B is the same image with a change: --set,
    --checkpoint, --recipe, or vLLM arguments after `--`. Both images are served in turn, and rate the same texts of
    twelve kinds at several depths. Nothing is generated, so sampling and drafts play no role. A rates the texts twice,
    in different batches. B is equivalent if B differs from A at most twice as much as A differs from itself. At the
    end, both images answer a hundred questions with one right answer. The result is kept in evidence/ beside
    images.lock. Afterwards, the model is served as before.

    \b
    Ends with
      0  if B is identical or equivalent, or its whole confidence interval
         is within the limit: --within, or `same` in the requirements
      1  if B differs, or the texts are not enough to decide
    """
    first_option = next((place for place, word in enumerate(what) if word.startswith("-")), len(what))
    typed, extra = what[:first_option], what[first_option:]
    images = tuple(word for word in typed if word.rpartition(":")[2].isdecimal() or word.endswith(":latest"))
    others = [word for word in typed if word not in images]
    if len(others) > 1 or len(images) > 2:
        raise click.UsageError("expected one or two numbers, and at most one model or recipe")
    request = commands.comparing.CompareRequest(
        images, others[0] if others else "", settings, extra, checkpoint, recipe
    )
    with context.working() as workspace:
        kept = commands.comparing.compare_numbers(workspace, request, commands.comparing.compare_options(**texts))
    return _show_likeness(kept, context, as_json=as_json)


@click.command("compare")
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option("--source", default="", metavar="NAME", help="Compare with this source instead of the first source.")
@text_options
@pass_context
def compare_checkpoint(context: Context, /, what: str, source: str, as_json: bool, **texts: Any) -> int:
    """Check whether a checkpoint answers as well as one of its sources.

    The paired image serves the source as A, then the checkpoint as B. `builder compare --help` has the details.

    \b
    Ends with
      0  if the checkpoint is identical or equivalent, or its whole
         confidence interval is within the limit: --within, or `same` in
         the requirements of the model
      1  if the checkpoint differs, or the texts are not enough to decide
    """
    with context.working() as workspace:
        kept = commands.comparing.compare_checkpoint(
            workspace, what, source, commands.comparing.compare_options(**texts)
        )
    return _show_likeness(kept, context, as_json=as_json)


_MOST_DIFFERENCES = 4
_LIKENESS_WORDS = {"identical": "pass", "equivalent": "pass", "different": "changed", "cannot tell": "unclear"}


_COMPARED = (
    "kind depth verdict=compared.verdict texts perplexity_change=compared.change low=compared.low high=compared.high "
    "apart=compared.apart noise=compared.noise same_next_token=agreement parting? needed=compared.needed?"
)


def likeness_document(kept: commands.comparing.KeptLikeness) -> dict[str, Any]:
    """The comparison as JSON data."""
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


def _show_likeness(kept: commands.comparing.KeptLikeness, context: Context, *, as_json: bool) -> int:
    if as_json:
        print_json(likeness_document(kept))
    else:
        print_likeness(kept, str(context.project.root))
    return int(kept.outcome.verdict != "pass")


def print_likeness(kept: commands.comparing.KeptLikeness, folder: str) -> None:
    """Prints the verdict, a table of the kinds by depth, the differences, and the answers."""
    likeness = kept.likeness
    verdict = output.word(_LIKENESS_WORDS[likeness.verdict], likeness.verdict, bold=True)
    took = words.duration_text(kept.outcome.seconds)
    print_result(f"{kept.second} compared with {kept.first}, {kept.model}: {verdict} (rated in {took})")
    by_place = {(each.kind, each.depth): each for each in (*likeness.cells, *likeness.totals)}
    depths = sorted({depth for _, depth in by_place})
    kinds = (*sorted({each.kind for each in likeness.cells}), likeness.totals[0].kind)
    rows = [
        (kind, *(each.compared.verdict if (each := by_place.get((kind, depth))) else "" for depth in depths))
        for kind in kinds
    ]
    output.print_table(("texts", *(f"to {_depth(depth)}" for depth in depths)), rows)
    for kind in likeness.prompts_differ:
        print_result(f"  the prompt differs: {kind}; `builder prove` compares prompts", hanging=4)
    for each in likeness.differing[:_MOST_DIFFERENCES]:
        print_result(f"  {each.kind} to {_depth(each.depth)}: {each.difference}", hanging=4)
    if len(likeness.differing) > _MOST_DIFFERENCES:
        print_result(f"  and {len(likeness.differing) - _MOST_DIFFERENCES} more: --json shows them")
    print_result(f"all texts: {likeness.change_text}", hanging=2)
    print_result(f"answers: {likeness.answers_text}", hanging=2)
    for line in (*likeness.left_out, *kept.notes):
        print_note(f"  {line}")
    if kept.within is not None:
        word = {"pass": "passed", "fail": "failed"}.get(kept.outcome.verdict, "not passed")
        print_result(f"required: within {100 * kept.within:g} % ({word})")
    if likeness.verdict == "cannot tell":
        times = likeness.times * int(kept.outcome.sampling["times"])
        enough, most = f"`--times {times}` uses enough texts to decide", f"even `--times {_MOST_TIMES}` does not"
        print_note(enough if times <= _MOST_TIMES else f"{most} use enough texts to decide")
    if kept.file:
        print_result(f"kept in {str(kept.file).removeprefix(folder).lstrip('/')}")
    print_line()


def _depth(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"
