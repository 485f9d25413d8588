#!/usr/bin/env bash
# Looks at what the hook builds on, without importing vLLM, which takes a quarter of a minute.
set -euo pipefail

python3 - <<'PYTHON'
import ast
import importlib.util
import pathlib
import sys

spec = importlib.util.find_spec("vllm")
vllm = pathlib.Path(spec.submodule_search_locations[0]) if spec else sys.exit("vllm is not installed")
layers = vllm / "model_executor/layers"


def tree(path):
    return ast.parse((vllm / path).read_text())


def function(path, name, of=None):
    body = tree(path).body
    if of:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == of), [])
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        sys.exit(f"{path} has no {of + '.' if of else ''}{name}")
    return found[0]


def arguments(node):
    return [argument.arg for argument in node.args.args]


for file in ("__init__", "hook", "kernel", "reference"):
    if not (layers / f"int8_lm_head/{file}.py").is_file():
        sys.exit(f"{layers}/int8_lm_head/{file}.py is missing")

process = function("model_executor/model_loader/utils.py", "process_weights_after_loading")
if list(map(ast.unparse, process.decorator_list)) != ["int8_lm_head.after_loading"]:
    sys.exit("process_weights_after_loading is not hooked")
if arguments(process) != ["model", "model_config", "target_device"]:
    sys.exit(f"process_weights_after_loading takes {', '.join(arguments(process))}")

for path in ("model_executor/model_loader/base_loader.py", "config/speculative.py"):
    calls = [ast.unparse(node) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    if path.endswith("base_loader.py"):
        if "process_weights_after_loading(model, model_config, target_device)" not in calls:
            sys.exit("models are loaded without process_weights_after_loading")
    elif not any("runner='draft'" in call for call in calls):
        sys.exit("the config of a drafter cannot be told from a model's")

processor = "model_executor/layers/logits_processor.py"
if arguments(function(processor, "forward", "LogitsProcessor"))[:4] != [
    *("self", "lm_head", "hidden_states", "embedding_bias")
]:
    sys.exit("LogitsProcessor.forward takes other arguments")
if "lm_head.quant_method.apply(lm_head, hidden_states, bias=embedding_bias)" not in ast.unparse(tree(processor)):
    sys.exit("LogitsProcessor does not ask the quantisation method of the head for logits")

embedding = {node.name for node in tree("model_executor/layers/vocab_parallel_embedding.py").body if hasattr(node, "name")}
if not {"ParallelLMHead", "UnquantizedEmbeddingMethod"} <= embedding:
    sys.exit("vLLM's head is another class")
PYTHON
