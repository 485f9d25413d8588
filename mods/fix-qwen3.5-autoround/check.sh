#!/usr/bin/env bash
# A Qwen3.5 config as it comes back from JSON, with a list where there was a set.
set -euo pipefail

python3 - <<'PYTHON'
from transformers import AutoConfig

rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
for kind in ("qwen3_5_text", "qwen3_5_moe_text"):
    kept = ["mrope_section", "mrope_interleaved"]
    AutoConfig.for_model(kind, rope_parameters=dict(rope), ignore_keys_at_rope_validation=kept)
PYTHON
