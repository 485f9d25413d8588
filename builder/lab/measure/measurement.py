"""A measured server: its model, the subject of its results, and its key. Then the outcome of a measurement, which
becomes evidence of the measured image, and the comparison of outcomes.

The key is never shown or written (`redaction.learn`). Other programs get it only in their environment.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import http_client, records, redaction, words
from builder.base.errors import ConflictError, MeasuringError
from builder.base.events import Message, Report, Stage
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, field, replace
from builder.definitions import command
from builder.definitions.container import LABEL
from builder.engine import containers, machine
from builder.evidence import run_record, standing, statistics
from builder.evidence.run_record import Evidence, Figure, Finding, Kind, Subject, Verdict
from builder.lock import checking, lock_file
from builder.lock.model import ImageName
from builder.serving import readiness
from builder.serving.running import RunningServer, StartOptions, answers

if TYPE_CHECKING:
    from builder.evidence.statistics import Direction, Judgement, SeriesComparison
    from builder.numbers.workspace import Workspace
    from builder.serving.server_log import ChoiceChange


@dataclass(frozen=True)
class MeasuredServer:
    """A server that answers. Without an ``image``, its results cannot be kept: it has no number, or tries mods."""

    running: RunningServer
    model: ServedModel
    image: ImageName | None


def find_measured_server(server: RunningServer) -> MeasuredServer:
    """Raises MeasuringError if the server does not answer."""
    if not server.address or not answers(server):
        hint = f"`builder logs {server.name}` may show why"
        raise MeasuringError(f"{server.name} is running but does not answer", hint=hint)
    repository, _, number = server.image.rpartition(":")
    is_numbered = number.isdecimal() and checking.is_a("repository", repository)
    image = ImageName(repository, int(number)) if is_numbered and not server.tried else None
    return MeasuredServer(server, ask_served_model(server.address, api_key_of(server)), image)


def subject(workspace: Workspace, measured: MeasuredServer, kind: Kind) -> Subject | None:
    """The subject of a run on the server; None for an image without a number."""
    lock = lock_file.read_project_lock(workspace.project)
    if measured.image is None or lock.image(measured.image) is None:
        return None
    server = measured.running
    present = standing.present_subject(
        workspace.project,
        lock,
        measured.image,
        server.model or None,
        kind,
        recipe=standing.recorded_recipe(workspace.project, server.labels.get(f"{LABEL}.recipe", "")),
        environ=workspace.environment,
        overrides=_overrides(server),
    )
    read = [machine.read_machine(each.engine, workspace.environment, server.image) for each in server.members]
    return replace(present, machine=read[0], workers=tuple(read[1:]))


def keep_run(
    workspace: Workspace, measured: MeasuredServer, outcome: Outcome, weights: Mapping[str, str] | None = None
) -> Path | None:
    """Stores the outcome as evidence of the server's number, and returns the file; None without a number. ``weights``
    are settings of the start that its container does not have. Raises ConflictError if the server was stopped during
    the measurement, OSError, UnsafePathError."""
    # A container that ended by itself still exists.
    is_gone = any(
        containers.find_container(member.engine, member.service.id) is None for member in measured.running.members
    )
    if outcome.verdict != "pass" and is_gone:
        name = measured.running.name
        message = f"another command or program stopped {name} during the measurement: no result was kept"
        raise ConflictError(message, hint="run the command again")
    of_run = subject(workspace, measured, outcome.kind)
    if measured.image is None or of_run is None:
        return None
    of_run = replace(of_run, overrides={**of_run.overrides, **(weights or {})})
    evidence = replace(outcome.evidence(of_run), chosen=readiness.chosen_by(measured.running))
    return run_record.add_run(workspace.project, measured.image, evidence, outcome.raw or None)


def _overrides(server: RunningServer) -> dict[str, str]:
    options = StartOptions.of_labels(server.labels)
    extra = without(options.extra)
    every = {**options.overrides, **({"--": " ".join(extra)} if extra else {})}
    return {name: value[:4000] for name, value in every.items()}


# The model of a server, read from its OpenAI API.

_SECONDS = 30.0
_LARGEST = 16 << 20
_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class ServedModel:
    """The model of a server at ``address`` (``http://HOST:PORT/v1``); ``context`` is its maximum context in tokens.
    ``source`` is an id of the Hub, or a folder of the server; ``key`` may be empty."""

    address: str
    name: str
    context: int
    source: str = ""
    key: str = field(default="", repr=False)

    @property
    def root(self) -> str:
        return self.address.removesuffix("/v1")


def ask_served_model(address: str, key: str = "") -> ServedModel:
    """The model of the server at ``address``. Raises MeasuringError."""
    try:
        listing = records.parse_json(get(f"{address}/models", key=key))
        model = listing["data"][0]
        context = model.get("max_model_len")
        longest = context if isinstance(context, int) else _DEFAULT_CONTEXT
        return ServedModel(address, str(model["id"]), longest, str(model.get("root") or ""), key)
    except NoAnswerError as error:
        hint = "`builder status` shows whether the server answers; its key is read only from --api-key and VLLM_API_KEY"
        raise MeasuringError(f"{address} does not answer: {error}", hint=hint) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MeasuringError(f"{address}/models lists no model", hint="check that the recipe starts vLLM") from None


def get(address: str, seconds: float = _SECONDS, key: str = "") -> str:
    """The text at ``address``. Raises NoAnswerError if it does not arrive completely."""
    return _sent("GET", address, key, seconds).decode(errors="replace")


def complete(served: ServedModel, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    return post(served, f"{served.address}/chat/completions", body, seconds)


def post(
    served: ServedModel, url: str, body: dict[str, Any], seconds: float, largest: int = _LARGEST
) -> dict[str, Any]:
    """The answer to a request for the model at ``url``, at most ``largest`` bytes. Raises NoAnswerError."""
    content = _sent("POST", url, served.key, seconds, {"model": served.name, **body}, largest)
    try:
        parsed = records.parse_json(content)
    except ValueError as error:
        raise NoAnswerError(str(error)) from None
    if not isinstance(parsed, dict):
        raise NoAnswerError("the answer is not a JSON object")
    return parsed


def stream(served: ServedModel, body: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat completion. Raises NoAnswerError, also if the stream ends too early."""
    wanted = {"model": served.name, "stream": True, "stream_options": {"include_usage": True}, **body}
    with (
        http_client.near(seconds, _headers(served.key)) as client,
        client.stream("POST", f"{served.address}/chat/completions", json=wanted) as answer,
    ):
        if not answer.is_success:
            refusal = b"".join(http_client.limited(answer.iter_bytes(), _LARGEST, seconds))
            raise _refused(answer.status_code, refusal)
        for line in http_client.limited(answer.iter_lines(), _LARGEST, seconds):
            text = line.removeprefix("data:").strip()
            if not line.startswith("data:"):
                continue
            if text == "[DONE]":
                return
            try:
                event = records.parse_json(text)
            except ValueError as error:
                raise NoAnswerError(str(error)) from None
            if isinstance(event, dict):
                yield event
    raise NoAnswerError("the stream ended before it was complete")


def model_answers(served: ServedModel, seconds: float = _SECONDS) -> bool:
    body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 4, "temperature": 0}
    try:
        return bool(complete(served, body, seconds).get("choices"))
    except NoAnswerError:
        return False


def _sent(
    method: str, url: str, key: str, seconds: float, body: dict[str, Any] | None = None, largest: int = _LARGEST
) -> bytes:
    with http_client.near(seconds, _headers(key)) as client:
        answer = http_client.send(client, method, url, largest=largest, seconds=seconds, body=body)
    if not answer.is_success:
        raise _refused(answer.status_code, answer.content)
    return answer.content


def _headers(key: str) -> dict[bytes, bytes]:
    return {b"Authorization": f"Bearer {key}".encode()} if key else {}


def _refused(status: int, content: bytes) -> NoAnswerError:
    return NoAnswerError(f"the server answers {status}: {content[:300].decode(errors='replace')}")


# The API key of a server. vLLM reads it from ``--api-key``, or else from ``VLLM_API_KEY``
# (https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html). The key is read from the server's own
# container.

VARIABLE = "VLLM_API_KEY"
PASSED_ON = "BUILDER_API_KEY"
"""The environment variable that passes the key to a measuring program."""

_OPTIONS = ("--api-key", "--api_key")
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def api_key_of(server: RunningServer) -> str:
    """The key of a server; empty if it requires none."""
    argv, environ = containers.service_process(server.head.engine, server.head.service.id)
    if key := in_command(argv, environ) or environ.get(VARIABLE, ""):
        redaction.learn(key)
    return key


def in_command(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The key in a command, or in a script of the command; empty if it has no key."""
    return command.option(tuple(_words(argv, environ)), *_OPTIONS) or ""


def without(words: Sequence[str]) -> Sequence[str]:
    return functools.reduce(command.without, _OPTIONS, words)


def passed_on(key: str) -> dict[str, str]:
    return {PASSED_ON: key} if key else {}


def served_option(server: RunningServer, *names: str) -> str:
    """The value of an option in a server's command, under any of its ``names``; empty if it is missing."""
    argv, environ = containers.service_process(server.head.engine, server.head.service.id)
    return command.option(tuple(_words(argv, environ, names)), *names) or ""


def _words(argv: Sequence[str], environ: Mapping[str, str], options: Sequence[str] = _OPTIONS) -> Iterator[str]:
    """The words of a command, and of scripts in it that contain one of ``options``. Variables of scripts are replaced
    with their values."""
    for argument in argv:
        if not any(option in argument for option in options) or len(argument.split()) == 1:
            yield argument
            continue
        script = _REFERENCE.sub(lambda match: environ.get(match[1] or match[2], match[0]), argument)
        try:
            yield from shlex.split(script, comments=True)
        except ValueError:  # a script with unbalanced quotes, such as in a here-document
            yield from script.split()


# The outcome of a measurement.


@dataclass(frozen=True)
class Outcome:
    """A measurement with the tool ``version``; ``set`` is the digest of its protocol. ``raw`` is the tool's whole
    output."""

    kind: Kind
    name: str
    version: str
    set: str
    started: str
    seconds: float
    verdict: Verdict
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, int | float | str] = field(default_factory=dict)
    raw: bytes = b""

    def evidence(self, subject: Subject) -> Evidence:
        parts = {name: value for name, value in vars(self).items() if name != "raw"}
        return Evidence(**{**parts, "subject": subject, "seconds": round(self.seconds, 3)})


@dataclass(frozen=True)
class MeasuringProgress(Stage):
    """The completed share, and the remaining seconds, if known."""

    share: float
    seconds_left: float | None

    @classmethod
    def since(cls, name: str, share: float, began: float | None) -> MeasuringProgress:
        """The progress of a measurement that ``began`` at this time of the monotonic clock."""
        passed = time.monotonic() - began if began is not None else 0.0
        return cls(name, share, passed * (1 - share) / share if share and began is not None else None)

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {words.duration_text(self.seconds_left)} left"
        return f"{self.name}: {self.share:.0%}{left}"


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    return "fail" if "fail" in verdicts else "unclear" if "unclear" in verdicts else "pass"


def outcome_digest(content: Any) -> str:
    return words.sha256_of(json.dumps(content, sort_keys=True).encode())


# Two numbers are measured alternately (A B A B …), so that drift of the machine affects both, until their figures
# clearly differ or clearly do not.

# These figures decide. Other figures are less reliable: the prefill rate is a quotient of two short times, and memory
# has one value per start.
JUDGED = ("tg", "ttft")


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of two numbers, and how the second compares with the first."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    means: tuple[float, float]
    comparison: SeriesComparison


@dataclass(frozen=True)
class ComparedNumbers:
    """The comparison of ``second`` with ``first``. ``failures`` says which of them failed, and how. ``chosen`` has the
    settings that vLLM chose differently for the second."""

    first: ImageName
    second: ImageName
    rounds: int
    judgement: Judgement
    figures: tuple[ComparedFigure, ...]
    failures: tuple[str, ...]
    chosen: tuple[ChoiceChange, ...] = ()


def compare_alternating(
    first: ImageName, second: ImageName, measure: Callable[[ImageName], Outcome], report: Report
) -> ComparedNumbers:
    """Measures the two alternately, at most `statistics.MOST_ROUNDS` times each. The comparison ends if a server fails;
    if only the second failed, it is worse. Raises MeasuringError if they have no common figure."""
    outcomes: tuple[list[Outcome], list[Outcome]] = ([], [])
    compared: tuple[ComparedFigure, ...] = ()
    for number in range(1, statistics.MOST_ROUNDS + 1):
        for side, image in zip(outcomes, (first, second), strict=True):
            report(Message(f"round {number}: {image}"))
            side.append(measure(image))
        failed = [side[-1].verdict == "fail" for side in outcomes]
        if any(failed):
            failures = tuple(
                f"{image}: {finding.text}"
                for image, side in zip((first, second), outcomes, strict=True)
                for finding in side[-1].findings
                if side[-1].verdict == finding.verdict == "fail"
            )
            judgement: Judgement = "worse" if failed == [False, True] else "no difference"
            return ComparedNumbers(first, second, number, judgement, compared, failures)
        compared = _compared(outcomes)
        if not compared:
            raise MeasuringError(f"{first} and {second} have no figure in common that each round measured")
        if number >= statistics.FEWEST_ROUNDS and all(figure.comparison.is_settled for figure in compared):
            break
    verdicts = {figure.comparison.verdict for figure in compared}
    overall: Judgement = "worse" if "worse" in verdicts else "better" if "better" in verdicts else "no difference"
    return ComparedNumbers(first, second, len(outcomes[0]), overall, compared, ())


def _compared(outcomes: tuple[list[Outcome], list[Outcome]]) -> tuple[ComparedFigure, ...]:
    firsts, seconds = (_rounds(side) for side in outcomes)
    both = [key for key in firsts if len(firsts[key]) == len(seconds.get(key, ())) == len(outcomes[0])]
    result = []
    for key in both:
        figure = firsts[key][0]
        direction: Direction = "lower" if figure.better == "lower" else "higher"
        sides = [[each.values for each in side[key]] for side in (firsts, seconds)]
        comparison = statistics.compare_runs(sides[0], sides[1], direction, len(both))
        means = tuple(sum(map(sum, side)) / max(sum(map(len, side)), 1) for side in sides)
        result.append(ComparedFigure(figure.name, figure.at, figure.unit, (means[0], means[1]), comparison))
    return tuple(result)


def _rounds(outcomes: Sequence[Outcome]) -> dict[str, list[Figure]]:
    rounds: dict[str, list[Figure]] = {}
    for figure in (figure for outcome in outcomes for figure in outcome.figures):
        if figure.name in JUDGED and figure.values:
            rounds.setdefault(json.dumps([figure.name, dict(figure.at)], sort_keys=True), []).append(figure)
    return rounds
