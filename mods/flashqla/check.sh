#!/usr/bin/env bash
# vLLM and flash_qla are not imported: flash_qla needs a GPU to be, which no build has. What TileLang loads is loaded.
set -euo pipefail

python3 - <<'PYTHON'
import ast
import ctypes
import importlib.util
import os
import pathlib
import sys

TAKEN = "q k v g beta initial_state output_final_state cu_seqlens use_qk_l2norm_in_kernel".split()


def folder(package):
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.submodule_search_locations[0]) if spec else sys.exit(f"{package} is not installed")


def classes(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


layers = folder("vllm") / "model_executor/layers/mamba"
for file in ("__init__", "hook", "speed", "warmup"):
    if not (layers / f"gdn_flashqla/{file}.py").is_file():
        sys.exit(f"{layers}/gdn_flashqla/{file}.py is missing")

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

stub = sys.modules.get("tilelang_stub") or sys.exit("Python does not read tilelang_stub.pth when it starts")
ctypes.CDLL(str(folder("tilelang") / "lib/libtilelang.so"), os.RTLD_LAZY)
if stub.loaded():
    sys.exit(f"others would take {' '.join(stub.loaded())} of TileLang for the CUDA runtime")

for path in sorted((folder("flash_qla") / "ops").rglob("*.py")):
    # __init__bak.py of 0.1.3 is imported by nothing.
    cards = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    if "12.0" in cards and "12.1" not in cards and path.stem != "__init__bak":
        sys.exit(f"{path} does not take the kernels for SM120 on GB10 (SM121)")
PYTHON
