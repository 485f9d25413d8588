"""Runs the parts on the GPU of this machine, and writes one JSON of figures in the form of evidence.

    make test-gpu IMAGE=vllm-node-flashqla:3        vLLM and the mods of an image
    make test-gpu PYTHON=/opt/venv/bin/python3      vLLM of that Python, with the mods baked into it

Ends with 1 where a check fails, and with 3 where there is nothing to test on. What cannot be run is in the findings,
with its reason.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

from builder.evidence import document
from builder.evidence.record import Evidence, Finding, Machine, Subject
from tests.gpu import running, vllms
from tests.gpu.running import Outcome, Part

PARTS = (
    Part("machine", "part_machine.py", seconds=60),
    Part("CUDA runtime", "part_runtime.py", seconds=90),
    Part("served eagerly", "part_serving.py", ("eager", "require"), 150),
    Part("served eagerly by vLLM alone", "part_serving.py", ("eager", "off"), 120),
    Part("kernels", "part_kernels.py", seconds=330),
    Part("mods", "part_mods.py", seconds=60),
    Part("served compiled", "part_serving.py", ("compiled", "require"), 150),
)
# Seen once on an H200, and not run here: each needs more memory, weights or time than a first look has.
NOT_RUN = (
    ("answers of enable-hybrid-int4fp8", "needs a checkpoint with INT4 experts and FP8 layers whose answers are known"),
    ("recipe qwen3.5-122b-tf5", "needs the weights of Qwen3.5-122B: `builder run` and `builder bench` serve it"),
)
NOTHING_TO_TEST_ON = 3


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    vllm = vllms.ImageVllm(asked.image) if asked.image else vllms.InstalledVllm(asked.python)
    reason = vllms.why_no_gpu() or ("" if asked.image else vllms.why_no_vllm(asked.python))
    if reason:
        sys.stderr.write(f"nothing was tested: {reason}\n  it needs an NVIDIA GPU, and IMAGE=NAME:N or PYTHON=PATH\n")
        return NOTHING_TO_TEST_ON
    started, began = time.gmtime(), time.monotonic()
    outcome = running.run(vllm, PARTS, write)
    compare_tokens(outcome)
    outcome.findings += [Finding(name, "not run", "unclear", reason) for name, reason in NOT_RUN]
    evidence = record(vllm.name, outcome, time.strftime("%Y-%m-%dT%H:%M:%SZ", started), time.monotonic() - began)
    asked.output.write_text(document.text(evidence))
    for figure in evidence.figures:
        write(f"{figure.name:28} {figure.mean:12.4g} {figure.unit:8} {dict(figure.at)}")
    for finding in evidence.findings:
        write(f"{finding.verdict:8} {finding.check}: {finding.at}: {finding.text}")
    write(f"{evidence.verdict}: {asked.output}")
    return 1 if outcome.failed else 0


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--image", default="", help="an image with vLLM, by its tag")
    parser.add_argument("--python", default="python3", help="a Python with vLLM, where no image is given")
    parser.add_argument("--output", type=Path, default=Path("test-gpu.json"), help="the JSON that is written")
    return parser.parse_args(arguments)


def compare_tokens(outcome: Outcome) -> None:
    """The greedy tokens of one model with FlashQLA and without. Random weights leave ties, so a difference is no fault;
    how many are the same is a figure."""
    import json

    from builder.evidence.record import Figure

    served = [
        outcome.versions.get(name, {}).get("tokens") for name in ("served eagerly", "served eagerly by vLLM alone")
    ]
    if not all(served):
        return
    ours, own = (json.loads(str(each)) for each in served)
    pairs = [
        (one, other) for mine, yours in zip(ours, own, strict=True) for one, other in zip(mine, yours, strict=True)
    ]
    same = sum(one == other for one, other in pairs) / len(pairs)
    outcome.figures.append(Figure("same_greedy_tokens", {"of": len(pairs)}, "ratio", "higher", (same,)))


def record(name: str, outcome: Outcome, started: str, seconds: float) -> Evidence:
    versions = outcome.versions.get("machine", {})
    scripts = b"".join(path.read_bytes() for path in sorted(vllms.PARTS.glob("*.py")))
    machine = Machine(gpu=versions.get("gpu", ""), gpus=int(versions.get("gpus", 0)), driver=versions.get("driver", ""))
    return Evidence(
        kind="probe",
        name="gpu",
        version=" ".join(
            f"{package} {version}"
            for package, version in versions.items()
            if "-" in package or package in ("vllm", "torch", "tilelang", "triton")
        ),
        set=f"sha256:{hashlib.sha256(scripts).hexdigest()}",
        started=started,
        seconds=seconds,
        subject=Subject(name, "not-read", machine=machine, overrides=versions),
        verdict="fail" if outcome.failed else "pass",
        counts=outcome.counts,
        figures=tuple(outcome.figures),
        findings=tuple(outcome.findings),
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
