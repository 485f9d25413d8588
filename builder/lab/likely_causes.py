"""The likely causes of a failure: all differences from the last working state, ranked, each with its undo.

These are pure functions. Each part has a weight. The text of the failure, known faults, and earlier working states
change that weight.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from builder.base import machine_record, words
from builder.base.values import dataclass

if TYPE_CHECKING:
    from builder.base.machine_record import Machine, MachineChange
    from builder.serving.readiness import OptionsInUse

Axis = Literal["machine", "image", "mods", "template", "recipe", "weights"]


@dataclass(frozen=True)
class LikelyCause:
    """A change with its ``details``, and how to undo it. ``reasons`` explain its rank; a larger ``weight`` is more
    likely."""

    axis: Axis
    text: str
    undo: str
    weight: int
    details: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


# The kind of a failure, from its text, and the weights that the kind adds to causes.

FailureKind = Literal["network", "GPU", "memory", "software", "options", "template", "files", ""]


class _FailureClass(NamedTuple):
    words: str
    pattern: str
    weights: Mapping[str, int]


def _weights(text: str) -> dict[str, int]:
    return {name: int(weight) for name, _, weight in (each.rpartition(" ") for each in text.split(", "))}


# The first match counts. The texts come from NCCL, CUDA, vLLM, the Hub and the shell.
_KINDS: Mapping[FailureKind, _FailureClass] = {
    "network": _FailureClass(
        "the link between machines",
        r"NCCL|ibv_|RDMA|RoCE|mlx5|gloo|DistBackendError|ncclRemoteError|rendezvous|TCPStore"
        r"|collective operation timeout|RPC call to \w+ timed out|shared memory broadcast block",
        _weights("kernel 45, CMA 45, links 50, parameters 40, firmware 30, driver 25, image 20, free memory 10"),
    ),
    "options": _FailureClass(
        "options",
        r"unrecognized arguments?|invalid choice|the following arguments are required|expected \w+ arguments?"
        r"|validation errors? for \w*Config|\berror: argument|unknown (?:option|flag|environment)",
        _weights("recipe 60, sizes 60, image 50, mods 10"),
    ),
    "memory": _FailureClass(
        "memory",
        r"(?i)out ?of ?memory|No available memory|Cannot allocate memory|KV cache is needed|free memory on device"
        r"|max_model_len|less than desired GPU memory utilization|memory budget|killed by (?:the kernel|signal 9)"
        r"|NV_ERR_NO_MEMORY",
        _weights(
            "free memory 55, memory 50, CMA 50, parameters 30, kernel 30, driver 10, image 15, sizes 60, recipe 10"
        ),
    ),
    "software": _FailureClass(
        "the software in the image",
        r"no kernel image|undefined symbol|ImportError|ModuleNotFoundError|cannot open shared object|PTX|ptxas"
        r"|AttributeError|cannot import name|No valid attention backend|not supported|NotImplementedError|TypeError",
        _weights("image 45, mods 40, driver 10, recipe 5, sizes 5, toolkit 10"),
    ),
    "GPU": _FailureClass(
        "the GPU",
        r"CUDA|cuda|cuDNN|cuBLAS|Xid|illegal memory|device-side assert|NVRM|misaligned|Segmentation fault|SIGSEGV",
        _weights("driver 45, kernel 25, GPU 40, firmware 25, toolkit 20, image 30, mods 15"),
    ),
    "template": _FailureClass(
        "templates or parsers",
        r"(?i)chat.?template|jinja|tool.?(?:call|parser)|reasoning.?parser|tokeni[sz]er",
        _weights("template 60, weights 40, mods 40, image 25, recipe 20, sizes 0"),
    ),
    "files": _FailureClass(
        "files of the model",
        r"FileNotFoundError|No such file|gated|Repository|HFValidation|LocalEntryNotFound|401 Client|403 Client"
        r"|No space left|safetensors|model identifier|snapshot",
        _weights("weights 60, recipe 30, template 20"),
    ),
}
_KNOWN_BAD, _WORKED, _BETWEEN_NODES, _TYPED = 100, -35, 12, 60


def failure_kind(text: str) -> FailureKind:
    return next((kind for kind, each in _KINDS.items() if text and re.search(each.pattern, text)), "")


def _of_kind(kind: FailureKind, part: str) -> int:
    return _KINDS[kind].weights.get(part, 0) if kind else 0


def _kind_reasons(kind: FailureKind, part: str) -> list[str]:
    return [f"the failure concerns {_KINDS[kind].words}"] if _of_kind(kind, part) else []


# The machine. A system update changes several parts at once; usually, its kernel or driver stops a server.

_PARTS: Mapping[str, int] = _weights(
    "GPU 70, memory 62, driver 61, kernel 60, CMA 55, links 50, firmware 44, parameters 43, free memory 40, "
    "power 30, governor 25, toolkit 22, engine 20, distribution 12, processor 10"
)
# The firmware of the links, and firmware that no start needs.
_FIRMWARE = ((r"^RoCE|ConnectX|CX-?7", 52), (r"^NVMe|SSD|Wi-?Fi|Bluetooth|UEFI (?:dbx|db|KEK)|TPM|dbx", 6))


def machine_causes(
    changes: Sequence[tuple[str, MachineChange]],
    kind: FailureKind,
    faults: Mapping[str, str],
    nodes: int,
    worked: Iterable[Machine],
) -> Iterator[LikelyCause]:
    """The causes in the machines. Each change has the name of its node; empty for a single machine. ``faults`` are the
    known faults by part. ``worked`` has the machines of all working states."""
    seen = [machine_record.known_parts(each) for each in worked]
    for node, change in changes:
        part, reasons = change.part, _kind_reasons(kind, change.part)
        weight = _PARTS[part]
        if part == "firmware":
            weight = next((value for pattern, value in _FIRMWARE if re.search(pattern, change.name)), weight)
        if weight > _PARTS["processor"]:
            between = nodes > 1 and part in {"kernel", "links", "firmware", "CMA"}
            weight += _of_kind(kind, part) + (_BETWEEN_NODES if between else 0)
        if part in faults:
            weight += _KNOWN_BAD
            reasons.append(faults[part])
        if part == "CMA" and change.after == "0 kB":
            weight += _KNOWN_BAD if kind in {"network", "memory", ""} else 0
            reasons.append("the kernel has no memory left for devices (CmaTotal 0 kB)")
        if any(each.get((part, change.name)) == change.after for each in seen):
            weight += _WORKED
            reasons.append("it has worked in this state before")
        where = f" on {node}" if node else ""
        yield LikelyCause("machine", f"{change}{where}", _undo(change, where), weight, reasons=tuple(reasons))


# These packages require each other in the same version, and apt downgrades only packages that are named
# (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html).
_TOOLKIT = "nvidia-container-toolkit{,-base}=VERSION-1 libnvidia-container{1,-tools}=VERSION-1"


def _undo(change: MachineChange, where: str) -> str:
    before = change.before
    major = before.partition(".")[0]
    parameters = f"remove {change.after!r}" if before == "none" else f"start the kernel with {before!r} again"
    by_part = {
        "kernel": f"boot kernel {before} from the boot menu{where}",
        "driver": f"install driver {before} again{where} (`sudo apt install nvidia-driver-{major}-open`), then restart",
        "firmware": f"`sudo fwupdmgr downgrade`{where} lists the versions to choose from: {change.name} was {before}",
        "parameters": f"{parameters}{where}: edit /etc/default/grub, run `sudo update-grub`, then restart",
        "CMA": f"boot the previous kernel{where}, or add `kho=off` to its parameters if no crash kernel is loaded",
        "links": f"check the cable and both ends{where}: `ibstat {change.name}`",
        "GPU": f"check the GPU{where}: `nvidia-smi`, `builder doctor`",
        "toolkit": f"`sudo apt install {_TOOLKIT.replace('VERSION', before)}`{where}",
        "engine": f"install {before} again{where}: `apt list -a docker-ce` lists the versions",
        "governor": f"`sudo cpupower frequency-set -g {before.partition(',')[0]}`{where}",
        "power": f"`sudo nvidia-smi -pl {before.partition('.')[0]}`{where}",
        "memory": f"check the memory{where}: `free -h`, `sudo dmidecode -t memory`",
        "free memory": f"stop other programs that use the memory{where}: `builder status`, `ps aux --sort -rss`",
    }
    return by_part.get(change.part, f"`/var/log/apt/history.log`{where} names the update that brought the change")


# The image, its mods, the recipe, the template and the weights.

# Packages that run the model, and packages that start it.
_KERNEL_PACKAGES = re.compile(
    r"nvidia-nccl\S*|nvidia-cud\S*|nvidia-cublas\S*|torch|triton|flashinfer\S*|flash-attn\S*|cutlass\S*|nvidia-cutlass\S*"
    r"|tilelang|instanttensor|fastsafetensors|xgrammar|b12x\S*|deep-gemm\S*"
)
_START_PACKAGES = re.compile(r"vllm\S*|transformers|tokenizers|huggingface-hub|mistral-common|compressed-tensors|ray")
# Options that affect the memory of a server.
_SIZES = frozenset(
    {
        *("gpu-memory-utilization", "gpu-memory-utilization-gb", "max-model-len", "max-num-seqs", "kv-cache-dtype"),
        *("max-num-batched-tokens", "kv-cache-memory-bytes", "cpu-offload-gb", "swap-space", "tensor-parallel-size"),
        *("block-size", "enforce-eager", "compilation-config", "speculative-config"),
    }
)
_IMAGE, _MODS, _TEMPLATE, _RECIPE, _WEIGHTS = 48, 42, 38, 54, 34
_MENTIONED, _SHORTEST_NAME = 40, 5


def package_weight(name: str, failure: str) -> int:
    if mentions(failure, name):
        return _MENTIONED
    return 8 if _KERNEL_PACKAGES.fullmatch(name) else 6 if _START_PACKAGES.fullmatch(name) else 1


def mentions(failure: str, name: str) -> bool:
    """True if the failure names an option, a variable, a package or a value; short names do not count."""
    if len(name) < _SHORTEST_NAME:
        return False
    pattern = re.escape(name.replace("_", "-")).replace(r"\-", "[-_ ]?")
    return bool(re.search(rf"(?<![A-Za-z]){pattern}(?![A-Za-z])", failure, re.IGNORECASE))


def image_cause(
    before: str,
    after: str,
    details: Sequence[tuple[int, str]],
    undo: str,
    kind: FailureKind,
    faults: Sequence[str],
    *,
    has_worked: bool,
) -> LikelyCause:
    """The image as a cause. ``details`` are its differences with their weights; ``faults`` are its known faults."""
    ordered = sorted(details, key=lambda pair: -pair[0])
    weight = _IMAGE + max((value for value, _ in ordered), default=0) + min(len(ordered), 5) + _of_kind(kind, "image")
    reasons = _kind_reasons(kind, "image")
    if faults:
        weight += _KNOWN_BAD
        reasons += faults
    if has_worked:
        weight += _WORKED
        reasons.append("it has served this model before")
    texts = tuple(text for _, text in ordered)
    return LikelyCause("image", f"image: {before} → {after}", undo, weight, texts, tuple(reasons))


def mod_cause(text: str, details: Sequence[str], undo: str, kind: FailureKind) -> LikelyCause:
    return LikelyCause("mods", text, undo, _MODS + _of_kind(kind, "mods"), tuple(details))


def served_causes(
    before: OptionsInUse, after: OptionsInUse, alone: OptionsInUse, model: str, kind: FailureKind, failure: str
) -> Iterator[LikelyCause]:
    """The causes in the recipe and the typed options, in the recipe's template, and in the weights. ``alone`` are the
    recipe's options without typed ones."""
    file = after.recipe or before.recipe
    log = f"`git log -p -- {shlex.quote(file)}` shows who changed it"
    if before.recipe and after.recipe and before.recipe != after.recipe:
        text = f"recipe: {before.recipe} → {after.recipe}"
        undo = f"`builder run {shlex.quote(before.recipe)}` serves the model as before"
        yield LikelyCause("recipe", text, undo, _RECIPE + _of_kind(kind, "recipe"))
    sides = (
        ("--", before.options, after.options, alone.options),
        ("", before.variables, after.variables, alone.variables),
    )
    for mark, olds, news, own in sides:
        for name in sorted(olds.keys() | news.keys()):
            if (old := olds.get(name)) == (new := news.get(name)):
                continue
            is_size = mark and name in _SIZES
            weight = _RECIPE + (2 if is_size else 0) + _of_kind(kind, "sizes" if is_size else "recipe")
            reasons = []
            if mentions(failure, name) or mentions(failure, new or old or ""):
                weight += _MENTIONED
                reasons.append("the failure mentions it")
            written = f"{mark}{name} {old}".rstrip() if mark else f"{name}: {old}"
            undo = f"set `{written}` again, in {file} or on the command line; {log}"
            if own.get(name) != new:
                weight += _TYPED
                reasons.append("this value is not in the recipe")
                undo = f"`builder run {shlex.quote(file)}` starts the server as the file says; run `builder stop` first"
            elif old is None:
                undo = f"remove `{mark}{name}` from {file} again; {log}"
            text = f"{mark}{name}: {_given(old)} → {_given(new)}"
            yield LikelyCause("recipe", text, undo, weight, reasons=tuple(reasons))
    if before.template != after.template and (before.template or after.template):
        undo = f"`git log -p -- TEMPLATE` shows the changes of the template that {file} names; "
        undo += "`git checkout COMMIT -- TEMPLATE` restores an earlier version"
        old, new = (words.short_digest(each) if each else "none" for each in (before.template, after.template))
        weight = _TEMPLATE + _of_kind(kind, "template")
        yield LikelyCause("template", f"chat template of the recipe: {old} → {new}", undo, weight)
    if before.revision and after.revision and before.revision != after.revision:
        undo = f"write `model_revision: {before.revision}` into {file} to serve the earlier weights"
        weight = _WEIGHTS + _of_kind(kind, "weights")
        text = f"weights of {model}: {before.revision[:12]} → {after.revision[:12]}"
        yield LikelyCause("weights", text, undo, weight)


def _given(value: str | None) -> str:
    return "not given" if value is None else value or "given"


def ranked(causes: Iterable[LikelyCause]) -> tuple[LikelyCause, ...]:
    return tuple(sorted(causes, key=lambda cause: -cause.weight))
