"""What vLLM's own loader makes of made checkpoints: run inside an image, `python load_checkpoint.py FOLDER...`.

Reads each tensor as vLLM does to serve a folder. Builds Qwen3.5 and the model that predicts its further tokens from the
first folder, and loads both. Prints as JSON the digest of each tensor of each folder, the parameters that no tensor
filled, and the layers that hold FP8 scales. No network.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# On a CPU vLLM has no method for INT4 experts, and the model without vision has no vision tower.
LEFT_OUT = re.compile(r"model\.(visual|.*\.experts)\.")


def without_vision() -> None:
    """Lets Qwen3.5's module be imported without torchvision, which the image lacks: nothing here looks at pictures."""
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules["torchvision.transforms.v2"].functional = None  # type: ignore[attr-defined]
    import_module("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors that the loader reads, by the names in the checkpoint."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    loader = DefaultModelLoader(LoadConfig(load_format="safetensors"))
    source = DefaultModelLoader.Source(str(folder), revision=None, fall_back_to_pt=False)
    read = list(loader._get_weights_iterator(source))
    if len(read) != len(dict(read)):
        raise SystemExit("the loader reads a tensor twice")
    return dict(read)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def loaded(folder: Path, read: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Both models as vLLM builds them to serve the folder, filled with what was read."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.quantization import fp8
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    without_vision()
    from vllm import ModelRegistry
    from vllm.model_executor.models.qwen3_5 import Qwen3_5MoeForCausalLM
    from vllm.model_executor.models.qwen3_5_mtp import Qwen3_5MoeMTP

    # Otherwise vLLM looks at the class in a process of its own, which lacks torchvision again.
    ModelRegistry.register_model("Qwen3_5MoeForCausalLM", Qwen3_5MoeForCausalLM)
    # Which kernel multiplies is no question here, and a CPU without AMX has none for FP8.
    fp8.init_fp8_linear_kernel = lambda **_: None
    config = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128
    ).create_engine_config()
    found: dict[str, Any] = {"config": type(config.quant_config).__name__}
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "file:///tmp/meet", 0, "gloo")
        initialize_model_parallel(1)
        with set_default_torch_dtype(torch.bfloat16):
            models = {"model": initialize_model(vllm_config=config), "mtp": Qwen3_5MoeMTP(vllm_config=config)}
    for key, model in models.items():
        filled = model.load_weights((name, each) for name, each in read.items() if not LEFT_OUT.match(name))
        parameters = dict(model.named_parameters())
        found[key] = {
            "empty": sorted(parameters.keys() - filled),
            "scales": sorted(name for name in filled if name.endswith("weight_scale_inv")),
        }
    return found


def main(folders: list[Path]) -> int:
    read = [weights(folder) for folder in folders]
    tensors = [{name: digest(tensor) for name, tensor in each.items()} for each in read]
    sys.stdout.write("\n" + json.dumps({"tensors": tensors, **loaded(folders[0], read[0])}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main([Path(argument) for argument in sys.argv[1:]]))
