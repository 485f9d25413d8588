"""``builder prove``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import standing_text
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from builder.evidence.proof import ProvedImage
    from builder.evidence.record import Evidence

_WORDS = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_COLOURS = {"pass": "green", "changed": "yellow", "fail": "red", "unclear": "yellow"}
_COUNTS = ("conversations", "outputs", "compared", "too_long", "limits")  # a run of another version may lack one
_SHOWN = 10


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered"))
@click.argument("models", nargs=-1, metavar="[MODEL]…", shell_complete=names("models", "recipes"))
@click.option("--accept", is_flag=True, help="Accept the changes that the last proof found: they are meant.")
@click.option("--note", metavar="TEXT", help="The reason to keep with --accept.")
@json_option
@pass_context
def prove(context: Context, image: str, models: tuple[str, ...], accept: bool, note: str | None, as_json: bool) -> int:
    """Prove an image's chat templates and parsers, without a GPU.

    vLLM's front end is started in the image, without a network and without weights, once for all models that are paired
    with it, or for each MODEL (a recipe may be named as well). Conversations are rendered, and recorded outputs of
    models parsed back, whole and in pieces: nothing of a message may be lost, and arguments come back as they were. The
    prompts are compared with those of the number before: a difference is shown as text and is called changed, not
    failed; --accept says that it is meant.

    \b
    Ends with
      0  if every model is proven
      1  if something failed or changed, or came to no verdict
    """
    from builder.commands import prove as command

    if note is not None and not accept:
        raise click.UsageError("--note goes with --accept")
    if accept:
        results = command.accept(context.project, image, models, note or "accepted")
    else:
        results = command.run(context.workspace(), image, models)
    if as_json:
        print_json({"image": str(results[0].image), "proofs": [_document(result) for result in results]})
    else:
        for result in results:
            print_proof(result)
    return int(any(result.evidence.verdict != "pass" for result in results))


def print_proof(result: ProvedImage) -> None:
    """Prints the verdict for one model, and what it rests on."""
    evidence = result.evidence
    word = styled(_WORDS[evidence.verdict], fg=_COLOURS[evidence.verdict], bold=True)
    print_result(f"{word}: {evidence.subject.model} on {result.image}{summary(evidence)}")
    if evidence.accepted:
        print_result(f"  accepted: {evidence.accepted}")
        return
    if result.stand_in:
        print_result(f"  with a tokenizer that stands in for the model's own: {result.stand_in}")
    for finding in evidence.findings[:_SHOWN]:
        at = f" {finding.at}" if finding.at else ""
        first, *rest = finding.text.splitlines() or [""]
        print_result(f"  {standing_text.finding_word(finding)} {finding.check}{at}: {first}")
        for line in rest:
            print_result(f"    {line}")
    if len(evidence.findings) > _SHOWN:
        print_result(f"  and {len(evidence.findings) - _SHOWN} more: {result.file}")
    if evidence.verdict == "changed":
        print_note(f"  `builder prove {result.image} --accept` says that it is meant")


def summary(evidence: Evidence) -> str:
    """The conversations and outputs of a proof, as they stand behind its verdict; empty where there were none."""
    conversations, outputs, of_before, too_long, limits = (evidence.counts.get(name, 0) for name in _COUNTS)
    if not conversations and not outputs:
        return ""
    rendered = humanize.counted(conversations, "conversation")
    parsed = humanize.counted(outputs, "output")
    compared = f", {of_before} compared with the number before" if of_before else ""
    left_out = f", {too_long} longer than the context" if too_long else ""
    own = f", {humanize.counted(limits, 'limit')} of the template" if limits else ""
    return f", {rendered} and {parsed} in {humanize.duration(evidence.seconds)}{compared}{left_out}{own}"


def _document(result: ProvedImage) -> dict[str, Any]:
    evidence = result.evidence
    return {
        "model": evidence.subject.model,
        "verdict": evidence.verdict,
        "version": evidence.version,
        "recipe": evidence.subject.recipe,
        "revision": evidence.subject.revision,
        "template": evidence.subject.template,
        "stand_in": result.stand_in,
        "compared_with": result.reference,
        "counts": dict(evidence.counts),
        "seconds": round(evidence.seconds, 1),
        "accepted": evidence.accepted,
        "findings": [vars(finding) for finding in evidence.findings],
        "file": result.file,
    }
