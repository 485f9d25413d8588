"""Who serves vLLM's GDN prefill: run inside an image that the mod's patches were applied in, `python in_image.py`.

A stand-in for ``flash_qla`` records what it is called with, and the platform is said to be CUDA: there is no GPU here.
vLLM's own op is the real one; only its kernel, which needs a GPU as well, is replaced. The clock by which the mod times
both goes on by what a kernel is said to take: a busy machine changes nothing. Prints a JSON object: for each case who
served it and what was passed. No network.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import op_registry
from vllm.model_executor.layers.mamba.gdn_flashqla import hook
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as gdn
except ImportError:  # before vLLM 0.22
    from vllm.model_executor.layers.mamba import gdn_linear_attn as gdn

TOKENS, HEADS, VALUE_HEADS, SEQUENCES = 96, 2, 4, 2
FAST, SLOW = 0.001, 0.002  # seconds that FlashQLA's kernel takes, and vLLM's
calls: list[tuple[str, dict[str, Any]]] = []
clock = [0.0]


def described(call: dict[str, Any]) -> dict[str, Any]:
    """Shapes and dtypes in place of tensors."""
    return {
        name: [list(value.shape), str(value.dtype).removeprefix("torch.")] if torch.is_tensor(value) else value
        for name, value in sorted(call.items())
    }


def kernel(who: str, failure: str = "", seconds: float = FAST) -> Callable[..., Any]:
    """A kernel that takes ``seconds``, by which the mod chooses between two."""

    def serve(**call: Any) -> Any:
        calls.append((who, described(call)))
        clock[0] += seconds
        if failure:
            raise RuntimeError(failure)
        sequences = SEQUENCES if call["cu_seqlens"] is None else len(call["cu_seqlens"]) - 1
        state = torch.full((sequences, VALUE_HEADS, 128, 128), 2.0) if call["output_final_state"] else None
        return torch.ones_like(call["v"]), state

    return serve


def inputs(**changes: Any) -> dict[str, Any]:
    """What vLLM passes in a prefill of two sequences (0.20 to 0.33)."""
    size, dtype = changes.pop("size", 128), changes.pop("dtype", torch.bfloat16)
    return {
        "q": torch.zeros(1, TOKENS, HEADS, size, dtype=dtype),
        "k": torch.zeros(1, TOKENS, HEADS, size, dtype=dtype),
        "v": torch.zeros(1, TOKENS, VALUE_HEADS, size, dtype=dtype),
        "g": torch.zeros(1, TOKENS, VALUE_HEADS),
        "beta": torch.zeros(1, TOKENS, VALUE_HEADS),
        "initial_state": torch.zeros(SEQUENCES, VALUE_HEADS, size, size),
        "output_final_state": True,
        "cu_seqlens": torch.tensor([0, 32, TOKENS], dtype=torch.int32),
        "chunk_indices": torch.zeros(2, 2, dtype=torch.int32),
        "chunk_offsets": torch.zeros(3, dtype=torch.int32),
        "use_qk_l2norm_in_kernel": False,
        **changes,
    }


@contextmanager
def machine(capability: tuple[int, int], library: Callable[..., Any] | Exception, mode: str = "") -> Iterator[None]:
    """A GPU of ``capability`` whose ``flash_qla`` is ``library``, or raises it when it is imported."""
    found = SimpleNamespace(major=capability[0], minor=capability[1])
    asked = {
        "is_cuda": lambda: True,
        "has_device_capability": lambda wanted, *_: found.major * 10 + found.minor >= wanted,
        "get_device_capability": lambda *_: DeviceCapability(*capability),
        "is_device_capability": lambda wanted, *_: found.major * 10 + found.minor == wanted,
        "is_device_capability_family": lambda wanted, *_: found.major == wanted // 10,
    }
    os.environ.pop(hook.VARIABLE, None)
    if mode:
        os.environ[hook.VARIABLE] = mode
    hook.flash_qla.cache_clear()
    sys.modules["flash_qla"] = Standin(library)
    for name, answer in asked.items():
        setattr(current_platform, name, answer)
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["VLLM_CACHE_ROOT"] = folder
            yield
    finally:
        for name in asked:
            delattr(current_platform, name)
        calls.clear()


class Standin(ModuleType):
    def __init__(self, library: Callable[..., Any] | Exception) -> None:
        super().__init__("flash_qla")
        self.library = library

    def __getattr__(self, name: str) -> Any:
        if name != "chunk_gated_delta_rule":
            raise AttributeError(name)
        if isinstance(self.library, Exception):
            raise self.library
        return self.library


def served(op: Any, **changes: Any) -> str:
    op(**inputs(**changes))
    return calls[-1][0]


def layers(op: Any, call: dict[str, Any]) -> list[str]:
    """Who serves three layers of one batch."""
    calls.clear()
    for _ in range(3):
        op(**call)
    return [who for who, _ in calls]


def made(backend: str = "auto", active: str = "triton") -> Any:
    """The op, as vLLM makes it where its own choice is ``active``."""
    gdn._resolve_gdn_prefill_backend = lambda config: (config.additional_config["gdn_prefill_backend"], active)
    with set_current_vllm_config(VllmConfig(additional_config={"gdn_prefill_backend": backend})):
        return gdn.ChunkGatedDeltaRule()


def attempt(function: Callable[[], Any]) -> str:
    try:
        return str(function())
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    # vLLM's own kernels are for GPUs, and it looks at a model to choose one; what matters is that it is asked.
    gdn.fla_chunk_gated_delta_rule = gdn.fi_chunk_gated_delta_rule = kernel("vLLM", seconds=SLOW)
    gdn._log_gdn_backend_decision = lambda *_: None
    hook.speed.time = SimpleNamespace(perf_counter=lambda: clock[0])
    hook.speed.SPREADS, hook.speed.ROUNDS = (1, 2), 1  # enough for kernels that take the same time for all batches
    found: dict[str, Any] = {"registered": op_registry["chunk_gated_delta_rule"] is gdn.ChunkGatedDeltaRule}
    for name, capability in {"GB10": (12, 1), "Hopper": (9, 0)}.items():
        with machine(capability, kernel("FlashQLA")):
            op = made()
            found[name] = served(op)
            found[f"{name} call"] = calls[-1][1]
            found[f"{name} float16"] = served(op, dtype=torch.float16)
            found[f"{name} heads of 64"] = served(op, size=64)
            found[f"{name} batch without lengths"] = served(op, cu_seqlens=None)
    with machine((12, 1), kernel("FlashQLA")):
        output, state = made()(**inputs(output_final_state=False))
        found["output"] = [float(output.float().mean()), state]
        found["chosen triton"] = served(made("triton"))
        place = torch.zeros(TOKENS + 8, VALUE_HEADS, 128, dtype=torch.bfloat16)
        made()(**inputs(core_attn_out=place))
        found["place for the output"] = [float(place[:TOKENS].float().mean()), float(place[TOKENS:].float().mean())]
    with machine((12, 1), kernel("FlashQLA"), "off"):
        found["off"] = served(made())
    with machine((12, 1), kernel("FlashQLA"), "maybe"):
        found["maybe"] = attempt(made)
    with machine((12, 1), kernel("FlashQLA"), "require"):
        op = made()
        found["require"] = served(op)
        found["require, heads of 64"] = attempt(lambda: served(op, size=64))
    with machine((8, 6), ValueError("FlashQLA now support sm90 and sm100 only.")):
        found["no kernels for the GPU"] = served(made())
    with machine((8, 6), ImportError("No module named tilelang"), "require"):
        found["require, not importable"] = attempt(made)
    with machine((12, 1), kernel("FlashQLA", "nvcc not found")):
        first, second = made(), made()
        found["first call fails"] = [served(first), served(second), [who for who, _ in calls]]
    with machine((12, 1), kernel("FlashQLA", "nvcc not found"), "require"):
        op = made()
        found["require, first call fails"] = attempt(lambda: served(op))
    with machine((9, 0), kernel("FlashQLA")):
        op = made()
        found["warm-up and two calls"] = [served(op), served(op)]
        found["warm-up"] = [[call["cu_seqlens"][0][0] - 1, call["q"][0][1]] for _, call in calls]
        found["warm-up ends"] = next(index for index, (who, _) in enumerate(calls) if who == "vLLM")
        found["most tokens"] = VllmConfig().scheduler_config.max_num_batched_tokens
    with machine((9, 0), kernel("FlashQLA", seconds=2 * SLOW)):
        op = made(active="flashinfer")
        served(op)
        found["own is faster"] = layers(op, inputs())
        kept = len(calls)
        served(made(active="flashinfer"))
        found["calls of a second op"] = len(calls) - kept
        hook.flash_qla().shapes.clear()
        calls.clear()
        served(made(active="flashinfer"))
        found["after a restart"] = {who for who, _ in calls[-1:]} == {"vLLM"} and "vLLM" not in [
            who for who, _ in calls[:-1]
        ]
    with machine((9, 0), kernel("FlashQLA", seconds=2 * SLOW), "require"):
        found["own is faster, require"] = served(made(active="flashinfer"))
    with machine((9, 0), kernel("FlashQLA")):
        op = made(active="flashinfer")
        served(op)
        found["FlashQLA is faster"] = layers(op, inputs())
        empty = inputs(cu_seqlens=torch.tensor([0, 0, TOKENS], dtype=torch.int32))
        empty["initial_state"][0] = 5
        _, state = op(**empty)
        found["empty sequence"] = [calls[-1][1]["cu_seqlens"][0], [float(each.mean()) for each in state]]
    gdn.fi_chunk_gated_delta_rule = kernel("vLLM", "no kernel image is available")
    with machine((9, 0), kernel("FlashQLA")):
        found["own fails when it is timed"] = served(made(active="flashinfer"))
    with machine((12, 1), kernel("FlashQLA")):
        op = made()
        served(op)
        hook.flash_qla().function = kernel("FlashQLA", "illegal memory access")
        found["fails later"] = attempt(lambda: served(op))
    found["not CUDA"] = served(made())
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
