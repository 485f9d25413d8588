"""The other mods that change vLLM and transformers, as far as a card without their checkpoints can tell."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import subprocess
import sys
from pathlib import Path

import torch
from part_results import Results

MODS = next(path for path in (Path("/mods"), Path(__file__).parents[3] / "mods") if path.is_dir())
BLOCK = 128


def linear(results: Results) -> None:
    """vLLM's own multiplication of FP8 weights with block scales, which enable-hybrid-int4fp8 gives dense layers."""
    from vllm import _custom_ops as ops  # noqa: F401
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    torch.manual_seed(0)
    for rows, columns in ((768, 256), (2048, 2048), (4096, 1024)):
        weight = torch.randn(rows, columns, device="cuda")
        blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scale = blocks.abs().amax(dim=(1, 3)) / 448.0
        packed = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        x = torch.randn(64, columns, device="cuda", dtype=torch.bfloat16)
        rounded, x_scale = fp8_utils.per_token_group_quant_fp8(x, BLOCK)
        full = (packed.float().reshape(blocks.shape) * scale[:, None, :, None]).reshape(rows, columns)
        values = (rounded.float().reshape(64, -1, BLOCK) * x_scale[:, :, None]).reshape(64, columns)
        reference = values @ full.T
        answer = fp8_utils.w8a8_triton_block_scaled_mm(rounded, packed, x_scale, scale, [BLOCK, BLOCK], torch.bfloat16)
        off = float((answer.float() - reference).norm() / reference.norm())
        results.figure("fp8_layer_error", {"rows": rows, "columns": columns}, "ratio", "lower", off)
        results.check("enable-hybrid-int4fp8", f"{rows} x {columns}", off < 1e-2, f"off by {off:.2e}")


def checks(results: Results) -> None:
    """Each mod's own check, where the mod is in."""
    # They ask python3, which is to be this one.
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("enable-hybrid-int4fp8", "fix-qwen3.5-autoround", "flashqla", "int8-lm-head"):
        check = ["bash", str(MODS / name / "check.sh")]
        done = subprocess.run(check, env=environ, capture_output=True, text=True)
        if done.returncode:
            results.left_out(name, "its own check", f"not in this vLLM: {done.stderr.strip()[-300:]}")
        else:
            results.check(name, "its own check", True, "")


def main() -> int:
    results = Results()
    checks(results)
    try:
        linear(results)
    except (ImportError, AttributeError, TypeError) as error:
        version = metadata.version("vllm")
        results.left_out("enable-hybrid-int4fp8", "FP8 layers", f"vLLM {version} has another function: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
