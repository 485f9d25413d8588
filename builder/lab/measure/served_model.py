"""A measured server: its model, the subject of its results, and its key.

The key is never shown or written (`redaction.learn`). Other programs get it only in their environment.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import http_client, records, redaction
from builder.base.errors import ConflictError, MeasuringError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, field, replace
from builder.definitions import command
from builder.definitions.container import LABEL
from builder.engine import containers, machine
from builder.evidence import run_record, standing
from builder.lock import checking, lock_file
from builder.lock.model import ImageName
from builder.serving import readiness
from builder.serving.running import RunningServer, StartOptions, answers

if TYPE_CHECKING:
    from builder.evidence.run_record import Kind, Subject
    from builder.lab.measure.outcome import Outcome
    from builder.numbers.workspace import Workspace


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
