# Ends with 0 if the mod works. The script runs in the finished image, in the workspace. For a patch, import what it changes:
#   python3 -c 'import vllm.model_executor.layers.quantization.inc'
set -eu
grep -q example example.txt
