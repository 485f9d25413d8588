#!/usr/bin/env bash
# Puts the package that hook.patch imports beside the layers that it serves, and what Python imports when it starts
# beside vLLM. vLLM is found, not imported.
set -euo pipefail

vllm=$(python3 -c 'import importlib.util; print(importlib.util.find_spec("vllm").submodule_search_locations[0])')
install -D -m 0644 -t "$vllm/model_executor/layers/mamba/gdn_flashqla" gdn_flashqla/*.py
install -D -m 0644 -t "$(dirname "$vllm")" tilelang_stub.py tilelang_stub.pth
