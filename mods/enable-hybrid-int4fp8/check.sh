#!/usr/bin/env bash
# Looks at what the module builds on, without importing vLLM, which takes a quarter of a minute.
set -euo pipefail

python3 - <<'PYTHON'
import ast
import importlib.util
import pathlib
import sys

spec = importlib.util.find_spec("vllm")
vllm = pathlib.Path(spec.submodule_search_locations[0]) if spec else sys.exit("vllm is not installed")
quantization = vllm / "model_executor/layers/quantization"


def methods(path, name):
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) != 1:
        sys.exit(f"{path} has no class {name}")
    return {
        node.name: [argument.arg for argument in node.args.args]
        for node in found[0].body
        if isinstance(node, ast.FunctionDef)
    }


if not (quantization / "inc_hybrid.py").is_file():
    sys.exit(f"{quantization}/inc_hybrid.py is missing")
if "from .inc_hybrid import HybridINCConfig as INCConfig" not in ast.unparse(
    ast.parse((quantization / "__init__.py").read_text())
):
    sys.exit("get_quantization_config does not give HybridINCConfig")

inc = next(path for path in (quantization / "inc.py", quantization / "inc/inc.py") if path.is_file())
own = methods(inc, "INCConfig")
if own["get_quant_method"] != ["self", "layer", "prefix"] or own["apply_vllm_mapper"] != ["self", "hf_to_vllm_mapper"]:
    sys.exit("INCConfig has changed")
if "maybe_update_config" in own:
    sys.exit("INCConfig reads checkpoints itself now: look whether this mod is still needed")
wanted = {"is_checkpoint_fp8_serialized", "activation_scheme", "weight_block_size"}
if not wanted <= set(methods(quantization / "fp8.py", "Fp8Config")["__init__"]):
    sys.exit("Fp8Config has changed")
if "quant_config.maybe_update_config(" not in (vllm / "config/vllm.py").read_text():
    sys.exit("vLLM does not call maybe_update_config")
PYTHON
