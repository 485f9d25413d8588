"""The JSON of evidence: what is written is read back, and nothing else is taken for it."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from builder.base import machine_record
from builder.base.errors import FileProblemsError
from builder.base.machine_record import Machine
from builder.evidence import run_record
from builder.evidence.run_record import Evidence, Figure, Subject
from tests import spark_tree
from tests.evidence.runs import bench, identity, proof
from tests.spark_tree import Tree


def parsed(text: str) -> Evidence:
    return run_record.parse_evidence(text.encode(), "file")[0]


def fault(text: str | bytes) -> str:
    with pytest.raises(FileProblemsError) as raised:
        run_record.parse_evidence(text if isinstance(text, bytes) else text.encode(), "file")
    return "\n".join(str(problem) for problem in raised.value.problems)


def changed(path: str, value: Any) -> str:
    """The text of a benchmark with another value at ``path``."""
    data = json.loads(run_record.evidence_text(bench()))
    node = data
    *steps, last = path.split(".")
    for step in steps:
        node = node[int(step) if step.isdecimal() else step]
    node[last] = value
    return json.dumps(data)


@pytest.mark.parametrize("evidence", [proof(), bench(), proof("changed", subject=Subject("a:1", "sha256:1"))])
def test_what_is_written_is_read_back(evidence: Evidence) -> None:
    assert parsed(run_record.evidence_text(evidence)) == evidence


def test_the_whole_machine_and_what_vllm_chose_are_read_back(tmp_path: Path) -> None:
    root = spark_tree.write(tmp_path, Tree(cma="0 kB", parameters="kho=off"))
    folders = {name: root / name for name in ("proc", "sys", "etc")}
    machine = machine_record.parse_machine(machine_record.read_files(folders), {}, "linux/arm64", "Docker 29.1.0")
    subject = replace(bench().subject, machine=machine, workers=(replace(machine, kernel="6.17.0-1014-nvidia"),))
    evidence = replace(bench(), subject=subject, chosen={"attention backend": ("FLASHINFER",)})
    text = run_record.evidence_text(evidence)
    assert parsed(text) == evidence
    assert json.loads(text)["subject"]["machine"]["cma"] == 0
    for private in (spark_tree.SERIAL, spark_tree.MAC):
        assert private not in text


@pytest.mark.parametrize("planted", ["1.0; reboot", "$(id)", "`id`", "a|b", "a\nb", "<b>"])
def test_a_version_that_is_a_command_is_no_evidence(planted: str) -> None:
    """`why` tells versions as what to install again."""
    assert "does not match" in fault(changed("subject.machine.toolkit", planted))
    assert fault(changed("subject.machine.firmware", {"BIOS": planted}))
    assert fault(changed("subject.machine.firmware", {planted: "1"}))


def test_what_is_not_known_of_a_machine_is_not_written() -> None:
    machine = Machine(gpu="NVIDIA GB10", gpus=1, driver="580.95.05", platform="linux/arm64")
    evidence = replace(bench(), subject=replace(bench().subject, machine=machine))
    assert run_record.evidence_document(evidence)["subject"]["machine"] == {
        "gpu": "NVIDIA GB10",
        "gpus": 1,
        "driver": "580.95.05",
        "platform": "linux/arm64",
    }
    assert parsed(run_record.evidence_text(evidence)) == evidence


def test_a_reader_needs_no_statistics() -> None:
    figure = run_record.evidence_document(bench())["figures"][0]
    assert (figure["n"], figure["mean"]) == (3, pytest.approx(51.1667, abs=1e-4))
    assert figure["std"] == pytest.approx(1.2583, abs=1e-4)


def test_the_schema_is_one_and_takes_what_is_written() -> None:
    schema = json.loads(run_record.SCHEMA.read_bytes())
    jsonschema_rs.meta.validate(schema)
    for evidence in (proof(), bench()):
        jsonschema_rs.validate(schema, run_record.evidence_document(evidence))


def test_the_identity_is_that_of_the_run_wherever_its_copy_is_and_however_it_is_laid_out() -> None:
    evidence = bench()
    assert identity(replace(evidence, sequence=9)) == identity(evidence)
    assert identity(replace(evidence, verdict="fail")) != identity(evidence)
    compact = json.dumps(json.loads(run_record.evidence_text(evidence))).replace("\n", "\r\n")
    assert run_record.parse_evidence(compact.encode(), "file")[1] == identity(evidence)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", '[] is not of type "object"'),
        ("null", 'null is not of type "object"'),
        ("[" * 200_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
        ('{"format": 1, "format": 1}', "is repeated"),
        ("9" * 5000, "not evidence"),
        (b"\xff\xfe", "not evidence"),
        (changed("name", "\ud800"), "not evidence"),
        (changed("format", 2), "newer version"),
        (changed("format", True), "format"),
        (changed("seconds", float("nan")), "NaN is not a finite number"),
        (changed("seconds", float("inf")), "Infinity is not a finite number"),
        (changed("seconds", "HERE").replace('"HERE"', "1e400"), "1e400 is not a finite number"),
        (changed("seconds", "HERE").replace('"HERE"', "9" * 4000), "seconds"),
        (changed("figures.0.values", [10**400]), "figures.0.values.0"),
        (changed("figures.0.values", [True]), "figures.0.values.0"),
        (changed("figures.0.at", {"depth": 1e300}), "figures.0.at.depth"),
        (changed("sequence", 10**30), "sequence"),
        (changed("counts", {"failed": 0.5}), "counts.failed"),
        (changed("name", "../../etc"), "name"),
        (changed("name", "a\n"), "name"),
        (changed("kind", "other"), "kind"),
        (changed("started", "yesterday"), "started"),
        (changed("raw", "sha256:../../etc/passwd"), "raw"),
        (changed("subject.fingerprint", ""), "subject.fingerprint"),
        (changed("subject.secret", "x"), "secret"),
        (changed("findings.0.text", "x" * 30_000), "findings.0.text"),
        (changed("figures", [{"name": str(n)} for n in range(50)]), "further problems are not listed"),
    ],
)
def test_anything_else_is_told_with_its_place(text: str | bytes, told: str) -> None:
    message = fault(text)
    assert told in message
    assert message.startswith("file:")
    assert all(len(line) < 300 for line in message.splitlines())


# Figures derive their mean and spread.


def figure(*values: float) -> Figure:
    return Figure("tg", {}, "tokens/s", "higher", values)


@pytest.mark.parametrize("values", [(50.0, 52.5, 51.0), (1e9, 1e9 + 1, 1e9 + 2), (0.1,) * 10])
def test_mean_and_deviation_are_those_of_a_sample(values: tuple[float, ...]) -> None:
    assert figure(*values).mean == pytest.approx(statistics.mean(values), rel=1e-12)
    assert figure(*values).std == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_value_has_no_deviation_and_none_no_mean() -> None:
    assert (figure(3.5).mean, figure(3.5).std) == (3.5, 0.0)
    assert (figure().mean, figure().std) == (0.0, 0.0)
