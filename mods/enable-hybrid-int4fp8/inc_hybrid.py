"""INC (AutoRound) checkpoints whose experts are INT4 and whose dense layers are FP8 with block scales.

AutoRound's config describes the INT4 layers and calls the others 16 bit wide, so vLLM loads an FP8 weight as it stands,
skips its ``weight_scale_inv`` and answers nonsense (vllm-project/vllm issue 46311). Which layers are FP8 stands in the
headers of the safetensors files; this class reads them and gives those layers vLLM's own FP8 method.
"""

# What it imports is in the image, not where the types are checked.
# mypy: disable-error-code="import-not-found, misc, no-any-return"

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.inc import INCConfig
from vllm.transformers_utils.config import get_safetensors_params_metadata

if TYPE_CHECKING:
    import torch

logger = init_logger(__name__)

Shape = tuple[int, int]
# The edges a block may have, the usual one first: a checkpoint of small layers may leave open which it is.
BLOCK_EDGES = (128, 16, 32, 64, 256, 512, 1024)


class HybridINCConfig(INCConfig):
    """INCConfig that knows the FP8 layers of a checkpoint: all else is left to it.

    ``fp8_layers`` holds their names, as the model calls them once ``apply_vllm_mapper`` has run; ``fp8_config`` is
    vLLM's FP8 config with the checkpoint's block size, or None where the checkpoint has no such layer.
    """

    fp8_layers: frozenset[str] = frozenset()
    fp8_config: Fp8Config | None = None

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Called by vLLM once it knows the model. Before 0.28 it passes no revision; the commit that the config came
        from is then the one that was asked for."""
        revision = revision or getattr(hf_config, "_commit_hash", None)
        tensors = get_safetensors_params_metadata(model_name, revision=revision)
        if not tensors:
            logger.warning("No safetensors headers of %s could be read: FP8 layers in it are not seen.", model_name)
        layers = fp8_layers(tensors)
        if not layers:
            return
        rows, columns = block_size(layers)
        self.fp8_layers = frozenset(layers)
        self.fp8_config = Fp8Config(
            is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[rows, columns]
        )
        logger.info("Hybrid checkpoint: %d FP8 layers with blocks of %d x %d.", len(layers), rows, columns)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        super().apply_vllm_mapper(hf_to_vllm_mapper)
        self.fp8_layers = frozenset(hf_to_vllm_mapper.apply_list(sorted(self.fp8_layers)))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if self.fp8_config is not None and isinstance(layer, LinearBase) and self.is_fp8(prefix):
            return self.fp8_config.get_quant_method(layer, prefix)
        return super().get_quant_method(layer, prefix)

    def is_fp8(self, prefix: str) -> bool:
        """Whether the layer is FP8; a fused one is where all its parts are.

        Raises ValueError where only some of them are: one weight cannot be both.
        """
        if prefix in self.fp8_layers:
            return True
        parent, dot, name = prefix.rpartition(".")
        parts = [f"{parent}{dot}{part}" for part in self.packed_modules_mapping.get(name, ())]
        others = [part for part in parts if part not in self.fp8_layers]
        if 0 < len(others) < len(parts):
            raise ValueError(
                f"{prefix} fuses FP8 layers with {', '.join(others)}, which the checkpoint holds as others"
            )
        return bool(parts) and not others


def fp8_layers(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Shape, Shape]]:
    """The layers with an FP8 weight and block scales, with the shapes of both. ``tensors`` are safetensors headers:
    name to dtype and shape."""
    found: dict[str, tuple[Shape, Shape]] = {}
    for name, weight in tensors.items():
        layer, dot, kind = name.rpartition(".")
        scale = tensors.get(f"{layer}.weight_scale_inv")
        if dot and kind == "weight" and weight["dtype"] == "F8_E4M3" and scale is not None:
            sizes, blocks = tuple(weight["shape"]), tuple(scale["shape"])
            if len(sizes) == len(blocks) == 2:
                found[layer] = (sizes, blocks)
    return found


def block_size(layers: Mapping[str, tuple[Shape, Shape]]) -> Shape:
    """The rows and columns of a block that explain the scales of all layers.

    Raises ValueError where there are none: no FP8 method could serve such a checkpoint.
    """
    rows, columns = (_edge((weight[side], scale[side]) for weight, scale in layers.values()) for side in (0, 1))
    return rows, columns


def _edge(sides: Iterable[tuple[int, int]]) -> int:
    pairs = set(sides)
    for edge in BLOCK_EDGES:
        if all(-(-size // edge) == blocks for size, blocks in pairs):
            return edge
    raise ValueError(f"no block size explains weight_scale_inv; (size, blocks) found: {sorted(pairs)}")
