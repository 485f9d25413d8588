"""The front end of an image, asked in a container of it that has no network: one start for all models."""

from __future__ import annotations

import json
import signal
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.base import records, words
from builder.base.errors import BuildFailedError
from builder.base.events import Message
from builder.engine import containers, installed
from builder.plan.plan_model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.base.events import Report
    from builder.engine.client import Endpoint
    from builder.engine.containers import Container
    from builder.lab.prove.conversations import Question


Json = dict[str, Any]

_DRIVER = Path(__file__).with_name("driver.py")
_FOLDER = PurePosixPath("/tmp/builder-prove")  # noqa: S108
# Leaves beside the work what the driver wrote, and the exit code with which it ended.
_DRIVE = """\
"$2" -B "$1/driver.py" "$1" > "$1/output" 2>&1
printf %s $? > "$1/ended"
"""
# Waits, a minute at most, for another state than the last one, or the driver's end; prints its exit code, then the
# state. One command that waits instead of many that look: each costs as much as a hundred renders.
_NEXT_STATE = """\
n=0
while [ $n -lt 200 ]; do
    ended=$(cat "$1/ended" 2> /dev/null)
    now=$(cat "$1/state.json" 2> /dev/null)
    if [ -n "$ended" ] || [ "$now" != "$2" ]; then break; fi
    n=$((n + 1))
    sleep 0.3
done
printf '%s\\n%s' "$ended" "$now"
"""
_START_SECONDS = 600
_LONGEST = 3600
# vLLM with a tokenizer of 200,000 words takes 2 GiB; a template that writes without an end takes what there is.
_MEMORY = 6 << 30
_KILLED = 128 + signal.SIGKILL
_NO_PYTHON = "a proof runs vLLM's front end by it; `builder probe` and `builder bench` ask a server from outside"
# Nothing is downloaded, counted or compiled; with CPU's vLLM nothing is set aside for a cache that is not there.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Setup:
    """A model as it is served: the files of its folder, the options of its front end, files that the recipe mounts, and
    the questions."""

    model: str
    files: Mapping[str, bytes]
    options: tuple[str, ...]
    environment: Mapping[str, str]
    template: str
    mounted: Mapping[PurePosixPath, bytes]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class SetupAnswers:
    """The answers by question; None where the front end did not start, as ``log`` says. ``broke_off`` says how it ended
    early, ``was_killed`` that this need be no fault of its own; ``template`` is the text of the setup's template."""

    answers: Mapping[str, Json] | None = None
    template: str | None = None
    log: str = ""
    seconds: float = 0.0
    memory: int = 0
    broke_off: str = ""
    was_killed: bool = False


@dataclass(frozen=True)
class FrontEndRun:
    """The version of vLLM, and the answers for each setup, or why there are none."""

    version: str
    setups: tuple[SetupAnswers, ...] = ()
    failure: str = ""


def ask_front_end(
    endpoint: Endpoint, image: str, setups: Sequence[Setup], labels: Mapping[str, str], report: Report
) -> FrontEndRun:
    """Starts the front end of ``image`` for each setup and asks its questions. Raises ImageStateError for a missing
    image, ImageContentsError for one without a Python that runs here."""
    models = ", ".join(dict.fromkeys(setup.model for setup in setups))
    report(Message(f"starting vLLM's front end for {models}"))
    with containers.running(endpoint, image, labels=labels, workdir=WORKSPACE, memory=_MEMORY) as container:
        python = installed.require_python(container, image, _NO_PYTHON)
        containers.put_file(container, _files(setups))
        containers.start_container(container, ["sh", "-c", _DRIVE, "sh", str(_FOLDER), python])
        try:
            state = _await(container, setups, report)
            if state["step"] != "done":
                return FrontEndRun(state.get("version", ""), failure=state.get("reason", "it ended without a word"))
            files = (str(_FOLDER / f"answers-{number}.json") for number in range(len(setups)))
            texts = (container.run(["cat", file], timeout=60).output for file in files)
            return FrontEndRun(state["version"], tuple(records.parse(text, SetupAnswers) for text in texts))
        except BuildFailedError as error:
            return FrontEndRun("", failure=f"its answers are too long, or do not come: {error.message}")
        # The image is anybody's: its shell and its Python may say whatever they like.
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return FrontEndRun("", failure="it answers with something else than was asked")


def _files(setups: Sequence[Setup]) -> dict[PurePosixPath, bytes]:
    files = {_FOLDER / "driver.py": _DRIVER.read_bytes()}
    work: list[Json] = []
    for number, setup in enumerate(setups):
        folder = _FOLDER / f"model-{number}"
        files |= {folder / name: content for name, content in setup.files.items()}
        files |= setup.mounted
        work.append(
            {
                "argv": [str(folder), *setup.options],
                # The recipe's variables are the server's; these decide that nothing is asked of the network.
                "env": {**setup.environment, **_ENVIRONMENT},
                "cwd": WORKSPACE,
                "template": setup.template,
                "questions": [
                    {"name": each.name, "kind": each.kind, "seed": zlib.crc32(each.name.encode()), **each.body}
                    for each in setup.questions
                ],
            }
        )
    whole = {"env": _ENVIRONMENT, "start_seconds": _START_SECONDS, "setups": work}
    return {**files, _FOLDER / "work.json": json.dumps(whole).encode()}


def _await(container: Container, setups: Sequence[Setup], report: Report) -> Json:
    began = time.monotonic()
    state: Json = {}
    text = ""
    while time.monotonic() < began + _LONGEST:
        result = container.run(["sh", "-c", _NEXT_STATE, "sh", str(_FOLDER), text], timeout=300)
        ended, _, text = result.output.partition("\n")
        state = _parsed(text) or state
        if state.get("step") in {"done", "failed"}:
            return state
        if ended:
            return {**state, "step": "failed", "reason": _reason(container, int(ended))}
        if state.get("step", "importing") == "importing" and time.monotonic() > began + _START_SECONDS:
            return {**state, "step": "failed", "reason": f"vLLM was not imported within {_START_SECONDS} seconds"}
        if state.get("step") == "asking":
            setup = setups[state["setup"]]
            report(Message(f"asking it {words.counted(len(setup.questions), 'question')} as {setup.model}"))
    return {**state, "step": "failed", "reason": f"it had not ended after {_LONGEST} seconds"}


def _reason(container: Container, code: int) -> str:
    if code == _KILLED:
        return f"it was killed, as for want of memory: it may take {_MEMORY >> 30} GiB"
    lines = container.run(["tail", "-n", "5", str(_FOLDER / "output")], timeout=60).output.strip()
    return f"its Python ended with {code} before the work was done" + (f":\n{lines}" if lines else "")


def _parsed(text: str) -> Json:
    content = None
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
    return content if isinstance(content, dict) else {}
