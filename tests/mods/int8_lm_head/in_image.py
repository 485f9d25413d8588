"""The INT8 head in vLLM's own model: `TRITON_INTERPRET=1 python in_image.py TRITON`, inside an image that has the mod.

A small Qwen3 is loaded by vLLM for the CPU; the kernel runs in Triton's interpreter, from the folder TRITON, and the
weights are said to be on a GPU. Prints a JSON object: for each case whether logits came from the head or from its INT8
rows, by float64. No network.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.int8_lm_head import hook, reference
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader import utils
from vllm.utils.torch_utils import set_default_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, VOCABULARY = 128, 200
CLOSE = 2.5e-3  # rounding to BF16 costs 1.7e-3, and INT8 rows are off by 6e-3 to 9e-3
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
}
# Batch, vocabulary and hidden size, none of which fills a block.
CASES = ((1, 200, 320), (5, 64, 256), (17, 130, 100), (33, 259, 64), (64, 131, 136), (70, 90, 128), (3, 1, 16))


def mend_the_interpreter(folder: str) -> Any:
    """Triton's interpreter takes BF16 for its bits in products and casts of integers, and cuts float32 off in place of
    rounding it. Returns the kernel."""
    sys.path.append(folder)
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    own_dot, own_cast = builder.create_dot, builder.cast_impl

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype("uint32") << 16).view("float32"), tl.float32)

    def dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return own_dot(self, wide(a), wide(b), *others)

    def cast(self: Any, source: Any, target: Any) -> Any:
        if target.scalar != tl.bfloat16:
            return own_cast(self, source, target)
        bits = source.data.astype("float32").view("uint32")
        return interpreter.TensorHandle(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16"), tl.bfloat16)

    builder.create_dot, builder.cast_impl = dot, cast
    from vllm.model_executor.layers.int8_lm_head import kernel

    return kernel


def distance(answer: torch.Tensor, exact: torch.Tensor) -> float:
    return float((answer.double() - exact).norm() / exact.norm())


def by_float64(hidden: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    rows, scales = reference.quantise(weight)
    return {"own": hidden.double() @ weight.double().T, "INT8": hidden.double() @ (rows * scales.double()[:, None]).T}


def kernel_cases(kernel: Any) -> list[dict[str, Any]]:
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        for batch, vocabulary, size in CASES:
            weight, hidden = torch.randn(vocabulary, size).to(dtype), torch.randn(batch, size).to(dtype)
            bias = torch.randn(vocabulary).to(dtype) if batch % 2 else None
            rows, scales = reference.quantise(weight)
            exact = by_float64(hidden, weight)["INT8"] + (0 if bias is None else bias.double())
            answer = kernel.logits(hidden, rows, scales, bias)
            found.append(
                {
                    "batch": batch,
                    "vocabulary": vocabulary,
                    "shape": list(answer.shape),
                    "kernel": distance(answer, exact),
                    "reference": distance(reference.logits(hidden, rows, scales, bias), exact),
                    "rounding": distance(exact.to(dtype), exact),
                }
            )
    return found


def quantised() -> dict[str, Any]:
    weight = torch.randn(reference.AT_ONCE + 100, 16).bfloat16()
    weight[3] = 0
    rows, scales = reference.quantise(weight)
    parts = [reference.quantise(part) for part in weight.chunk(2)]
    off = (weight.float() - rows * scales[:, None]).abs() / scales[:, None]
    return {
        "parts": torch.equal(rows, torch.cat([part[0] for part in parts]))
        and torch.equal(scales, torch.cat([part[1] for part in parts])),
        "zeros": [float(rows[3].abs().max()), round(float(scales[3]), 15)],
        "largest": int(rows.abs().max()),
        "off by half a step": bool((off <= 0.5001).all()),
    }


class Loaded:
    """A model as vLLM loads it, with the head of a trained one: ``mode`` is INT8_LM_HEAD when its weights are there."""

    def __init__(self, mode: str = "auto", runner: str = "generate", tied: bool = False) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
            arguments = EngineArgs(model=folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=128)
            self.config = arguments.create_engine_config()
            with set_current_vllm_config(self.config), set_default_torch_dtype(torch.bfloat16):
                meet(folder)
                self.model = utils.initialize_model(vllm_config=self.config)
        self.model_config = copy.copy(self.config.model_config)
        object.__setattr__(self.model_config, "runner_type", runner)
        self.head = self.model.lm_head
        self.load(mode)

    def load(self, mode: str) -> None:
        """As vLLM does it once the weights are there, those of another head each time."""
        self.head.weight.data.normal_(std=0.02)
        os.environ[hook.VARIABLE] = mode
        with set_current_vllm_config(self.config):
            utils.process_weights_after_loading(self.model, self.model_config, torch.device("cpu"))

    def whose(self, batch: int = 3, ask: Callable[[torch.Tensor], Any] | None = None) -> str:
        hidden = torch.randn(batch, HIDDEN).bfloat16()
        with set_current_vllm_config(self.config):
            answer = (ask or self.model.compute_logits)(hidden)
        exact = by_float64(hidden, self.head.weight)
        off = {who: distance(answer, each[:, :VOCABULARY]) for who, each in exact.items()}
        return next((who for who, each in off.items() if each < CLOSE), str(off))


def meet(folder: str) -> None:
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    if not torch.distributed.is_initialized():
        init_distributed_environment(1, 0, f"file://{folder}/meet", 0, "gloo")
        initialize_model_parallel(1)


def attempt(function: Callable[[], Any]) -> str:
    try:
        return str(function())
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def unfit(**changes: Any) -> str:
    """Why a head of 64 rows of 64, with ``changes``, is not served in INT8."""
    weight = torch.zeros(64, 64, dtype=torch.bfloat16)
    head = SimpleNamespace(num_embeddings_per_partition=64, embedding_dim=64, weight=weight)
    head.quant_method = UnquantizedEmbeddingMethod()
    return str(hook.why_not(SimpleNamespace(**{**vars(head), **changes}), torch.nn.Module()))


def main(folder: str) -> int:
    torch.manual_seed(0)
    kernel = mend_the_interpreter(folder)
    found: dict[str, Any] = {"kernel": kernel_cases(kernel), "quantised": quantised()}
    found["tiles"] = [[tile.batch, tile.shared_memory] for tile in kernel.TILES]
    rows, scales = reference.quantise(torch.randn(128, 64).bfloat16())
    found["leading dimensions"] = list(kernel.logits(torch.randn(2, 3, 64).bfloat16(), rows, scales).shape)
    found["not on a GPU"] = unfit()
    hook.on_gpu = lambda _: True

    served = Loaded()
    found["served"] = {str(batch): served.whose(batch) for batch in (1, 17, 64, 65)}
    found["arguments by name"] = served.whose(
        ask=lambda hidden: served.model.logits_processor(hidden_states=hidden, lm_head=served.head)
    )
    before = served.head.weight.clone()
    drafter = Loaded(runner="draft")
    found["drafter"] = {"after loading": drafter.whose()}
    drafter.head = drafter.model.lm_head = served.head
    found["drafter"]["with the head of the model"] = drafter.whose()
    found["weight"] = "as it was" if torch.equal(before, served.head.weight) else "another"
    served.load("auto")
    found["loaded again"] = served.whose()
    with torch.no_grad():
        served.head.weight.copy_(before)
    found["written in place"] = served.whose()
    served.model.logits_processor.head_dtype = torch.float32
    found["logits in float32"] = served.whose()

    found["off"], found["pooling"] = Loaded("off").whose(), Loaded(runner="pooling").whose()
    tied = Loaded("off", tied=True)
    found["tied"] = hook.serve(tied.model)
    found["require"] = attempt(lambda: tied.load("require"))
    found["maybe"] = attempt(lambda: tied.load("maybe"))
    found["no head"] = hook.serve(torch.nn.Module())
    found["quantised already"] = unfit(quant_method=SimpleNamespace())
    found["float32"] = unfit(weight=torch.zeros(64, 64))
    found["other shape"] = unfit(weight=torch.zeros(32, 64, dtype=torch.bfloat16))
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    found["batch invariant"] = unfit()
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
