"""FlashQLA before the kernel that vLLM chose for the prefill of gated delta nets.

vLLM runs that prefill through one op, ``chunk_gated_delta_rule``. ``hook`` is called with its class as vLLM registers
it, and puts FlashQLA before the kernel that vLLM chose, which still serves whatever FlashQLA cannot.

Both take the same tensors: q and k ``[1, tokens, heads, 128]``, v ``[1, tokens, value heads, 128]``, the gate in log
space and beta ``[1, tokens, value heads]``, lengths as cumulative sums. vLLM keeps its state ``[sequences, value heads,
V, K]``, which FlashQLA calls ``state_v_first``.
"""

# What it imports is in the image, not where the types are checked.
# mypy: disable-error-code="import-not-found, no-any-return"

from __future__ import annotations

import functools
import inspect
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.gdn_flashqla import speed, warmup
from vllm.platforms import current_platform

logger = init_logger(__name__)

# auto: FlashQLA where it can serve; off: never; require: an error where vLLM would be asked instead.
VARIABLE = "FLASHQLA_PREFILL"
HEAD_DIM = 128
# What vLLM may pass besides: positions of chunks, which FlashQLA works out by itself, and a place for the output.
HANDLED = frozenset({"chunk_indices", "chunk_offsets", "core_attn_out"})
TAKEN = frozenset(
    {"q", "k", "v", "g", "beta", "initial_state", "output_final_state", "cu_seqlens", "use_qk_l2norm_in_kernel"}
)
KNOWN = TAKEN | HANDLED


class UnfitError(RuntimeError):
    """FlashQLA cannot serve, with the reason."""


@dataclass(frozen=True, eq=False)
class Shape:
    """What was compiled for one shape of calls, and where vLLM's own kernel is faster, as far as it could be timed."""

    speeds: speed.Speeds | None


class Batch(NamedTuple):
    """The batch that was asked about last: ``ends`` is its ``cu_seqlens``, one tensor for all layers. ``serves``:
    whether FlashQLA does; ``lengths``: of its sequences, where they had to be read."""

    ends: Any = None
    shape: Shape | None = None
    serves: bool = False
    lengths: tuple[int, ...] = ()


@dataclass
class Kernel:
    """FlashQLA's function, once for all layers. ``shapes`` has what was compiled; ``broken`` says that one could not
    be."""

    function: Callable[..., Any]
    dtypes: frozenset[torch.dtype]
    shapes: dict[tuple[Any, ...], Shape] = field(default_factory=dict)
    broken: bool = False
    last: Batch = field(default_factory=Batch)


def hook(op: type) -> type:
    """``op`` itself, whose instances ask FlashQLA first."""
    own_init = op.__init__  # type: ignore[misc]

    @functools.wraps(own_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own_init(self, *args, **kwargs)
        mode = os.environ.get(VARIABLE, "auto").strip().lower()
        if mode not in ("auto", "off", "require"):
            raise ValueError(f"{VARIABLE}={mode}: it is one of auto, off, require")
        if mode == "off":
            return
        found = choice() or flash_qla()
        if isinstance(found, Kernel):
            logger.info_once("Using FlashQLA for the GDN prefill; its kernels are compiled when they are first used.")
            tokens = get_current_vllm_config().scheduler_config.max_num_batched_tokens
            serve = require if mode == "require" else prefer
            self._forward_method = serve(self._forward_method, found, tokens)
        elif mode == "require":
            raise UnfitError(found)
        else:
            logger.warning_once("FlashQLA does not serve the GDN prefill: %s", found)

    op.__init__ = init  # type: ignore[misc]
    return op


def choice() -> str:
    """Why FlashQLA is not to be asked for at all, or nothing."""
    further = get_current_vllm_config().additional_config
    chosen = str(further.get("gdn_prefill_backend", "auto") if isinstance(further, dict) else "auto").strip().lower()
    if chosen != "auto":
        return f"--gdn-prefill-backend {chosen} was asked for"
    return "" if current_platform.is_cuda() else "vLLM does not run on CUDA here"


@functools.cache
def flash_qla() -> Kernel | str:
    """FlashQLA's function, or why there is none. That it has no kernels for the GPU here is told by a ValueError."""
    try:
        import tilelang_stub  # noqa: F401  before FlashQLA imports TileLang, also where no .pth is read
        from flash_qla import chunk_gated_delta_rule
    except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
        return f"flash_qla cannot be imported: {error!r}"
    # Its kernels for SM12x do not compile for float16 (fla-org/flash-linear-attention pull request 1094).
    halves = {torch.bfloat16} if current_platform.has_device_capability(120) else {torch.bfloat16, torch.float16}
    return Kernel(chunk_gated_delta_rule, frozenset(halves))


def prefer(own: Callable[..., Any], kernel: Kernel, most_tokens: int) -> Callable[..., Any]:
    """Asks ``kernel``, and ``own`` where that cannot serve or is faster.

    The first layer of a batch looks up the answer, and all layers take it: short batches wait for the processor, not
    for the GPU, so each microsecond counts. The calls of one op have one shape.
    """
    bound = binder(own)
    shape: Shape | None = None

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal shape
        last, ends = kernel.last, kwargs.get("cu_seqlens")
        if ends is None or ends is not last.ends or shape is not last.shape:
            call = bound(args, kwargs)
            reason = "its first call failed" if kernel.broken else unfit(kernel, call)
            if reason:
                logger.warning_once("vLLM's own kernel serves a GDN prefill that FlashQLA cannot: %s", reason)
                return own(*args, **kwargs)
            try:
                shape = prepare(kernel, call, most_tokens, own)
            except Exception:  # compilers raise all sorts
                kernel.broken = True
                logger.exception("FlashQLA failed in its first call; vLLM's own kernel serves the GDN prefill.")
                return own(*args, **kwargs)
            last = kernel.last = Batch(call["cu_seqlens"], shape, *decide(shape, call))
        if not last.serves or (ends is not None and ends.is_cuda and torch.cuda.is_current_stream_capturing()):
            return own(*args, **kwargs)
        # Once the kernels have run, a failure is one of the GPU, and not to be hidden.
        return ask(kernel, kwargs if kwargs.keys() >= TAKEN else bound(args, kwargs), last.lengths)

    return forward


def decide(shape: Shape, call: Mapping[str, Any]) -> tuple[bool, tuple[int, ...]]:
    """Whether FlashQLA serves the call, and the lengths of its sequences as far as they were read. Reading them waits
    for the GPU, so they are read where they decide, and for FlashQLA, which would read them itself."""
    ends, speeds = call["cu_seqlens"], shape.speeds
    if ends is None:
        return True, ()
    tokens = call["q"].shape[1]
    own = speeds.own_is_faster(tokens, 1, ends.shape[0] - 1) if speeds else False
    if own:
        return False, ()
    lengths = tuple(after - before for before, after in itertools.pairwise(ends.tolist()))
    if own is None and speeds:
        spread = speed.spread(lengths)
        own = speeds.own_is_faster(tokens, spread, spread)
    return not own, lengths


def require(own: Callable[..., Any], kernel: Kernel, most_tokens: int) -> Callable[..., Any]:
    """Asks ``kernel`` alone. Raises UnfitError where it cannot serve."""
    bound = binder(own)

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = bound(args, kwargs)
        if reason := unfit(kernel, call):
            raise UnfitError(reason)
        return ask(kernel, call, decide(prepare(kernel, call, most_tokens, None), call)[1])

    return forward


def binder(own: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]:
    """What gives the arguments of a call of ``own`` by their names, with the defaults."""
    parameters = inspect.signature(own).parameters
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    return lambda args, kwargs: {**defaults, **dict(zip(parameters, args, strict=False)), **kwargs}


def prepare(kernel: Kernel, call: Mapping[str, Any], most_tokens: int, own: Callable[..., Any] | None) -> Shape:
    """Has the kernels compiled that calls of this shape may need, waits until they have run, and times them beside
    ``own``, where one is given."""
    key = warmup.shape_of(call)
    if found := kernel.shapes.get(key):
        return found
    began = time.monotonic()
    for warming in warmup.calls(call, most_tokens):
        ask(kernel, warming)
    if call["q"].is_cuda:
        torch.cuda.synchronize(call["q"].device)
    logger.info("FlashQLA has its kernels for %s after %.0f s.", tuple(call["v"].shape[2:]), time.monotonic() - began)
    speeds = timed(kernel, call, most_tokens, own) if own and call["cu_seqlens"] is not None else None
    kernel.shapes[key] = Shape(speeds)
    return kernel.shapes[key]


def timed(kernel: Kernel, call: Mapping[str, Any], most_tokens: int, own: Callable[..., Any]) -> speed.Speeds | None:
    """Where ``own`` is faster, or None where it fails."""
    began = time.monotonic()
    cache = Path(envs.VLLM_CACHE_ROOT, "gdn_flashqla")
    try:
        speeds = speed.measured(call, own, lambda **batch: ask(kernel, batch), most_tokens, cache)
    except Exception:  # vLLM's kernel may be one that has to be compiled, too
        logger.exception("vLLM's own kernel for the GDN prefill could not be timed; FlashQLA serves.")
        return None
    took = time.monotonic() - began
    logger.info("FlashQLA's time over that of %s (%.1f s to find out):\n%s", own.__name__, took, speeds)
    return speeds


def unfit(kernel: Kernel, call: Mapping[str, Any]) -> str:
    """Why FlashQLA cannot serve this call, or nothing."""
    q, k, v = call["q"], call["k"], call["v"]
    unknown = [name for name in call.keys() - KNOWN if call[name] is not None]
    if unknown:
        return f"vLLM passes {', '.join(unknown)}, which it does not know"
    if k.shape[-1] != HEAD_DIM or v.shape[-1] != HEAD_DIM:
        return f"heads of {k.shape[-1]} and {v.shape[-1]}, where it has kernels for {HEAD_DIM}"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in kernel.dtypes:
        return f"tensors of {', '.join(sorted({str(each.dtype) for each in (q, k, v)}))}"
    if v.shape[2] % k.shape[2]:
        return f"{v.shape[2]} value heads for {k.shape[2]} key heads"
    if call["cu_seqlens"] is not None and q.shape[0] != 1:
        return f"a batch of {q.shape[0]} with lengths"
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured, in which it cannot read the lengths"
    return ""


def ask(kernel: Kernel, call: Mapping[str, Any], lengths: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Output and final state, as the op returns them; the output in ``core_attn_out`` as well, where vLLM gives one.

    Empty sequences are left out: FlashQLA 0.1.3 refuses them (``invalid sequence lengths``). Their states stay.
    """
    given = {name: call[name] for name in TAKEN}
    if all(lengths):
        output, state = kernel.function(**given, state_v_first=True)
    else:
        kept, initial = [index for index, length in enumerate(lengths) if length], call["initial_state"]
        given["cu_seqlens"] = call["cu_seqlens"].new_tensor([0, *itertools.accumulate(filter(None, lengths))])
        given["initial_state"] = None if initial is None else initial[kept]
        output, found = kernel.function(**given, state_v_first=True)
        state = None
        if found is not None:
            state = found.new_zeros(len(lengths), *found.shape[1:]) if initial is None else initial.to(found, copy=True)
            state[kept] = found
    wanted = call.get("core_attn_out")
    if wanted is not None:
        flat = output.reshape(-1)
        wanted.reshape(-1)[: flat.numel()].copy_(flat)
    return output, state
