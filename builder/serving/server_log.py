"""The meaning of a vLLM log, line by line: the cause of a server's end, the phases of its start, and what vLLM
chose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from builder.base.events import Stage
from builder.base.values import dataclass

# The cause of a server's end, read from its log, and the remedy.

# The prefix of each line of vLLM's processes, and of its logger before the message (0.19 to 0.32).
_PREFIX = re.compile(
    r"^(?:\([\w ]+pid=\d+(?:, ip=[\d.]+)?\)\s?)*(?:(?P<level>INFO|WARNING|ERROR)\s[\d-]+\s[\d:.]+\s\[[^\]]*\]\s?)?"
)
_ERROR = re.compile(r"(?:^|(?<=[\s.:(]))(?:[A-Z]\w*)?(?:Error|Exception|Interrupt): \S.*")
_BARE = re.compile(r"(?:[\w]+\.)*[A-Z]\w*(?:Error|Exception)")
# The message of some errors begins on the next line.
_OPEN = re.compile(r"(?:[\w]+\.)*[A-Z]\w*(?:Error|Exception):")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Programs that end before Python can raise an error: argparse, and the shell.
_REFUSED = re.compile(
    r"(?:[\w./ -]+: )?error: \S.*|\S*sh: .*(?:not found|No such file or directory|Permission denied)$"
    r"|.*\bexec \S+ failed: .*"
)
# pydantic writes several lines for each fault: the field above it, and the value after it.
_VALIDATION = re.compile(r"validation errors? for \w+")
_FAULT = re.compile(r"(?:(?P<field>[\w.]+)\n)? +(?P<own>(?:Value|Assertion) error, )?(?P<text>.*)")
# The last errors of processes that only report the end of another process, which has already logged the cause.
_NO_CAUSE = re.compile(
    r"Engine core initialization failed|Engine process failed to start|WorkerProc initialization failed"
    r"|EngineDeadError|EngineCore encountered an issue|stack trace above for the root cause"
)


class KnownCause(NamedTuple):
    """A cause with a known remedy: the ``hint``, with ``{model}`` for the model's name. Another image helps only if the
    cause is ``in_image``. A typed option that is the cause (``in_options``) says nothing about the image."""

    pattern: str
    hint: str
    in_image: bool = False
    in_options: bool = False


_KNOWN = (
    KnownCause(
        r"max_model_len \(?[\d.]+\)? is greater than|longer than the maximum model length|max_position_embeddings=",
        "the context is longer than the model supports: set a smaller `--max-model-len` in the recipe or `builder run`",
    ),
    KnownCause(
        r"is not a valid model identifier|Invalid repository ID or local directory|RepositoryNotFoundError"
        r"|Repository Not Found|LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled"
        r"|couldn't connect to 'http|Cannot find the requested files in the",
        "the model is missing: `builder download {model}` fetches it, or reports why it cannot",
    ),
    KnownCause(
        r"GatedRepoError|Cannot access gated repo|gated repo|401 Client Error|403 Client Error",
        "the hub restricts access to the model: accept its terms there, and set HF_TOKEN",
    ),
    KnownCause(
        r"\berror: (?:argument |unrecognized arguments)",
        "the vLLM of this image does not accept this argument: correct it in the recipe or on the command line",
        in_image=True,
        in_options=True,
    ),
    KnownCause(
        r"died unexpectedly",
        "a process of the server ended without an error, most often killed by the kernel or earlyoom because memory ran"
        " out: see `journalctl -k -g oom`; a smaller `--gpu-mem` or `--max-model-len` needs less memory",
        in_image=True,
    ),
    KnownCause(
        r"(?i)address already in use",
        "`--port N` uses another port; `builder status` shows the servers, `sudo ss -ltnp` all programs with a port",
    ),
    KnownCause(
        # Both sentences of InstantTensor (instanttensor/_impl.py). 0.2.0 uses half of the memory that CUDA reports as
        # free. 0.2.1 and later use half of MemAvailable on an integrated GPU, and raise the same error if that is too
        # little.
        r"Device memory budget \(\d+ B\) is too small for one I/O operation"
        r"|buffer_size \(\d+ B\) exceeds device memory budget",
        "InstantTensor before 0.2.1 counts the page cache as used memory on a GB10: write `instanttensor==0.2.2` under"
        " `python.packages` in image.yaml and build again. With a later version, memory is really short: stop other"
        " programs that use it. In both cases `builder run … -- --load-format auto` loads without InstantTensor",
        in_image=True,
    ),
)


# Messages of libraries and the kernel. In these cases Python has no error, or only the error that a library failed.
_NATIVE = re.compile(
    r"NCCL WARN .*(?i:fail|error|timed? ?out|closed|refused|no space|unable).*|terminate called after .*"
    r"|Fatal Python error: .*|(?<!\S)\S+: error while loading shared libraries: .*"
    r"|(?<!\S)\S*: symbol lookup error: .*"
    r"|!+ Segfault encountered !+.*|Segmentation fault.*|Bus error.*|Illegal instruction.*|ptxas (?:fatal|error) .*"
    r"|(?:double free or corruption|free\(\): |corrupted |malloc\(\): ).*|^.*[Ee]xec format error.*|NVRM: .*"
    r"|^.*Watchdog caught collective operation timeout.*|No available shared memory broadcast block found in \d+.*"
    r"|(?:Engine core proc|Worker proc|RayWorkerProc) .*died unexpectedly.*|ERROR:\s+\[Errno \d+\] .*"
    r"|nvcc fatal .*|(?<!\S)\S+: fatal error: .*|(?:^|\d )Killed\b.*|^.*oom-kill.*"
    r"|^.*[Oo]ut of memory: Killed process.*"
)
# A compiler's message is below the error that announces it.
_COMPILER = re.compile(r"ptxas (?:fatal|error) .*|nvcc fatal .*|(?<!\S)\S+: fatal error: .*")
_BELOW = 15
# Errors that follow from another error: they count only if there is no other.
_CONSEQUENCE = re.compile(
    r"^(?:\w+\.)*(?:BrokenPipeError|ConnectionResetError|ConnectionRefusedError|EOFError|CancelledError|SystemExit"
    r"|KeyboardInterrupt|ProcessLookupError|ContextTerminated)\b|RuntimeError: cancelled|died unexpectedly"
    r"|Connection (?:closed|reset) by|NCCL error|NCCL communicator was aborted|RPC call to \w+ timed out"
    r"|Ninja build failed|Error building extension|CalledProcessError|Application startup failed"
    r"|DistBackendError|DistNetworkError|DistStoreError|ncclRemoteError"
)
# https://tldp.org/LDP/abs/html/exitcodes.html; 128 and a signal: signal(7).
_EXITS = {
    126: "the command cannot be run (exit code 126): it is not a program, or is for another architecture",
    127: "the command was not found in the image (exit code 127)",
    132: "the processor does not support an instruction (SIGILL, exit code 132)",
    134: "a library aborted (SIGABRT, exit code 134)",
    135: "a memory fault (SIGBUS, exit code 135): often /dev/shm or the disk is full",
    137: "killed by signal 9 (exit code 137): the kernel or earlyoom ended it, most often because memory ran out",
    139: "the program crashed (SIGSEGV, exit code 139), most often in a library",
    143: "ended by SIGTERM (exit code 143): earlyoom or the user stopped it",
}
_END = re.compile(r"^builder: the container ended with exit code (\d+)(, out of memory)?$")


def end_line(exit_code: int, *, out_of_memory: bool) -> str:
    """The last line of a kept log: the end of its container."""
    return f"builder: the container ended with exit code {exit_code}{', out of memory' if out_of_memory else ''}"


def exit_code(lines: Sequence[str]) -> int | None:
    """The exit code in the last lines of a kept log; None without an exit code."""
    match = next((match for line in reversed(lines[-3:]) if (match := _END.match(line))), None)
    return int(match[1]) if match else None


def crash_cause(lines: Sequence[str]) -> str:
    """The cause in one line: the last error that names a cause, else a message of a library or the kernel, else the
    meaning of the exit code in an `end_line`; empty without any of these."""
    texts = [_message(line) for line in lines]
    strong, weak, warned = "", list[str](), list[str]()
    for index in reversed(range(len(texts))):
        if not (error := _error(texts, index)):
            continue
        if _is_remark(lines[index]):
            warned.append(error)
        elif _CONSEQUENCE.search(error):
            weak.append(error)
        else:
            below = (match[0] for text in texts[index + 1 : index + _BELOW] if (match := _COMPILER.search(text)))
            strong = ": ".join([error, *list(below)[:1]])
            break
    end = next((match for text in reversed(texts[-3:]) if (match := _END.match(text))), None)
    if end and end[2]:
        last = f" (its last error: {strong})" if strong else ""
        return f"killed by the kernel: out of memory in the container or on the machine (exit code {end[1]}){last}"
    if strong:
        return strong
    native = [match[0] for text in texts if (match := _NATIVE.search(text))]
    if native:
        return f"{native[0]} ({weak[0]})" if weak else native[-1]
    exit_text = _EXITS.get(int(end[1]), "") if end else ""
    return next(filter(None, (*weak[:1], exit_text, *warned[:1])), "")


def _message(line: str) -> str:
    """A line without vLLM's prefix. A progress bar redraws its line after a carriage return."""
    return _PREFIX.sub("", line.rpartition("\r")[2]).rstrip()


def _is_remark(line: str) -> bool:
    match = _PREFIX.match(line.rpartition("\r")[2])
    return match is not None and match["level"] in {"INFO", "WARNING"}


def trouble(lines: Sequence[str]) -> str:
    """The last fault of a library or the kernel in the log of a server that still runs; empty without a fault."""
    matches = (_NATIVE.search(_message(line)) for line in reversed(lines))
    return next((match[0] for match in matches if match), "")


def first_error(lines: Sequence[str]) -> str:
    """The first error in a log, even if it did not end the server; empty without errors."""
    texts = [_message(line) for line in lines]
    for index, text in enumerate(texts):
        if (error := _error(texts, index)) and not _is_remark(lines[index]):
            return error
        if native := _NATIVE.search(text):
            return native[0]
    return ""


def known_crash_cause(lines: Sequence[str]) -> KnownCause | None:
    """The cause in these lines if its remedy is known, else None."""
    text = crash_cause(lines)
    return next((each for each in _KNOWN if text and re.search(each.pattern, text)), None)


def _error(texts: Sequence[str], index: int) -> str:
    """The error in the line at ``index``, with the lines that belong to it; empty without an error."""
    text = texts[index]
    if _NO_CAUSE.search(text):
        return ""
    if match := _ERROR.search(text):
        fault = _VALIDATION.search(text) and _FAULT.match("\n".join(texts[index + 1 :]))
        if not fault:
            return match[0]
        told = fault["text"].partition("[type=")[0].rstrip()
        return told if fault["own"] or not fault["field"] else f"{fault['field']}: {told}"
    if _OPEN.fullmatch(text):
        return f"{text} {next(filter(None, map(str.strip, texts[index + 1 : index + 5])), '')}".rstrip(": ")
    if _BARE.fullmatch(text):
        frames = (match for line in reversed(texts[:index]) if (match := _FRAME.search(line)))
        frame = next(frames, None)
        return f"{text} in {frame['file']}, line {frame['line']}" if frame else text
    return text if _REFUSED.match(text) else ""


# The phases of a server's start, recognized in vLLM's log.

READY = "ready"

# Log lines of vLLM 0.19 to 0.32, in the order of a start (v1/worker/gpu_model_runner.py, v1/engine/core.py,
# model_executor/model_loader/, compilation/, model_executor/warmup/); uvicorn writes the last.
_PHASES = (
    (r"Fetching \d+ files|Downloading", "downloading the model"),
    (r"Starting to load model|Loading weights|[Ll]oading safetensors|checkpoint shards", "loading weights"),
    (r"torch\.compile|Dynamo bytecode|[Cc]ompil(e|ing) (a graph|and warming)|Cache the graph", "compiling"),
    (r"[Aa]utotun(e|ing)|Warming up|warmup starting|Initial profiling|Model loading took", "warming up"),
    (r"Capturing CUDA graphs|CUDA graph capture|Profiling CUDA graph", "capturing graphs"),
    (r"Graph capturing finished|init engine|Starting vLLM (API )?server|Waiting for application", "starting to answer"),
    (r"Application startup complete", READY),
)
_PERCENT = re.compile(r"(\d{1,3})% Completed|\s(\d{1,3})%\|")
# Lines that name a phase but do not begin it: dumps of the configuration, and phases that are left out.
_SETTINGS = re.compile(r"with config:|non-default args|engine args|\w+_config=|'\w+': [^']*,? '\w+': ")
_LEFT_OUT = re.compile(
    r"\b(?:disable[sd]?|disabling|skip(?:ped|ping|s)?|not supported|turned off|without)\b", re.IGNORECASE
)
# While graphs are captured, a disabled profiler uses the same words.
_CAN_BE_LEFT_OUT = frozenset({"compiling", "warming up"})


@dataclass(frozen=True)
class Phase(Stage):
    """A phase; ``percent`` is the completed part, if the log contains it."""

    percent: int | None = None

    def __str__(self) -> str:
        return self.name if self.percent is None else f"{self.name}, {self.percent} %"


def of_line(line: str) -> Phase | None:
    """The phase that a line of the log shows; None for other lines."""
    # A progress bar redraws its line after \r: only its last state counts.
    last = line.rpartition("\r")[2]
    name = next((name for pattern, name in _PHASES if re.search(pattern, last)), None)
    if name is None or _SETTINGS.search(last) or (name in _CAN_BE_LEFT_OUT and _LEFT_OUT.search(last)):
        return None
    percent = _PERCENT.search(last)
    return Phase(name, int(percent[1] or percent[2]) if percent else None)


def latest_phase(lines: Iterable[str]) -> Phase | None:
    """The last phase in these lines; None if they show no phase."""
    return next((phase for line in reversed(list(lines)) if (phase := of_line(line))), None)


# vLLM's own choices. They change with its version, and only its log names them. The texts come from all releases from
# 0.19.0 to 0.33.0: `tests/serving/test_server_log.py` has each text with its releases.

KV_TOKENS = "KV cache tokens"
_MOE = r"(Fp8|NvFp4|Mxfp4|MxFp8|Int8|WNA16|W4A8(?: Int8)?|Unquantized) MoE\b"
_LINEAR = r"(NVFP4|MXFP[468]|mixed-precision|GPTQMarlin|AutoGPTQ|AWQMarlin|AutoAWQMarlin)(?: GEMM| linear|LinearMethod)"
_CHOICES = (
    ("attention backend", r"Using (?:AttentionBackendEnum\.)?(\w+) attention backend out of potential backends"),
    ("attention backend", r"Using AttentionBackendEnum\.(\w+) backend\."),
    ("MLA prefill backend", r"Using (\w+) MLA prefill backend\."),
    ("vision attention", r"Using backend (?:AttentionBackendEnum\.)?(\w+) for vit attention"),
    ("FlashAttention", r"Using FlashAttention version (\d+)"),
    ("KV cache layout", r"Using (\w+) KV cache layout(?: for|\.)"),
    ("MoE backend", rf"Using '?([\w ]+?)'? (?:backend for )?{_MOE}"),
    ("MoE backend", r"Using (\w+) MoE backend$"),
    ("linear kernels", r"Selected (\w+) for (\w+)$"),
    ("linear kernels", rf"Using (?:\w+\.)?([\w-]+) (?:backend )?for {_LINEAR}"),
    ("sampler", r"Using (FlashInfer) for top-p & top-k sampling"),
    ("model runner", r"Using (V2) Model Runner"),
    ("quantization", r"with config: .*, quantization=([\w-]+), "),
    ("KV cache type", r"with config: .*, kv_cache_dtype=([\w.-]+), "),
    ("CUDA graphs", r"with config: .*'?\"?cudagraph_mode'?\"?: <?(?:CUDAGraphMode\.)?'?(\w+)"),
    ("CUDA graphs", r"setting cudagraph_mode=(\w+)"),
    ("CUDA graphs", r"verriding cudagraph_mode (?:from )?\w+ to (\w+)"),
    ("CUDA graphs", r"Cudagraph mode .*\. ?Overriding to (\w+)\."),
    (KV_TOKENS, r"KV cache size: ([\d,]+) tokens"),
    ("unknown variables", r"Unknown vLLM environment variable detected: (\w+)"),
)
# Of these choices only the last line counts; of the others each line counts.
_ONE = frozenset({"CUDA graphs", KV_TOKENS, "KV cache type", "quantization", "model runner", "FlashAttention"})
_TELLING = re.compile(r"\bUsing |\bSelected |with config: |udagraph|KV cache size|Unknown vLLM")
_MOST_VALUES, _LONGEST_VALUE = 20, 120
_LONGEST_LINE = 20_000  # characters; vLLM's whole configuration needs a quarter of that

Choices = Mapping[str, tuple[str, ...]]


def read_choices(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The choices in a log by name. Each value occurs once, although several processes write it."""
    chosen: dict[str, list[str]] = {}
    for line in lines:
        text = line.rpartition("\r")[2].rstrip()[:_LONGEST_LINE]
        for name, pattern in _CHOICES if _TELLING.search(text) else ():
            if match := re.search(pattern, text):
                value = (match[1] if match.lastindex == 1 else f"{match[1]} ({match[2]})")[:_LONGEST_VALUE]
                values = chosen.setdefault(name, [])
                if name in _ONE:
                    values.clear()
                if value not in values and len(values) < _MOST_VALUES:
                    values.append(value)
    return {name: tuple(values) for name, values in chosen.items()}


# The number of tokens in the KV cache depends on the free memory: a small difference is not a choice.
_SAME_TOKENS = 0.05


@dataclass(frozen=True)
class ChoiceChange:
    """A choice that differs, with the values of both sides; empty for a side that does not name it."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'none'} → {self.after or 'none'}"


def choice_changes(before: Choices, after: Choices) -> tuple[ChoiceChange, ...]:
    """The choices that differ. A log without choices shows no difference."""
    if not before or not after:
        return ()
    order = dict.fromkeys([*(name for name, _ in _CHOICES), *before, *after])
    changes = (
        ChoiceChange(name, ", ".join(before.get(name, ())), ", ".join(after.get(name, ())))
        for name in order
        if {*before.get(name, ())} != {*after.get(name, ())}
    )
    return tuple(change for change in changes if change.name != KV_TOKENS or not _nearly(change))


def _nearly(change: ChoiceChange) -> bool:
    tokens = [
        int(text.replace(",", "")) if text.replace(",", "").isdecimal() else 0 for text in (change.before, change.after)
    ]
    return 0 in tokens or abs(tokens[0] - tokens[1]) <= _SAME_TOKENS * max(tokens)
