"""Runs the parts on the GPU of this machine, and writes one JSON of figures in the form of evidence.

    make test-gpu IMAGE=vllm-node-flashqla:3        vLLM and the mods of an image
    make test-gpu PYTHON=/opt/venv/bin/python3      vLLM of that Python, with the mods baked into it
    make test-gpu IMAGE=… PARTS='machine,INT8 head'  these parts alone, each by its name
    make test-gpu IMAGE=… MINUTES=10                 for ten minutes; then it names the parts that are left
    make test-gpu IMAGE=… RESUME=1                   what the run before did not end, in one JSON with the rest

Ends with 1 where a check fails, with 3 where there is nothing to test on, and with 4 where parts did not come to their
end. What cannot be run is in the findings, with its reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from builder.base.machine_record import Machine
from builder.evidence import run_record
from builder.evidence.run_record import Evidence, Figure, Finding, Subject
from tests.gpu import running, vllms
from tests.gpu.running import Outcome, Part

FLASHQLA, VLLM_ALONE = "FLASHQLA_PREFILL=require", "FLASHQLA_PREFILL=off"
INT8, OWN_HEAD = "INT8_LM_HEAD=require", "INT8_LM_HEAD=off"
# The limits are what a cold start took, and half as much again: on a new machine everything is compiled first.
PARTS = (
    Part("machine", "part_machine.py", seconds=60),
    Part("mods", "part_mods.py", seconds=60),
    Part("CUDA runtime", "part_runtime.py", seconds=90, mod="flashqla"),
    Part("INT8 head", "part_head.py", seconds=90, mod="int8-lm-head"),
    Part("hybrid checkpoint", "part_hybrid.py", (VLLM_ALONE, OWN_HEAD), 420, "enable-hybrid-int4fp8"),
    Part("served eagerly", "part_serving.py", ("eager", FLASHQLA, OWN_HEAD), 240, "flashqla"),
    Part("served by vLLM alone", "part_serving.py", ("eager", VLLM_ALONE, OWN_HEAD), 150),
    Part("served with an INT8 head", "part_serving.py", ("eager", VLLM_ALONE, INT8), 150, "int8-lm-head"),
    Part("options of the recipe qwen3.5-122b-tf5", "part_recipe.py", (VLLM_ALONE, INT8), 560),
    Part("served compiled", "part_serving.py", ("compiled", FLASHQLA, "INT8_LM_HEAD=auto"), 200, "flashqla"),
    Part("kernels for 64 value heads", "part_kernels.py", ("64",), 150, "flashqla"),
    Part("kernels for 32 value heads", "part_kernels.py", ("32",), 300, "flashqla"),
)
# Two that differ in one thing, each with what is compared.
COMPARED = {
    "FlashQLA": ("served eagerly", "served by vLLM alone"),
    "an INT8 head": ("served with an INT8 head", "served by vLLM alone"),
}
# What no part can tell, with the reason.
NOT_RUN = (
    (
        "answers of trained weights",
        "needs the weights of Qwen3.5-122B: `builder run`, `bench` and `probe` serve and measure it",
    ),
    ("tool calls", "need a tokenizer and trained weights; `builder prove` tries templates and parsers without either"),
)
NOTHING_TO_TEST_ON = 3
NOT_ALL_PARTS = 4


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    parts = chosen(asked.parts)
    vllm = vllms.ImageVllm(asked.image) if asked.image else vllms.InstalledVllm(asked.python)
    reason = vllms.why_no_gpu() or (vllms.why_no_image(asked.image) if asked.image else vllms.why_no_vllm(asked.python))
    if reason:
        sys.stderr.write(f"nothing was tested: {reason}\n  it needs an NVIDIA GPU, and IMAGE=NAME:N or PYTHON=PATH\n")
        return NOTHING_TO_TEST_ON
    started, began = time.gmtime(), time.monotonic()
    kept = asked.output.with_suffix(".parts.json")
    outcome = running.run(vllm, parts, write, 60 * asked.minutes, ended_before(kept, vllm.name) if asked.resume else {})
    kept.write_text(json.dumps({"vllm": vllm.name, "parts": outcome.ended}))
    compare_tokens(outcome)
    outcome.findings += [Finding(name, "not run", "unclear", reason) for name, reason in NOT_RUN]
    evidence = record(vllm.name, outcome, time.strftime("%Y-%m-%dT%H:%M:%SZ", started), time.monotonic() - began)
    asked.output.write_text(run_record.evidence_text(evidence))
    for figure in evidence.figures:
        write(f"{figure.name:28} {figure.mean:12.4g} {figure.unit:8} {dict(figure.at)}")
    for finding in evidence.findings:
        write(f"{finding.verdict:8} {finding.check}: {finding.at}: {finding.text}")
    write(f"{evidence.verdict}: {asked.output}")
    if outcome.left_out:
        write(f"{len(outcome.left_out)} parts did not come to their end: {', '.join(outcome.left_out)}")
        write("to go on with these: the same command with RESUME=1")
    return 1 if outcome.failed else NOT_ALL_PARTS if outcome.left_out else 0


def ended_before(kept: Path, vllm: str) -> dict[str, list[Any]]:
    """The results of the parts that the run before came to the end of, if it was of the same vLLM."""
    if not kept.is_file():
        return {}
    before = json.loads(kept.read_text())
    return dict(before["parts"]) if before["vllm"] == vllm else {}


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--image", default="", help="an image with vLLM, by its tag")
    parser.add_argument("--python", default="python3", help="a Python with vLLM, where no image is given")
    parser.add_argument("--parts", default="", help="names of parts, with commas; all where none is given")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="how long it may take in all; no limit by itself"
    )
    parser.add_argument("--resume", action="store_true", help="run only what the run before did not come to the end of")
    parser.add_argument("--output", type=Path, default=Path("test-gpu.json"), help="the JSON that is written")
    return parser.parse_args(arguments)


def chosen(names: str) -> tuple[Part, ...]:
    """The parts of these names, and the first one, which tells the machine that the figures are of. Ends with 2 where
    one of the names is of none."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := wanted - {part.name for part in PARTS}:
        listed = "\n  ".join(part.name for part in PARTS)
        sys.stderr.write(f"there is no part {', '.join(sorted(unknown))}; the parts are\n  {listed}\n")
        raise SystemExit(2)
    return tuple(part for part in PARTS if not wanted or part.name in wanted or part is PARTS[0])


def compare_tokens(outcome: Outcome) -> None:
    """The greedy tokens of one model with a mod and without. Random weights leave ties, so a difference is no fault;
    how many are the same is a figure."""
    for what, parts in COMPARED.items():
        served = [outcome.versions.get(part, {}).get("tokens") for part in parts]
        if not all(served):
            continue
        ours, own = (json.loads(str(each)) for each in served)
        pairs = [
            (one, other) for mine, yours in zip(ours, own, strict=True) for one, other in zip(mine, yours, strict=True)
        ]
        same = sum(one == other for one, other in pairs) / len(pairs)
        at: dict[str, int | str] = {"with": what, "of": len(pairs)}
        outcome.figures.append(Figure("same_greedy_tokens", at, "ratio", "higher", (same,)))


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
