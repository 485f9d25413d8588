"""Advisories: their format, what a condition means, and that they tell of what happened and of nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import ConflictError, FileProblemsError
from builder.base.events import Diagnosis
from builder.base.machine_record import Machine
from builder.definitions import advisories, command, image, recipe, recipe_problems
from builder.definitions.advisories import Advisory
from builder.definitions.configuration import Configuration
from builder.lock import lock_file
from builder.lock.model import Lock
from builder.serving import advice
from tests import shipped_files, spark_proc
from tests.definitions.incidents import INCIDENTS

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.advisories import Facts
    from tests.definitions.incidents import Incident

SHIPPED = advisories.shipped_advisories()
SOME_RECIPE = recipe.load_recipe(shipped_files.project(), shipped_files.project().recipes / "qwen3.5-122b-node.yaml")
ENTRY = """\
nccl-2.28.9:
  what: it hangs
  do: take another one
  affects: {nccl: "==2.28.9"}
  when: {nodes: ">1"}
  sources: ["https://github.com/vllm-project/vllm/issues/52504"]
  checked: 2026-11-26
"""


def applying(facts: Facts) -> list[str]:
    return [advisory.id for advisory in SHIPPED if advisories.applies(facts, advisory)]


# The format


def test_an_entry_is_read_with_its_condition() -> None:
    (advisory,) = advisories.parse_advisories(ENTRY, "own.yaml", "here")
    assert advisory == Advisory(
        id="nccl-2.28.9",
        what="it hangs",
        do="take another one",
        sources=("https://github.com/vllm-project/vllm/issues/52504",),
        checked="2026-11-26",
        affects={"nccl": "==2.28.9"},
        when={"nodes": ">1"},
        origin="here",
    )


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("  what: it hangs\n", "", "own.yaml:1:1: the key `what` is missing in `nccl-2.28.9`"),
        ("  do:", "  doo:", "own.yaml:3:3: unknown key `doo`; did you mean `do`?"),
        ("{nccl:", "{ncl:", "own.yaml:4:13: no fact is called `ncl`; did you mean `nccl`?"),
        ('"==2.28.9"', "2.28", "own.yaml:4:13: `nccl-2.28.9.affects.nccl`: 2.28 is not text"),
        ('"==2.28.9"', '"2.28.9"', 'own.yaml:4:13: "2.28.9" is not a range of versions, such as ">=0.30,<0.34"'),
        ('">1"', '">many"', 'own.yaml:5:10: ">many" is not a comparison, such as ">=2" or ">=0.30,<0.34"'),
        ("{nodes:", "{any: [{node: 1}], nodes:", "own.yaml:5:17: no fact is called `node`; did you mean `nodes`?"),
        ("checked: 2026-11-26", "checked: yesterday", "own.yaml:7:3: `nccl-2.28.9.checked`: "),
        ("checked: 2026-11-26", "checked: 2026-13-26", "own.yaml:7:3: 2026-13-26 is not a date"),
        ("https://github", "javascript://x", "own.yaml:6:13: `nccl-2.28.9.sources.0`: "),
        ("nccl-2.28.9:", "NCCL 2:", "own.yaml:1:1: unknown key `NCCL 2`"),
    ],
)
def test_a_fault_is_told_at_its_place(before: str, after: str, problem: str) -> None:
    assert before in ENTRY
    with pytest.raises(FileProblemsError) as raised:
        advisories.parse_advisories(ENTRY.replace(before, after, 1), "own.yaml")
    assert problem in str(raised.value)


def test_one_without_a_condition_would_always_apply() -> None:
    bare = "".join(line for line in ENTRY.splitlines(True) if "affects" not in line and "when" not in line)
    with pytest.raises(FileProblemsError, match="`affects` or `when` is required"):
        advisories.parse_advisories(bare, "own.yaml")


# Conditions

FACTS: Facts = {
    "vllm": "0.30.1rc1.dev35+gabc",
    "flashinfer": "0.6.18.post1",
    "nodes": 2,
    "kernel": "7.0.0-1019-nvidia",
    "model": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "quantization": ("fp8", "nvfp4"),
    "mod": None,
    "option": {"gpu-memory-utilization": "0.9", "enforce-eager": True, "max-num-seqs": "$N"},
    "package": {"ray": "2.53.0", "odd": "main"},
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"vllm": ">=0.30,<0.34"}, True),
        ({"vllm": ">=0.30.1"}, False),  # a candidate comes before its release
        ({"vllm": ">=0.31"}, False),
        ({"torch": ">=2"}, None),
        ({"flashinfer": ">=0.6.18,<0.6.19"}, True),
        ({"flashinfer": "==0.6.18"}, False),
        ({"flashinfer": ">=0.6.19.dev0"}, False),
        ({"flashinfer": ">=0.6.18.dev0"}, True),
        ({"nodes": ">1"}, True),
        ({"nodes": "2"}, True),
        ({"nodes": 2}, True),
        ({"kernel": "7.0.0-1019-*"}, True),
        ({"kernel": ">=7.0.0.1019"}, True),
        ({"kernel": "<7.0.0.1019"}, False),
        ({"model": "*qwen3.6*"}, True),
        ({"model": ["*glm*", "*Qwen3.6*"]}, True),
        ({"quantization": "nvfp4"}, True),
        ({"mod": "absent"}, True),
        ({"mod": "flashqla"}, False),
        ({"option.gpu-memory-utilization": ">0.85"}, True),
        ({"option.gpu-memory-utilization": "<0.85"}, False),
        ({"option.enforce-eager": "present"}, True),
        ({"option.enforce-eager": True}, True),
        ({"option.max-num-seqs": ">1"}, None),
        ({"option.max-model-len": "absent"}, True),
        ({"option.max-model-len": ">1"}, False),
        ({"env.X": "absent"}, None),
        ({"package.ray": ">=2.50"}, True),
        ({"package.odd": ">=2.50"}, None),
        ({"package.none": "present"}, False),
        ({"not": {"nodes": ">1"}}, False),
        ({"not": {"driver": "<590"}}, None),
        ({"any": [{"driver": "<590"}, {"nodes": "2"}]}, True),
        ({"any": [{"driver": "<590"}, {"nodes": "3"}]}, None),
        ({"all": [{"driver": "<590"}, {"nodes": "3"}]}, False),
        ({"driver": "<590", "nodes": "3"}, False),
    ],
)
def test_a_condition_holds_does_not_hold_or_is_unknown(condition: dict[str, Any], expected: bool | None) -> None:
    advisory = replace(SHIPPED[0], affects={}, when=condition)
    assert advisories.applies(FACTS, advisory) is expected


@pytest.mark.parametrize("version", ["0.1.dev20003+gad848fc41.d20260815", "0.0.0.dev1", "nightly"])
def test_a_version_that_tells_of_no_release_is_unknown(version: str) -> None:
    """A clone without tags gives such versions: they are below every range, whatever the commit is."""
    assert advisories.applies({"vllm": version}, replace(SHIPPED[0], affects={"vllm": "<0.20"}, when={})) is None


# Those that are shipped


def test_the_shipped_files_have_no_faults() -> None:
    parsed = (advisories.parse_advisories(text, file) for file, text in advisories.shipped_files().items())
    assert tuple(advisory for each in parsed for advisory in each) == SHIPPED


def test_there_are_forty_and_each_has_a_thread() -> None:
    assert len(SHIPPED) >= 40
    assert [name for name, count in Counter(each.id for each in SHIPPED).items() if count > 1] == []
    assert [each.id for each in SHIPPED if not each.sources] == []


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda each: each.advisory)
def test_an_incident_is_told_and_its_near_miss_is_not(incident: Incident) -> None:
    assert incident.advisory in applying(incident.facts(SOME_RECIPE))
    near = replace(incident, **incident.near)
    assert near != incident
    assert incident.advisory not in applying(near.facts(SOME_RECIPE))


def test_an_incident_is_told_in_few_lines() -> None:
    """What does not belong to it is left out."""
    told = {number: applying(incident.facts(SOME_RECIPE)) for number, incident in enumerate(INCIDENTS)}
    assert {number: ids for number, ids in told.items() if len(ids) > 3} == {}
    assert len({incident.advisory for incident in INCIDENTS}) >= 40


def test_nothing_applies_where_nothing_is_known() -> None:
    assert applying({}) == []


def test_nothing_is_said_of_the_shipped_recipes_and_definitions() -> None:
    """On the shipped pins, on one Spark and on two of them, whose kernel and driver have no fault."""
    project = shipped_files.project()
    lock = lock_file.read_lock(project.lock)
    machine = advice.machine_facts(Machine(kernel="6.17.0-1032-nvidia", driver="580.173.02", gpu="NVIDIA GB10"))
    looked_at = 0
    for path in recipe.recipe_files(project.recipes):
        loaded = recipe.load_recipe(project, path)
        words = command.render_command(loaded, {}, (), "mp").words
        chain = recipe_problems.image_facts(project, loaded).definitions
        assert advice.of_recipe_file(project, lock, loaded, words, chain, Configuration()) == (), path
        for nodes in (1, 2):
            facts = {**advice.of_recipe(loaded, words, nodes), **machine}
            facts |= advice.of_definition(lock, chain) if chain else {}
            looked_at += "package" in facts
            assert applying(facts) == [], path
    for name in image.definition_names(project):
        chain = image.load_chain(project, name, "linux/arm64")
        assert advice.of_plan(project, lock, chain, ()) == ()
        assert advice.of_plan(project, Lock(), chain, ()) == ()
    assert looked_at >= 8


# The facts of a machine


def test_the_facts_of_a_machine_are_in_its_proc(tmp_path: Path) -> None:
    proc = spark_proc.write_whole(tmp_path, driver="580.95.05", kernel="7.0.0-1019-nvidia")
    (proc / "cmdline").write_text("root=/dev/nvme0n1 kho=off\n", encoding="utf-8")
    facts = advice.of_machine(proc)
    assert facts == {
        "chip": "NVIDIA GB10",
        "driver": "580.95.05",
        "driver.modules": "open",
        "kernel": "7.0.0-1019-nvidia",
        "kernel.parameters": "kho=off",
    }
    assert applying({**facts, "nodes": 2, "option": {}, "env": {}}) == []
    (proc / "cmdline").unlink()
    assert applying({**advice.of_machine(proc), "nodes": 2, "option": {}, "env": {}}) == ["kernel-7-kexec-handover"]
    assert advice.of_machine(tmp_path / "none") == {}


def test_what_is_certain_is_refused_with_the_way_out() -> None:
    certain = Diagnosis("advisory", "error", "own: it never starts", "take another")
    with pytest.raises(ConflictError, match="advisory own: it never starts") as raised:
        advice.refuse_certain((Diagnosis("advisory", "warning", "other: it is slow", ""), certain))
    assert raised.value.hint == "take another; to allow it anyway: `silenced: {own: WHY}` in builder.yaml"
