"""The command line of builder bench, builder probe and builder prove, with measurements as tables and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.base import words
from builder.cli import output
from builder.cli.options import Context, json_option, names, pass_context
from builder.cli.output import data, print_json, print_line, print_note, print_result, verbosity_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.commands.measuring import KeptOutcome
    from builder.evidence.run_record import Evidence
    from builder.evidence.store import ProvedImage
    from builder.lab.measure.outcome import ComparedFigure, ComparedNumbers


_image_option = click.option(
    "--image",
    default="",
    metavar="IMAGE:N",
    shell_complete=names("numbered"),
    help="Serve this number, whichever is paired.",
)


@click.command()
@click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    metavar="NAME",
    shell_complete=names("profiles"),
    help="quick, community, deep, or one under `bench:` in builder.yaml.",
)
@click.option(
    "--compare",
    "pair",
    nargs=2,
    metavar="A B",
    shell_complete=names("numbered"),
    help="Serve two numbers in turn, and say if B is better or worse.",
)
@_image_option
@json_option
@verbosity_options
@pass_context
def bench(context: Context, what: str, profile: str, pair: tuple[str, str] | None, image: str, as_json: bool) -> int:
    """Measure how fast a model is served, or two images in turn.

    Measures throughput at depth with llama-benchy, the acceptance of drafted tokens, free memory, the tokens that fit
    the cache, and the time of the start. A running server is used; else one is started, and stopped at the end. The
    result is kept in evidence/ beside images.lock.

    With --compare, the numbers are served in turn, A B A B and so on: three to eight rounds of each, until the noise is
    smaller than the difference that counts.

    Ends with 1 if the server failed, or B is worse.
    """
    from builder.commands import measuring as command

    with context.working() as workspace:
        result = (
            command.compare_bench(workspace, what, pair, profile)
            if pair
            else command.run_bench(workspace, what, profile, image)
        )
    if isinstance(result, command.KeptOutcome):
        if as_json:
            print_json(_document(result))
        else:
            print_outcome(result, str(context.project.root))
        return int(result.outcome.verdict != "pass")
    if as_json:
        print_json(_comparison(result))
    else:
        print_comparison(result)
    return int(result.judgement == "worse" or bool(result.failures))


_WORDS = {"pass": "passed", "fail": "failed", "unclear": "unclear"}
# A finding that passed is not a fault: it reports what the figures leave out.
_FINDING_WORDS = {**_WORDS, "pass": "note"}
_MOST_FINDINGS = 6


_OUTCOME = "kind name version set started seconds~ verdict findings counts"


def _document(kept: KeptOutcome) -> dict[str, Any]:
    return {**data(kept, "server image figures file"), **data(kept.outcome, _OUTCOME)}


def print_outcome(kept: KeptOutcome, folder: str) -> None:
    """Prints a measurement; ``folder`` is that of the project, which the file of evidence is relative to."""
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
        print_result(f"  and {len(outcome.findings) - _MOST_FINDINGS} more, see --json")
    if kept.file:
        print_result(f"kept in {str(kept.file).removeprefix(folder).lstrip('/')}")


def print_comparison(compared: ComparedNumbers) -> None:
    """Prints how the second number compares with the first."""
    word = output.word(compared.judgement, bold=True)
    rounds = words.counted(compared.rounds, "round")
    print_result(f"{compared.second} compared with {compared.first}: {word}, by {rounds} of each in turn")
    rows = [(_name(figure.name, figure.at), *_compared(figure)) for figure in compared.figures]
    if rows:
        output.print_table(("figure", "first", "second", "change", "band of noise", "n", "verdict"), rows)
    for failure in compared.failures:
        print_result(f"  failed: {failure}", hanging=4)
    for change in compared.chosen:
        print_result(f"  vLLM chose otherwise: {change}", hanging=4)
    print_line()


def _comparison(compared: ComparedNumbers) -> dict[str, Any]:
    keys = "name at unit means change=comparison.change values=comparison.values verdict=comparison.verdict"
    figures = [
        {**data(each, keys), "band": [each.comparison.low, _finite(each.comparison.high)]} for each in compared.figures
    ]
    chosen = data(compared.chosen, "name before after")
    return {**data(compared, "first second rounds verdict=judgement failures"), "chosen": chosen, "figures": figures}


def _name(name: str, at: Mapping[str, int | str]) -> str:
    """A figure with its conditions: tg128 @ d32768 c4, as the community's tables have them."""
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
@verbosity_options
@pass_context
def probe(context: Context, what: str, wanted: tuple[str, ...], image: str, as_json: bool) -> int:
    """Check a served model: tool calls, and checks of your own.

    \b
    NAME is
      tools-long   12 calls with 46 tools offered, each answer fed back, with
                   0, 50 and 75 % of the context full
      or a folder probes/NAME with a probe.yaml: a command of your own

    Without a name, all probes run. Each is repeated as often as its results require. A running server is used; else one
    is started, and stopped at the end. The results are kept in evidence/ beside images.lock.

    Ends with 1 unless all probes passed.
    """
    from builder.commands import measuring as command

    with context.working() as workspace:
        results = tuple(command.run_probes(workspace, what, wanted, image))
    if as_json:
        print_json({"probes": [_document(kept) for kept in results]})
    for kept in () if as_json else results:
        print_outcome(kept, str(context.project.root))
    return int(any(kept.outcome.verdict != "pass" for kept in results))


_PROOF_WORDS = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_COUNTS = ("conversations", "outputs", "compared", "too_long", "limits")  # a run of another version may lack one
_SHOWN = 10
_PROOF = (
    "model=evidence.subject.model verdict=evidence.verdict version=evidence.version recipe=evidence.subject.recipe "
    "revision=evidence.subject.revision template=evidence.subject.template stand_in compared_with=reference "
    "counts=evidence.counts seconds=evidence.seconds~ accepted=evidence.accepted findings=evidence.findings file"
)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@click.argument("models", nargs=-1, metavar="[MODEL]…", shell_complete=names("models", "recipes"))
@click.option("--accept", is_flag=True, help="Accept the changes that the last proof found, as intended.")
@click.option("--note", metavar="TEXT", help="The reason to keep with --accept.")
@json_option
@pass_context
def prove(context: Context, image: str, models: tuple[str, ...], accept: bool, note: str | None, as_json: bool) -> int:
    """Prove an image's chat templates and parsers, without a GPU.

    vLLM's front end is started in the image, without a network and without weights, once for all models that are paired
    with it, or for each MODEL or recipe. Conversations are rendered, and recorded outputs of models are parsed back,
    whole and in pieces: no part of a message may be lost, and arguments must come back unchanged. The prompts are
    compared with the prompts of the number before. A difference is shown as text and called changed, not failed.
    --accept says that it is intended.

    \b
    Ends with
      0  if every model is proven
      1  if something failed or changed, or came to no verdict
    """
    from builder.commands import measuring as command

    if note is not None and not accept:
        raise click.UsageError("--note goes with --accept")
    if accept:
        results = command.accept_changes(context.project, image, models, note or "accepted")
    else:
        results = command.prove_image(context.workspace(), image, models)
    if as_json:
        print_json({"image": results[0].image, "proofs": data(results, _PROOF)})
    else:
        for result in results:
            print_proof(result)
    return int(any(result.evidence.verdict != "pass" for result in results))


def print_proof(result: ProvedImage) -> None:
    """Prints the verdict for one model, and what it rests on."""
    evidence = result.evidence
    word = output.word(evidence.verdict, _PROOF_WORDS[evidence.verdict], bold=True)
    print_result(f"{word}: {evidence.subject.model} on {result.image}{summary(evidence)}")
    if evidence.accepted:
        print_result(f"  accepted: {evidence.accepted}")
        return
    if result.stand_in:
        print_result(f"  with a tokenizer that stands in for the model's own: {result.stand_in}")
    for finding in evidence.findings[:_SHOWN]:
        at = f" {finding.at}" if finding.at else ""
        first, *rest = finding.text.splitlines() or [""]
        print_result(f"  {output.finding_word(finding)} {finding.check}{at}: {first}")
        for line in rest:
            print_result(f"    {line}")
    if len(evidence.findings) > _SHOWN:
        print_result(f"  and {len(evidence.findings) - _SHOWN} more: {result.file}")
    if evidence.verdict == "changed":
        print_note(f"  `builder prove {result.image} --accept` accepts the change, if you intended it")


def summary(evidence: Evidence) -> str:
    """The conversations and outputs of a proof, as they stand behind its verdict; empty without any."""
    conversations, outputs, of_before, too_long, limits = (evidence.counts.get(name, 0) for name in _COUNTS)
    if not conversations and not outputs:
        return ""
    rendered = words.counted(conversations, "conversation")
    parsed = words.counted(outputs, "output")
    compared = f", {of_before} compared with the number before" if of_before else ""
    left_out = f", {too_long} longer than the context" if too_long else ""
    own = f", {words.counted(limits, 'limit')} of the template" if limits else ""
    return f", {rendered} and {parsed} in {words.duration_text(evidence.seconds)}{compared}{left_out}{own}"
