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
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.gdn_flashqla import speed, stub, warmup
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


class UnfitError(RuntimeError):
    """FlashQLA cannot serve, with the reason."""


@dataclass
class Kernel:
    """FlashQLA's function, once for all layers. Its kernels are compiled for the shapes in ``compiled``; ``broken``
    says that they could not be for one."""

    function: Callable[..., Any]
    dtypes: frozenset[torch.dtype]
    capability: int = 0
    compiled: set[tuple[Any, ...]] = field(default_factory=set)
    broken: bool = False


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
        stub.hide()
        from flash_qla import chunk_gated_delta_rule
    except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
        return f"flash_qla cannot be imported: {error!r}"
    # Its kernels for SM12x do not compile for float16 (fla-org/flash-linear-attention pull request 1094).
    halves = {torch.bfloat16} if current_platform.has_device_capability(120) else {torch.bfloat16, torch.float16}
    capability = current_platform.get_device_capability()
    return Kernel(chunk_gated_delta_rule, frozenset(halves), capability.to_int() if capability else 0)


def prefer(own: Callable[..., Any], kernel: Kernel, most_tokens: int) -> Callable[..., Any]:
    """Asks ``kernel``, and ``own`` where that cannot serve or is faster."""
    signature = inspect.signature(own)

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = bound(signature, args, kwargs)
        reason = "its first call failed" if kernel.broken else unfit(kernel, call)
        if reason:
            logger.warning_once("vLLM's own kernel serves a GDN prefill that FlashQLA cannot: %s", reason)
            return own(*args, **kwargs)
        try:
            prepare(kernel, call, most_tokens)
        except Exception:  # compilers raise all sorts
            kernel.broken = True
            logger.exception("FlashQLA failed in its first call; vLLM's own kernel serves the GDN prefill.")
            return own(*args, **kwargs)
        if speed.own_is_faster(kernel.capability, own.__name__, call["q"].shape[1]):
            return own(*args, **kwargs)
        # Once the kernels have run, a failure is one of the GPU, and not to be hidden.
        return ask(kernel, call)

    return forward


def require(own: Callable[..., Any], kernel: Kernel, most_tokens: int) -> Callable[..., Any]:
    """Asks ``kernel`` alone. Raises UnfitError where it cannot serve."""
    signature = inspect.signature(own)

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = bound(signature, args, kwargs)
        if reason := unfit(kernel, call):
            raise UnfitError(reason)
        prepare(kernel, call, most_tokens)
        return ask(kernel, call)

    return forward


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names, with the defaults."""
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    return dict(call.arguments)


def prepare(kernel: Kernel, call: Mapping[str, Any], most_tokens: int) -> None:
    """Has the kernels compiled that calls of this shape may need, and waits until they have run."""
    shape = warmup.shape_of(call)
    if shape in kernel.compiled:
        return
    began = time.monotonic()
    for warming in warmup.calls(call, most_tokens):
        ask(kernel, warming)
    if call["q"].is_cuda:
        torch.cuda.synchronize(call["q"].device)
    kernel.compiled.add(shape)
    logger.info("FlashQLA has its kernels for %s after %.0f s.", tuple(call["v"].shape[2:]), time.monotonic() - began)


def unfit(kernel: Kernel, call: Mapping[str, Any]) -> str:
    """Why FlashQLA cannot serve this call, or nothing."""
    q, k, v = call["q"], call["k"], call["v"]
    unknown = [name for name, value in call.items() if value is not None and name not in TAKEN | HANDLED]
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


def ask(kernel: Kernel, call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Output and final state, as the op returns them; the output in ``core_attn_out`` as well, where vLLM gives one."""
    output, state = kernel.function(**{name: call[name] for name in TAKEN}, state_v_first=True)
    wanted = call.get("core_attn_out")
    if wanted is not None:
        flat = output.reshape(-1)
        wanted.reshape(-1)[: flat.numel()].copy_(flat)
    return output, state
