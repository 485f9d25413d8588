"""The benchmark of a served model: throughput at depth, acceptance, memory, and what the server's log tells."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from builder import timestamp
from builder.engine import services
from builder.errors import UsageError
from builder.events import Message
from builder.evidence.record import Finding
from builder.measuring import (
    acceptance,
    filler_text,
    llama_benchy,
    memory_watch,
    outcome,
    served_model,
    server_log,
    tokenizer_file,
)
from builder.measuring.memory_watch import MemorySamples, MemoryWatch
from builder.measuring.outcome import MeasuringProgress, Outcome
from builder.measuring.python_tool import LLAMA_BENCHY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.bench_profile import BenchProfile
    from builder.events import Report
    from builder.evidence.record import Figure
    from builder.measuring.served_model import ServedModel
    from builder.serving.running import ServerMember

_AFTERWARDS_SECONDS = 120.0


def bench(
    served: ServedModel,
    profile: BenchProfile,
    environ: Mapping[str, str],
    report: Report,
    *,
    revision: str | None = None,
    member: ServerMember | None = None,
) -> Outcome:
    """Measures a served model by ``profile``, without the depths for which its context has no room. ``member`` is the
    container that answers, where it is one of an engine: without it memory and log are not looked at.

    A server that fails meanwhile is a result with the verdict ``fail``. Raises MeasuringError where llama-benchy or the
    tokenizer cannot be had, UsageError for a profile that does not fit the model at all.
    """
    fitting = profile.within(served.context)
    if not fitting.depth:
        longest = max(profile.pp) + max(profile.tg)
        raise UsageError(
            f"the context of {served.name} has {served.context} tokens: too few for the profile `{profile.name}`",
            hint=f"its prompts and answers take {longest}: write a smaller profile under `bench:` into builder.yaml",
        )
    if left_out := sorted(set(profile.depth) - set(fitting.depth)):
        depths = ", ".join(map(str, left_out))
        report(Message(f"left out: depth {depths}, as the context of {served.name} has {served.context} tokens"))
    began, started = time.monotonic(), timestamp.now()
    figures: list[Figure] = []
    findings: list[Finding] = []
    with ExitStack() as stack:
        samples = stack.enter_context(MemoryWatch(member)) if member else MemorySamples()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="builder-")))
        tokenizer = tokenizer_file.fetch(served, revision, environ, member, folder / tokenizer_file.NAME)
        throughput = llama_benchy.run(
            served,
            fitting,
            tokenizer,
            environ,
            lambda share, left: report(MeasuringProgress("throughput", share, left)),
        )
        figures += throughput.figures
        findings += throughput.notes
        if throughput.fault:
            findings.append(Finding(throughput.check, "throughput", "fail", throughput.fault))
        else:
            accepted, faults = acceptance.measure(
                served, lambda share: report(MeasuringProgress("acceptance", share, None))
            )
            figures += accepted
            findings += faults
    if not served_model.answers(served, _AFTERWARDS_SECONDS):
        findings.append(Finding("answers", "afterwards", "fail", "the server no longer answers"))
    if growth := memory_watch.leak(samples.taken):
        text = f"the server's memory grew by {growth >> 20} MiB, and went on growing to the end"
        findings.append(Finding("memory", "meanwhile", "fail", text))
    figures += samples.figures()
    if member:
        lines = services.log(member.engine.endpoint, member.service.id)
        figures += server_log.figures(lines, member.service.started)
    return Outcome(
        kind="bench",
        name=profile.name,
        version=str(LLAMA_BENCHY),
        set=digest(profile),
        started=started,
        seconds=time.monotonic() - began,
        verdict=outcome.verdict_of(tuple(findings)),
        figures=tuple(figures),
        findings=tuple(findings),
        counts={"runs": profile.runs},
        sampling={"temperature": 0, "thinking": str(profile.thinking).lower()},
        raw=throughput.raw,
    )


def digest(profile: BenchProfile) -> str:
    """The digest of a profile and the texts that it is measured with: with others it is another figure."""
    # The limit of time changes no figure.
    protocol = {name: value for name, value in asdict(profile).items() if name != "minutes"}
    return outcome.digest([protocol, filler_text.digest(), acceptance.PROMPTS, acceptance.TOKENS])
