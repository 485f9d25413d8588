"""The parts, one process each, within the time that is left; what becomes of each."""

from __future__ import annotations

import json
import math
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.evidence.run_record import Figure, Finding
from tests.gpu.parts.part_run import NOT_ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.gpu.vllms import ImageVllm, InstalledVllm


# After a part's own end: for a container to start and go, and for the stacks of what did not end.
MARGIN = 25.0
_LEAST = 10.0  # seconds: less is not worth starting a part for
_TOLD = 1500  # characters of what a part said before it ended


@dataclass(frozen=True)
class Part:
    """A script in ``parts/`` and its arguments. ``seconds``: what it may take at most; ``mod``: the one it is about."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    seconds: float = 300.0
    mod: str = ""


@dataclass
class Outcome:
    """All that the parts have found. ``ended`` has the results of each part that came to its end, ``left_out`` the
    names of the other parts."""

    figures: list[Figure] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    ended: dict[str, list[Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(finding.verdict == "fail" for finding in self.findings)

    def has(self, mod: str) -> bool:
        """Whether the mod is in this vLLM, as far as a part has told."""
        told = [versions["mods"].split() for versions in self.versions.values() if "mods" in versions]
        return all(mod in mods for mods in told)

    def take(self, part: Part, results: Sequence[Mapping[str, Any]]) -> None:
        for result in results:
            if figure := result.get("figure"):
                self.figures.append(Figure(**{**figure, "values": tuple(figure["values"])}))
            if finding := result.get("finding"):
                self.findings.append(Finding(**{**finding, "at": f"{part.name}: {finding['at']}"}))
            if count := result.get("count"):
                self.counts[count] = self.counts.get(count, 0) + 1
            self.versions.setdefault(part.name, {}).update(result.get("version", {}))

    def leave_out(self, part: Part, reason: str) -> None:
        self.left_out.append(part.name)
        self.findings.append(Finding(part.name, part.script, "unclear", f"not run to its end: {reason}"))


def run(
    vllm: InstalledVllm | ImageVllm,
    parts: tuple[Part, ...],
    say: Callable[[str], None],
    limit: float = math.inf,
    ended: Mapping[str, list[Any]] | None = None,
) -> Outcome:
    """Runs the parts in their order, for ``limit`` seconds at most. What an earlier run found in the parts that it
    ``ended`` is taken over. The first part tells the machine: where that fails, none of the others can run."""
    outcome, began = Outcome(), time.monotonic()
    stopped = ""
    try:
        for part in parts:
            if ended and part.name in ended:
                outcome.ended[part.name] = ended[part.name]
                outcome.take(part, ended[part.name])
                continue
            left = limit - (time.monotonic() - began)
            if part.mod and not outcome.has(part.mod):
                reason = f"not run: the mod {part.mod} is not in this vLLM"
                outcome.findings.append(Finding(part.name, part.script, "unclear", reason))
                continue
            if stopped or left < _LEAST:
                outcome.leave_out(part, stopped or f"the {limit / 60:.0f} minutes were over")
                continue
            say(f"{part.name} …")
            started = time.monotonic()
            _run_part(vllm, part, min(left, part.seconds), outcome)
            say(f"{part.name}: {time.monotonic() - started:.0f} s")
            if part is parts[0] and (outcome.failed or not outcome.versions):
                stopped = f"the part {part.name} failed"
    finally:
        vllm.clean_up()
    return outcome


def _run_part(vllm: InstalledVllm | ImageVllm, part: Part, seconds: float, outcome: Outcome) -> None:
    command = vllm.command(part.script, part.arguments, seconds)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + MARGIN)
    except subprocess.TimeoutExpired as ended:
        vllm.end()
        _not_ended(part, seconds, _text(ended.stdout), outcome)
        return
    if done.returncode == NOT_ENDED:
        _not_ended(part, seconds, done.stdout, outcome)
        return
    results = _told(done.stdout)
    outcome.take(part, results)
    if results and not done.returncode:
        outcome.ended[part.name] = results
    else:
        last = (done.stdout[-_TOLD:] + done.stderr[-_TOLD:]).strip()
        outcome.findings.append(Finding(part.name, part.script, "fail", f"ended with {done.returncode}: {last}"))


def _not_ended(part: Part, seconds: float, output: str, outcome: Outcome) -> None:
    results = _told(output)
    outcome.take(part, results)
    stood = "".join(f"\n{process}" for result in _results(output) for process in result.get("stood", ()))
    reason = f"it had not ended after {seconds:.0f} seconds, and told {len(results)} results until then"
    outcome.leave_out(part, f"{reason}; it stood at:{stood}" if stood else reason)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _told(output: str) -> list[Mapping[str, Any]]:
    return [result for result in _results(output) if "stood" not in result]


def _results(output: str) -> Iterator[Mapping[str, Any]]:
    for line in output.splitlines():
        if line.startswith('{"result": '):
            yield json.loads(line)["result"]
