"""The cause of a server's end, read from the lines that it logged, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What vLLM puts before each line of its processes, and its own logger before the message (0.19 to 0.32).
_PREFIX = re.compile(r"^(?:\([\w ]+pid=\d+\)\s?)?(?:(?:INFO|WARNING|ERROR)\s[\d-]+\s[\d:.]+\s\[[^\]]*\]\s?)?")
_ERROR = re.compile(r"(?:^|(?<=[\s.:(]))[A-Z]\w*(?:Error|Exception|Interrupt): \S.*")
_BARE = re.compile(r"(?:[\w]+\.)*[A-Z]\w*(?:Error|Exception)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Programs that end before Python has anything to raise: argparse, and the shell.
_REFUSED = re.compile(
    r"(?:[\w./ -]+: )?error: \S.*|\S*sh: .*(?:not found|No such file or directory|Permission denied)$"
    r"|.*\bexec \S+ failed: .*"
)
# pydantic gives each fault lines of its own, with the place above it where it is a field's.
_VALIDATION = re.compile(r"validation errors? for \w+")
_VALIDATION_END = re.compile(r"\s*\[type=\w+.*$|\s*\[type=\w+,.*")
_VALUE_ERROR = re.compile(r"^\s*(?:Value|Assertion) error, ")
_FURTHER = "For further information visit"
# The last errors of processes that only tell that another one ended, which has logged the cause before.
_NO_CAUSE = re.compile(
    r"Engine core initialization failed|Engine process failed to start|WorkerProc initialization failed"
    r"|EngineDeadError|EngineCore encountered an issue|stack trace above for the root cause"
)


@dataclass(frozen=True)
class KnownCause:
    """A cause with a known remedy, which ``hint`` gives, with ``{model}`` for the model's name. Another image does not
    help, unless the cause is ``in_image``."""

    pattern: re.Pattern[str]
    hint: str
    in_image: bool = False


_KNOWN = (
    KnownCause(
        re.compile(
            r"max_model_len \(?[\d.]+\)? is greater than|longer than the maximum model length|max_position_embeddings="
        ),
        "the model itself takes no more: a smaller `--max-model-len`, in the recipe or as an option of `builder run`",
    ),
    KnownCause(
        re.compile(
            r"is not a valid model identifier|Invalid repository ID or local directory|RepositoryNotFoundError"
            r"|Repository Not Found|LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled"
            r"|couldn't connect to 'http|Cannot find the requested files in the"
        ),
        "the model is not there: `builder download {model}` fetches it, or says why it cannot be had",
    ),
    KnownCause(
        re.compile(r"GatedRepoError|Cannot access gated repo|gated repo|401 Client Error|403 Client Error"),
        "the hub gives the model only to those who may have it: accept its terms there, and set HF_TOKEN",
    ),
    KnownCause(
        re.compile("address already in use", re.IGNORECASE),
        "`--port N` takes another port; `builder status` shows what serves on this one",
    ),
    KnownCause(
        # Both sentences of InstantTensor (instanttensor/_impl.py). 0.2.0 takes half of what CUDA calls free; 0.2.1 and
        # later take half of MemAvailable where the GPU is integrated, and raise the same where that is too little.
        re.compile(
            r"Device memory budget \(\d+ B\) is too small for one I/O operation"
            r"|buffer_size \(\d+ B\) exceeds device memory budget"
        ),
        "InstantTensor before 0.2.1 counts the page cache as used memory on a GB10: write `instanttensor==0.2.2` under"
        " `python.packages` in image.yaml and build again. With a later one the memory is short: stop what else uses"
        " it. In both cases `builder run … -- --load-format auto` loads without InstantTensor",
        in_image=True,
    ),
)


def cause(lines: Sequence[str]) -> str:
    """Returns the cause in a line: the last error that names one; empty if there is none."""
    texts = [_PREFIX.sub("", line.rpartition("\r")[2]).rstrip() for line in lines]
    for index in range(len(texts) - 1, -1, -1):
        if error := _error(texts, index):
            return error
    return ""


def known_cause(lines: Sequence[str]) -> KnownCause | None:
    """Returns the cause that ``lines`` give, where its remedy is known; None for any other."""
    text = cause(lines)
    return next((each for each in _KNOWN if each.pattern.search(text)), None) if text else None


def _error(texts: Sequence[str], index: int) -> str:
    """The error that the line at ``index`` tells, with the lines that belong to it; empty where it tells none."""
    text = texts[index]
    if _NO_CAUSE.search(text):
        return ""
    if match := _ERROR.search(text):
        return _validation(texts[index + 1 :]) or match[0] if _VALIDATION.search(text) else match[0]
    if _BARE.fullmatch(text):
        frames = (match for line in reversed(texts[:index]) if (match := _FRAME.search(line)))
        frame = next(frames, None)
        return f"{text} in {frame['file']}, line {frame['line']}" if frame else text
    return text if _REFUSED.match(text) else ""


def _validation(following: Sequence[str]) -> str:
    """The first fault that pydantic tells, without what it was given."""
    field = ""
    for line in following:
        if not line.strip() or _FURTHER in line:
            continue
        if not line.startswith(" "):
            if field or not re.fullmatch(r"[\w.]+", line):
                break
            field = line
            continue
        told = _VALIDATION_END.sub("", line).strip()
        return _VALUE_ERROR.sub("", told) if _VALUE_ERROR.match(told) else f"{field}: {told}" if field else told
    return ""
