"""The likely causes of a failure are ranked by what it says, by known faults, and by what has worked before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.base import machine_record
from builder.base.machine_record import Machine
from builder.lab import likely_causes
from builder.lab.likely_causes import FailureKind
from builder.serving.readiness import OptionsInUse

BEFORE = Machine(
    gpu="NVIDIA GB10",
    gpus=1,
    driver="580.142",
    kernel="6.17.0-1014-nvidia",
    memory=128 << 30,
    distribution="Ubuntu 24.04.4 LTS, DGX OS 7.4.0",
    firmware={"BIOS": "5.36_0ACUM018", "RoCE rocep1s0f1": "28.45.4028", "NVMe nvme0": "GXA7601Q"},
    links={"rocep1s0f1": "200 Gb/sec (4X HDR)"},
    toolkit="1.18.1",
    engine="Docker 29.1.0",
    governor="performance",
    cma=65536 << 10,
    available=114 << 30,
)


def first(after: Machine, kind: FailureKind = "", nodes: int = 1, **faults: str) -> str:
    """The text of the cause that stands first."""
    changes = [("", change) for change in machine_record.machine_changes(BEFORE, after)]
    causes = likely_causes.machine_causes(changes, kind, faults, nodes, [BEFORE])
    return likely_causes.ranked(causes)[0].text


def test_what_an_update_changes_beside_the_kernel_comes_after_it() -> None:
    after = replace(
        BEFORE,
        kernel="6.17.0-1021-nvidia",
        distribution="Ubuntu 24.04.4 LTS, DGX OS 7.5.0",
        toolkit="1.19.0",
        engine="Docker 29.2.0",
        firmware={**BEFORE.firmware, "NVMe nvme0": "GXA7602Q"},
    )
    assert first(after).startswith("kernel: ")


@pytest.mark.parametrize(
    ("kind", "nodes", "text"),
    [("network", 2, "kernel: "), ("GPU", 1, "driver: "), ("memory", 1, "kernel: "), ("", 2, "kernel: ")],
)
def test_of_a_kernel_and_a_driver_the_failure_decides(kind: FailureKind, nodes: int, text: str) -> None:
    assert first(replace(BEFORE, kernel="7.0.0-1022-nvidia", driver="580.173.02"), kind, nodes).startswith(text)


def test_links_firmware_and_memory() -> None:
    slower = replace(BEFORE, links={"rocep1s0f1": "100 Gb/sec (2X HDR)"}, toolkit="1.19.0")
    assert first(slower, "network", 2).startswith("rate of the link of rocep1s0f1: ")
    flashed = {**BEFORE.firmware, "RoCE rocep1s0f1": "28.48.1000", "NVMe nvme0": "GXA7602Q"}
    assert first(replace(BEFORE, firmware=flashed), "network", 2).startswith("firmware of RoCE rocep1s0f1: ")
    assert first(replace(BEFORE, available=50 << 30, engine="Docker 29.2.0"), "memory").startswith("free memory: ")


def test_a_known_fault_stands_before_all() -> None:
    after = replace(BEFORE, kernel="7.0.0-1019-nvidia", driver="580.173.02")
    assert first(after, "GPU", kernel="it registers no RDMA memory").startswith("kernel: ")


def test_what_has_worked_before_moves_down() -> None:
    after = replace(BEFORE, kernel="6.17.0-1021-nvidia", governor="powersave", power="90.00")
    changes = [("", change) for change in machine_record.machine_changes(replace(BEFORE, power="140.00"), after)]
    seen = [BEFORE, replace(after, power="140.00", governor="performance")]
    causes = likely_causes.ranked(likely_causes.machine_causes(changes, "", {}, 1, seen))
    assert [cause.text.partition(":")[0] for cause in causes] == [
        "power limit of the GPU, in watts",
        "kernel",
        "CPU frequency governor",
    ]
    assert causes[1].reasons == ("it has worked in this state before",)


def test_the_node_is_named() -> None:
    (change,) = machine_record.machine_changes(BEFORE, replace(BEFORE, kernel="7.0.0-1019-nvidia"))
    (cause,) = likely_causes.machine_causes([("spark2", change)], "network", {}, 2, [])
    assert cause.text == "kernel: 6.17.0-1014-nvidia → 7.0.0-1019-nvidia on spark2"
    assert cause.undo == "boot kernel 6.17.0-1014-nvidia from the boot menu on spark2"


@pytest.mark.parametrize(
    ("before", "after", "undo"),
    [
        (
            {"parameters": "kho=off"},
            {"parameters": ""},
            "start the kernel with 'kho=off' again: edit /etc/default/grub, run `sudo update-grub`, then restart",
        ),
        (
            {"parameters": ""},
            {"parameters": "kho=off"},
            "remove 'kho=off': edit /etc/default/grub, run `sudo update-grub`, then restart",
        ),
        (
            {},
            {"toolkit": "1.19.0"},
            "`sudo apt install nvidia-container-toolkit{,-base}=1.18.1-1 libnvidia-container{1,-tools}=1.18.1-1`",
        ),
    ],
)
def test_what_undoes_a_change(before: dict[str, Any], after: dict[str, Any], undo: str) -> None:
    (change,) = machine_record.machine_changes(replace(BEFORE, **before), replace(BEFORE, **after))
    (cause,) = likely_causes.machine_causes([("", change)], "", {}, 1, [])
    assert cause.undo == undo


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("RuntimeError: NCCL error: unhandled system error", "network"),
        ("TimeoutError: RPC call to sample_tokens timed out.", "network"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "memory"),
        ("killed by the kernel: out of memory", "memory"),
        ("vllm serve: error: unrecognized arguments: --max-modle-len 3", "options"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution", "software"),
        ("ImportError: undefined symbol: _ZN3c10", "software"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "GPU"),
        ("ValueError: the chat template of x cannot be rendered", "template"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error", "files"),
        ("it was late", ""),
        ("", ""),
    ],
)
def test_the_kind_of_a_failure(failure: str, kind: FailureKind) -> None:
    assert likely_causes.failure_kind(failure) == kind


def served(before: dict[str, str], after: dict[str, str], failure: str = "") -> list[str]:
    old, new = (OptionsInUse(each, recipe="recipes/m.yaml", revision="a" * 40) for each in (before, after))
    causes = likely_causes.served_causes(old, new, new, "Org/M", likely_causes.failure_kind(failure), failure)
    return [cause.text for cause in likely_causes.ranked(causes)]


def test_an_option_that_the_failure_names_stands_first() -> None:
    before, after = {"max-model-len": "32768"}, {"max-model-len": "131072", "attention-backend": "FLASHINFER"}
    assert served(before, after)[0] == "--max-model-len: 32768 → 131072"
    assert served(before, after, "ValueError: Selected backend FLASHINFER is not valid for this configuration")[0] == (
        "--attention-backend: not given → FLASHINFER"
    )
    assert served(before, after, "ValueError: max_model_len (131072) is greater than the derived")[0] == (
        "--max-model-len: 32768 → 131072"
    )


def test_weights_name_both_revisions() -> None:
    before, after = (OptionsInUse(recipe="recipes/m.yaml", revision=mark * 40) for mark in "ab")
    (cause,) = likely_causes.served_causes(before, after, after, "Org/M", "", "")
    assert (cause.axis, cause.text) == ("weights", f"weights of Org/M: {'a' * 12} → {'b' * 12}")
    assert cause.undo == f"write `model_revision: {'a' * 40}` into recipes/m.yaml to serve the earlier weights"


def test_an_option_that_was_typed_stands_first_and_the_recipe_starts_without_it() -> None:
    before, after, alone = (
        OptionsInUse({"max-model-len": length, **more}, recipe="recipes/m.yaml")
        for length, more in (("2048", {"enforce-eager": ""}), ("999999", {}), ("2048", {}))
    )
    causes = likely_causes.ranked(likely_causes.served_causes(before, after, alone, "Org/M", "", ""))
    assert [each.text for each in causes] == ["--max-model-len: 2048 → 999999", "--enforce-eager: given → not given"]
    assert causes[0].reasons == ("this value is not in the recipe",)
    assert causes[0].undo == "`builder run recipes/m.yaml` starts the server as the file says; run `builder stop` first"
    assert causes[1].undo.startswith("set `--enforce-eager` again, in recipes/m.yaml or on the command line; ")
