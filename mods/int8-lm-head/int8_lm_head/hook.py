"""INT8 rows beside the head of a model, and the model's logits from them.

vLLM calls ``process_weights_after_loading`` for each model that it has loaded. ``after_loading`` wraps it: afterwards
the heads of a model have INT8 rows beside them, and the model's own LogitsProcessors are given an ``Int8Head`` in place
of the head. The head itself stays as it was: drafters, which are given it later, LoRA and large batches use that.
"""

# What it imports is in the image, not where the types are checked.
# mypy: disable-error-code="import-not-found, no-any-return, misc, untyped-decorator"

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from vllm.logger import init_logger

from . import reference

logger = init_logger(__name__)

# auto: INT8 where it can serve; off: never; require: an error where a model would be served by its own head.
VARIABLE = "INT8_LM_HEAD"
# The attribute of a head that says that it has its rows.
MARK = "int8_lm_head"
DTYPES = (torch.bfloat16, torch.float16)


class UnfitError(RuntimeError):
    """A model cannot be served with an INT8 head, with the reason."""


def after_loading(process: Callable[..., None]) -> Callable[..., None]:
    """``process_weights_after_loading``, after which the model is served with INT8 heads."""

    @functools.wraps(process)
    def processed(model: torch.nn.Module, model_config: Any, target_device: torch.device) -> None:
        process(model, model_config, target_device)
        mode = os.environ.get(VARIABLE, "auto").strip().lower()
        if mode not in ("auto", "off", "require"):
            raise ValueError(f"{VARIABLE}={mode}: it is one of auto, off, require")
        # Models that give embeddings have no use for logits, and drafters keep the head that they have or are given.
        if mode == "off" or model_config.runner_type != "generate":
            return
        if reason := serve(model):
            if mode == "require":
                raise UnfitError(reason)
            logger.warning("The model keeps its own head, and has none in INT8: %s", reason)

    return processed


def serve(model: torch.nn.Module) -> str:
    """Gives the heads of ``model`` their INT8 rows, all of them or none. Returns why there are none, or nothing."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    processors = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    if not heads or not processors:
        return "nothing in it is a head of its own, from which logits are asked for"
    # Loaded again: they have taken their rows by then.
    if all(hasattr(head, MARK) for head in heads):
        return ""
    if reason := next(filter(None, (why_not(head, model) for head in heads)), ""):
        return reason
    # Triton is imported here alone: a vLLM for the CPU has none.
    from . import kernel

    int8 = {head: Int8Head(head, kernel) for head in heads}
    for processor in processors:
        processor.register_forward_pre_hook(functools.partial(exchange, int8), with_kwargs=True)
    return ""


def why_not(head: torch.nn.Module, model: torch.nn.Module) -> str:
    """Why ``head`` cannot be served in INT8, or nothing."""
    from vllm import envs
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    method, weight = head.quant_method, getattr(head, "weight", None)
    # INC and others give a head that they leave alone the method of a linear layer.
    if type(method) not in (UnquantizedEmbeddingMethod, UnquantizedLinearMethod):
        return f"it is quantised already, by {type(method).__name__}"
    if not isinstance(weight, torch.Tensor) or weight.dtype not in DTYPES:
        return f"its weight is {getattr(weight, 'dtype', 'missing')}"
    if weight.shape != (head.num_embeddings_per_partition, head.embedding_dim) or weight.stride(1) != 1:
        return f"its weight is {tuple(weight.shape)}, not a row of {head.embedding_dim} for each token"
    others = (module for module in model.modules() if module is not head)
    if any(one is weight for module in others for one in module.parameters(recurse=False)):
        return "its weight is the input embedding's"
    if not on_gpu(weight):
        return f"its weight is on {weight.device}, and the kernel is for CUDA"
    if envs.VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT is set, and how the kernel sums depends on the batch"
    return ""


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.version.hip is None


def exchange(
    heads: Mapping[torch.nn.Module, Int8Head], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call of ``processor`` with an INT8 head in place of the head; None where that cannot serve."""
    call = {**dict(zip(("lm_head", "hidden_states"), args, strict=False)), **kwargs}
    int8 = heads.get(call["lm_head"])
    if int8 is None or not int8.fits(call["hidden_states"], getattr(processor, "head_dtype", None)):
        return None
    return ((int8, *args[1:]), kwargs) if args else (args, {**kwargs, "lm_head": int8})


class Int8Head:
    """The INT8 rows of ``head`` and their scales, to be asked for logits as a head is. All else of it is the head's."""

    def __init__(self, head: torch.nn.Module, kernel: ModuleType) -> None:
        self.head, self.kernel, self.quant_method = head, kernel, self
        self.rows, self.scales = reference.quantise(head.weight.data)
        self.version = version_of(head.weight)
        own = head.quant_method.process_weights_after_loading

        def process(layer: torch.nn.Module) -> None:
            own(layer)
            self.take(layer.weight)

        # vLLM calls it again where other weights are loaded into a model that serves.
        head.quant_method.process_weights_after_loading = process
        setattr(head, MARK, True)
        for tile in kernel.TILES:
            self.apply(head, head.weight.data.new_zeros(tile.batch, head.weight.shape[1]))
        logger.info("The head has %d rows of %d in INT8, for batches of up to %d.", *self.rows.shape, self.largest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.head, name)

    @property
    def largest(self) -> int:
        return int(self.kernel.LARGEST_BATCH)

    def fits(self, hidden: torch.Tensor, head_dtype: torch.dtype | None) -> bool:
        """Whether logits of ``hidden``, asked for in ``head_dtype`` (None: its own), come from here."""
        batch = hidden.numel() // hidden.shape[-1]
        return batch <= self.largest and hidden.dtype == self.head.weight.dtype and head_dtype in (None, hidden.dtype)

    @torch.inference_mode()
    def take(self, weight: torch.Tensor) -> None:
        """Takes the rows of another weight of the same shape."""
        rows, scales = reference.quantise(weight.data)
        self.rows.copy_(rows)
        self.scales.copy_(scales)
        self.version = version_of(self.head.weight)

    def apply(self, _layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """As a quantisation method of vLLM has it."""
        if version_of(self.head.weight) != self.version:
            self.take(self.head.weight)
        return self.kernel.logits(x, self.rows, self.scales, bias)


def version_of(weight: torch.Tensor) -> int:
    """A number that is another one when ``weight`` has been written to, as far as PyTorch counts that."""
    return 0 if weight.is_inference() else int(weight._version)  # noqa: SLF001
