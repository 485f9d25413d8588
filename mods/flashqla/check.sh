#!/usr/bin/env bash
# Nothing is imported: flash_qla needs a GPU to be, which no build has.
set -euo pipefail

python3 - <<'PYTHON'
import ast
import importlib.util
import pathlib
import sys

TAKEN = "q k v g beta initial_state output_final_state cu_seqlens use_qk_l2norm_in_kernel".split()


def folder(package):
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.submodule_search_locations[0]) if spec else sys.exit(f"{package} is not installed")


def classes(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


layers = folder("vllm") / "model_executor/layers/mamba"
if not (layers / "gdn_flashqla.py").is_file():
    sys.exit(f"{layers}/gdn_flashqla.py is missing")

hooked = [node.name for node in classes(folder("vllm") / "model_executor/custom_op.py") if "gdn_flashqla" in ast.unparse(node)]
if hooked != ["CustomOp"]:
    sys.exit(f"the hook is in {hooked}, not in CustomOp alone")

ops = [
    node
    for path in sorted(layers.rglob("*.py"))
    for node in classes(path)
    if "CustomOp.register('chunk_gated_delta_rule')" in map(ast.unparse, node.decorator_list)
]
if len(ops) != 1:
    sys.exit(f"{len(ops)} ops are registered as chunk_gated_delta_rule")
methods = {node.name: node for node in ops[0].body if isinstance(node, ast.FunctionDef)}
if "self._forward_method =" not in ast.unparse(methods["__init__"]):
    sys.exit("the op does not choose its kernel in __init__")
for name in ("forward_cuda", "forward_native"):
    missing = set(TAKEN) - {argument.arg for argument in methods[name].args.args}
    if missing:
        sys.exit(f"{name} of the op takes no {', '.join(sorted(missing))}")

kernels = folder("flash_qla") / "ops/gated_delta_rule/chunk/__init__.py"
if "'12.1'" not in ast.unparse(ast.parse(kernels.read_text())):
    sys.exit("flash_qla does not take its SM120 kernels for GB10 (SM121)")
PYTHON
