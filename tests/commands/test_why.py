"""Why a model does not work any more: threads of September 2026, played again from made-up machines.

In each, a start that answered is recorded on the machine of before. Then the machine, the image or the recipe becomes
what the thread tells, and the command has to put the culprit first, without an engine, a build or a network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import why
from builder.engine import machine
from builder.evidence import run_record
from builder.evidence.run_record import Subject
from builder.lock import lock_file, text
from builder.lock.model import Adoption, ImageName, Lock, NumberedImage, Pairing, Version
from builder.numbers import adopted
from builder.numbers.adopted import AdoptedContents
from builder.numbers.workspace import open_workspace
from builder.serving import readiness, selection
from builder.serving.readiness import StartFacts
from tests import json_outputs, projects, spark_tree
from tests.conftest import WITHOUT_ENGINE, run_command
from tests.evidence.runs import bench
from tests.spark_tree import Tree

MODEL = "Org/Model-1B"
FIRST, SECOND = ImageName("small", 1), ImageName("small", 2)
THEN, LATER = "2026-09-01T10:00:00Z", "2026-09-10T10:00:00Z"
PACKAGES = {"torch": "2.11.0", "nvidia-nccl-cu13": "2.29.7", "transformers": "5.9.0", "rich": "15.0.0"}
CHOSEN = {"attention backend": ("FLASHINFER",), "KV cache tokens": ("1,234,560",)}
# Lines as NCCL, vLLM and argparse write them, from the threads.
ENOMEM = "spark:281:300 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
UNHANDLED = "(Worker_TP0 pid=281) ERROR 09-13 10:00:00 [x.py:1] RuntimeError: NCCL error: unhandled system error"
HANG = (
    "(EngineCore pid=99) INFO 09-13 10:00:00 [x.py:1] No available shared memory broadcast block found in 60 seconds."
)
RPC = "(EngineCore pid=99) ERROR 09-13 10:00:00 [core.py:1] TimeoutError: RPC call to sample_tokens timed out."
CUDNN = "RuntimeError: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER: CUDA error 715"


def image(number: int, **values: Any) -> NumberedImage:
    record = NumberedImage(
        "2026-08-20T22:00:00Z", "", "linux/arm64", f"sha256:{number:064x}", "", 1, versions={"vllm": Version("0.30.0")}
    )
    return replace(record, adopted=Adoption(f"eugr/spark-vllm:{number}"), **values)


@dataclass(frozen=True)
class Thread:
    """What a thread tells: the machines ``before`` and ``now``, one text for each node; what the second image has, if
    there is one; the recipe's command now; the lines of the failed start; and what must stand first."""

    first: str
    now: Tree = field(default_factory=Tree)
    before: Tree = field(default_factory=Tree)
    packages: Mapping[str, str] | None = None
    vllm: str = "0.30.0"
    command: str = ""
    lines: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: CHOSEN)
    undo: str = ""
    axis: str = "machine"
    advisories: tuple[str, ...] = ()


NEW_KERNEL = Tree(kernel="7.0.0-1019-nvidia", ota="7.6.0")
THREADS = {
    # https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14, spark-vllm-docker#389
    "kernel breaks RoCE": Thread(
        "kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia",
        NEW_KERNEL,
        lines=(ENOMEM, UNHANDLED),
        undo="boot kernel 6.17.0-1032-nvidia from the boot menu",
        advisories=("kernel-7-kexec-handover",),
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/392: "the same error with fresh pulled image today"
    "kernel, and a fresh image beside it": Thread(
        "kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia",
        NEW_KERNEL,
        packages={**PACKAGES, "torch": "2.12.0", "rich": "15.1.0"},
        vllm="0.31.0",
        lines=(ENOMEM, UNHANDLED),
        advisories=("kernel-7-kexec-handover",),
    ),
    # spark-vllm-docker, README of March 2026
    "driver 590": Thread(
        "driver: 580.173.02 → 590.48.01",
        Tree(driver="590.48.01", gpu_firmware="590.48.01", toolkit="1.19.0"),
        lines=(HANG,),
        undo="nvidia-driver-580-open",
        advisories=("driver-590-cuda-graphs",),
    ),
    # https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1
    "firmware": Thread(
        "firmware of BIOS: 5.36_0ACUM027 → 5.36_0ACUM018",
        before=Tree(bios="5.36_0ACUM027"),
        undo="fwupdmgr downgrade",
    ),
    # https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259, aicad-nccl#1
    "CmaTotal is nought": Thread(
        "memory for devices (CmaTotal): 65536 kB → 0 kB",
        Tree(cma="0 kB", cma_free="940604 kB", available=88),
        lines=(ENOMEM, UNHANDLED),
        undo="kho=off",
    ),
    # https://github.com/vllm-project/vllm/issues/52504
    "NCCL 2.28.9": Thread(
        "image: small:1 → small:2",
        packages={**PACKAGES, "nvidia-nccl-cu13": "2.28.9", "rich": "15.1.0"},
        lines=(RPC,),
        undo="builder rollback Org/Model-1B",
        axis="image",
    ),
    # https://github.com/NVIDIA/dgx-spark-playbooks/issues/107
    "a flag in the recipe": Thread(
        "--kv-cache-dtype: not given → fp8",
        command="vllm serve Org/Model-1B --port 8000 --kv-cache-dtype fp8",
        lines=(CUDNN,),
        undo="remove `--kv-cache-dtype` from recipes/chat.yaml",
        axis="recipe",
    ),
    # https://github.com/vllm-project/vllm/issues/50292
    "a new image that chooses another backend": Thread(
        "image: small:1 → small:2",
        packages=PACKAGES,
        vllm="0.33.0",
        lines=("INFO 09-13 10:00:00 [cuda.py:1] Using TRITON_ATTN attention backend out of potential backends: [].",),
        undo="builder rollback Org/Model-1B",
        axis="image",
    ),
}


def environ(tmp_path: Path, tree: Tree) -> dict[str, str]:
    root = spark_tree.write(tmp_path / "machine", tree)
    folder = spark_tree.programs(tmp_path / "bin", tree)
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, **WITHOUT_ENGINE, "BUILDER_ROOT": str(root), "PATH": path, "HOME": str(home)}


def replay(tmp_path: Path, thread: Thread, nodes: int = 1) -> tuple[Project, dict[str, str]]:
    """A project in which the model answered, and everything that has happened since."""
    project = projects.make(tmp_path / "project")
    lock = Lock().with_image(FIRST, image(1)).with_pairing(MODEL, Pairing(FIRST, "recipes/chat.yaml"))
    write(project, lock, FIRST, PACKAGES)
    before = open_workspace(project, environ(tmp_path, thread.before), ignore)
    record(before, nodes)
    if thread.packages is not None:
        after = image(2, versions={"vllm": Version(thread.vllm)})
        lock = lock.with_image(SECOND, after).with_pairing(MODEL, Pairing(SECOND, "recipes/chat.yaml"))
        write(project, lock, SECOND, thread.packages)
    if thread.command:
        recipe = project.recipes / "chat.yaml"
        head = recipe.read_text(encoding="utf-8").partition("command: |")[0]
        recipe.write_text(f"{head}command: |\n  {thread.command}\n", encoding="utf-8")
    if thread.lines:
        projects.write(project.state / "serve-logs/chat.log", "\n".join([*thread.lines, ""]))
    return project, environ(tmp_path, thread.now)


def record(workspace: Any, nodes: int = 1, at: str = THEN) -> None:
    """Records that the image that is paired now answered."""
    lock = lock_file.read_lock(workspace.project.lock)
    selected = selection.select_image(workspace.project, lock, MODEL)
    read = machine.read_machine(workspace.engine, workspace.environment, seconds=5.0)
    facts = StartFacts(at, at, (read,) * nodes, CHOSEN, readiness.options_now(workspace, selected, {}))
    readiness.record_answered(workspace.project, MODEL, selected.record.fingerprint, "answered", 40.0, facts)


def write(project: Project, lock: Lock, name: ImageName, packages: Mapping[str, str]) -> None:
    projects.write(project.lock, text.dump_lock(lock))
    record = lock.image(name)
    assert record is not None
    contents = AdoptedContents(record.fingerprint, packages={**packages, "vllm": record.versions["vllm"].version})
    projects.write(
        project.build_directory(name.repository, name.number) / adopted.FILE, adopted.dump(contents).decode()
    )


def asked(project: Project, variables: Mapping[str, str]) -> dict[str, Any]:
    return json_outputs.parsed("why", run_command(project, "why", MODEL, "--json", environ=variables).stdout)


@pytest.mark.parametrize("name", THREADS)
def test_the_culprit_of_a_thread_stands_first(tmp_path: Path, name: str) -> None:
    thread = THREADS[name]
    answer = asked(*replay(tmp_path, thread))
    first = answer["causes"][0]
    assert (first["axis"], first["text"]) == (thread.axis, thread.first)
    assert thread.undo in first["undo"]
    assert answer["worked"] == {"when": THEN, "how": "it answered", "image": "small:1"}
    ids = [advisory.partition(":")[0] for advisory in answer["advisories"]]
    assert tuple(ids) == thread.advisories


def test_the_package_of_an_image_that_is_likely_stands_before_others(tmp_path: Path) -> None:
    first = asked(*replay(tmp_path, THREADS["NCCL 2.28.9"]))["causes"][0]
    assert first["details"][0] == "nvidia-nccl-cu13: 2.29.7 → 2.28.9"
    assert "the failure concerns the link between machines" in first["reasons"]


def test_another_choice_of_vllm_is_told_beside_its_image(tmp_path: Path) -> None:
    answer = asked(*replay(tmp_path, THREADS["a new image that chooses another backend"]))
    assert answer["causes"][0]["details"][0] == ("vLLM chooses by itself: attention backend: FLASHINFER → TRITON_ATTN")
    assert answer["chosen"] == [{"name": "attention backend", "before": "FLASHINFER", "after": "TRITON_ATTN"}]


def test_what_has_worked_since_is_innocent(tmp_path: Path) -> None:
    """The new kernel has served the first image, and only then came the second one."""
    thread = Thread("", Tree(kernel="6.17.0-1040-nvidia"), packages=PACKAGES, vllm="0.31.0")
    project, variables = replay(tmp_path, thread)
    lock = lock_file.read_lock(project.lock)
    projects.write(project.lock, text.dump_lock(lock.with_pairing(MODEL, Pairing(FIRST, "recipes/chat.yaml"))))
    record(open_workspace(project, variables, ignore), at=LATER)
    projects.write(project.lock, text.dump_lock(lock))
    answer = asked(project, variables)
    assert [cause["axis"] for cause in answer["causes"]] == ["image"]
    assert answer["worked"]["when"] == LATER


def test_a_state_that_is_as_now_is_said_and_the_one_before_compared(tmp_path: Path) -> None:
    """It answers since the update of the kernel, and still something is wrong."""
    project, variables = replay(tmp_path, Thread("", Tree(kernel="6.17.0-1040-nvidia")))
    record(open_workspace(project, variables, ignore), at=LATER)
    answer = asked(project, variables)
    assert answer["as_now"] == LATER
    assert answer["causes"][0]["text"] == "kernel: 6.17.0-1032-nvidia → 6.17.0-1040-nvidia"


def test_a_candidate_that_was_compared_is_no_start_of_the_model(tmp_path: Path) -> None:
    """It may have had any arguments, and a run without a record of them is not known to be as it is now."""
    project, variables = replay(tmp_path, Thread(""))
    subject = Subject(str(FIRST), image(1).fingerprint, MODEL)
    compared = replace(bench(), kind="same", name="answers", subject=subject, started="2026-09-12T10:00:00Z")
    run_record.add_run(project, FIRST, compared)
    assert asked(project, variables)["as_now"] == THEN
    run_record.add_run(project, FIRST, replace(bench(), subject=subject, started=LATER))
    assert asked(project, variables)["as_now"] == THEN
    project.answered.unlink()
    answer = asked(project, variables)
    assert (answer["as_now"], answer["worked"]["when"], answer["causes"]) == (None, LATER, [])
    assert len(answer["unknown"]) == 2


def test_the_log_of_another_recipe_tells_nothing(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, Thread("", lines=("ValueError: of chat",)))
    projects.write(project.state / "serve-logs/chat-long.log", "ValueError: of another\n")
    os.utime(project.state / "serve-logs/chat-long.log", (2_000_000_000, 2_000_000_000))
    assert asked(project, variables)["failure"] == "ValueError: of chat"


def test_an_image_that_is_marked_bad_is_no_state_that_worked(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, Thread("", packages=PACKAGES, vllm="0.31.0"))
    record(open_workspace(project, variables, ignore), at=LATER)
    run_command(project, "mark", MODEL, "bad", "--note", "loops", environ=variables)
    answer = asked(project, variables)
    assert answer["worked"]["image"] == "small:1"
    assert answer["causes"][0]["text"] == "image: small:1 → small:2"


def test_weights_and_variables(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, Thread(""))
    recipe = project.recipes / "chat.yaml"
    more = "env:\n  VLLM_USE_DEEP_GEMM: 0\n  HF_TOKEN: hf_abcdefghijkl\nrevision: v2\n"
    recipe.write_text(recipe.read_text(encoding="utf-8") + more, encoding="utf-8")
    answer = asked(project, variables)
    texts = [cause["text"] for cause in answer["causes"]]
    assert "VLLM_USE_DEEP_GEMM: not given → 0" in texts
    assert "hf_abcdefghijkl" not in json.dumps(answer)


def test_without_a_record_it_says_what_makes_one(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, Thread(""))
    project.answered.unlink()
    done = run_command(project, "why", MODEL, code=1, environ=variables)
    assert "no successful start or run of Org/Model-1B" in done.stderr


def test_as_text(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, THREADS["kernel breaks RoCE"])
    lines = run_command(project, "why", MODEL, environ=variables).stdout.splitlines()
    assert lines[0].startswith("the last start reports: NCCL WARN Call to ibv_reg_mr_iova2 failed")
    assert lines[1] == f"{MODEL} worked at {THEN} on small:1: it answered"
    assert lines[2].startswith("1. kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia (")
    assert "   to undo it: boot kernel 6.17.0-1032-nvidia from the boot menu" in lines


def test_diff_says_where_vllm_chose_otherwise(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, Thread("", packages=PACKAGES, vllm="0.31.0"))
    workspace = open_workspace(project, variables, ignore)
    record(workspace, at=LATER)
    assert (
        json.loads(run_command(project, "diff", "small:1", "small:2", "--json", environ=variables).stdout)["chosen"]
        == {}
    )
    other = StartFacts(LATER, LATER, (), {**CHOSEN, "attention backend": ("TRITON_ATTN",)})
    readiness.record_answered(project, MODEL, image(2).fingerprint, "answered", 40.0, other)
    text = run_command(project, "diff", "small:1", "small:2", environ=variables).stdout
    assert f"vLLM's own choices for {MODEL}\n  attention backend: FLASHINFER → TRITON_ATTN\n" in text


def test_a_run_that_passed_is_a_state_that_worked(tmp_path: Path) -> None:
    """Evidence travels with the project: where no start is recorded here, a benchmark tells of the machine."""
    project, variables = replay(tmp_path, THREADS["kernel breaks RoCE"])
    project.answered.unlink()
    read = machine.read_machine(open_workspace(project, variables, ignore).engine, variables, seconds=5.0)
    then = replace(read, kernel="6.17.0-1032-nvidia")
    subject = Subject(str(FIRST), image(1).fingerprint, MODEL, machine=then)
    run_record.add_run(project, FIRST, replace(bench(), subject=subject, started=THEN))
    answer = asked(project, variables)
    assert answer["worked"]["how"] == "bench quick passed"
    assert answer["causes"][0]["text"] == "kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia"
    assert "the recipe's options: they were not recorded then" in answer["unknown"]


# The machine alone, before an image is blamed.


def test_a_machine_that_changed_is_named_and_one_that_did_not_is_not(tmp_path: Path) -> None:
    project, variables = replay(tmp_path, THREADS["kernel breaks RoCE"])
    changed = why.machine_since(open_workspace(project, variables, ignore), FIRST, MODEL)
    assert changed == ("kernel: 6.17.0-1032-nvidia → 7.0.0-1019-nvidia, since 2026-09-01",)
    same = environ(tmp_path, Tree(ota="7.6.0", available=60, governor="powersave", fwupd={"USB hub": "9.9"}))
    assert why.machine_since(open_workspace(project, same, ignore), FIRST, MODEL) == ()
    assert why.machine_since(open_workspace(project, variables, ignore), SECOND, MODEL) == ()
    flashed = environ(tmp_path, Tree(bios="5.36_0ACUM027"))
    (line,) = why.machine_since(open_workspace(project, flashed, ignore), FIRST, MODEL)
    assert line.startswith("firmware of BIOS: 5.36_0ACUM018 → 5.36_0ACUM027")
