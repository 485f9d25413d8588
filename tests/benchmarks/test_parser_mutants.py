"""Which changes of a parser are mutants: none that by its form is the same for every turn."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import parser_mutants
from builder.base import yaml_file
from builder.lab.prove.judging import Judgement

SOURCE = '''
class Reader:
    def read(self, text) -> bool:
        """Reads."""
        self._seen = 1
        self._noted = 2
        unread = text[3:]
        logger.debug("read %s", 4)
        for each in text:
            if each:
                continue
            else:
                self.keep(each)
                continue
        if self._seen:
            return False
        return True

    def stream(self, text):
        if text:
            return DeltaMessage(content="")
        return text

    def count_tokens(self, text):
        return 6


class ReaderManager:
    def choose(self):
        return 7
'''


def test_a_change_that_no_turn_can_show_is_no_mutant(tmp_path: Path) -> None:
    parser = tmp_path / "vllm/tool_parsers/reader.py"
    parser.parent.mkdir(parents=True)
    parser.write_text(SOURCE, encoding="utf-8")
    lines = set(range(1, len(SOURCE.splitlines()) + 1))
    found = [each.what for each in parser_mutants.mutants_of(str(parser), lines)]
    assert found == [
        "statement dropped: self._seen = 1 -> pass",
        "constant off by one: 1 -> (2)",
        "call dropped: self.keep(each) -> pass",
        "constant: False -> (True)",
        "result dropped: return True -> return None",
        "constant: True -> (False)",
        "result dropped: return text -> return None",
    ]


def test_what_another_file_of_the_parsers_reads_may_change(tmp_path: Path) -> None:
    parser, other = tmp_path / "vllm/reasoning/reader.py", tmp_path / "vllm/parser/other.py"
    for path, source in ((parser, SOURCE), (other, "def of(reader):\n    return reader._noted\n")):
        path.parent.mkdir(parents=True)
        path.write_text(source, encoding="utf-8")
    found = [each.what for each in parser_mutants.mutants_of(str(parser), {6})]
    assert found == ["statement dropped: self._noted = 2 -> pass", "constant off by one: 2 -> (3)"]


def test_a_mutant_is_judged_once_with_a_reason_or_with_the_turn_that_would_show_it() -> None:
    judged = yaml_file.load(parser_mutants.JUDGED.read_text(encoding="utf-8"), parser_mutants.JUDGED.name)
    names = [" ".join(each["mutant"].split()) for each in judged]
    assert len(names) == len(set(names))
    assert all(re.match(r"vllm(\.\w+)+:\d+ [^:]+: .+ -> .+", name) for name in names)
    assert [each["mutant"] for each in judged if ("because" in each) == ("missed" in each)] == []
    assert parser_mutants.equivalent() == {
        name for name, each in zip(names, judged, strict=True) if len(each.get("because", "")) > 20
    }


def test_a_mutant_is_read_by_others_until_one_template_notices_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = tmp_path / "vllm/tool_parsers/reader.py"
    parser.parent.mkdir(parents=True)
    parser.write_text(SOURCE, encoding="utf-8")
    pairs = [parser_mutants.Pair(name, "reader", "", "") for name in ("one", "two", "three")]
    read: list[tuple[str, int]] = []

    def read_mutants(*given: Any) -> None:
        """The template `two` notices every mutant but the first."""
        _, _, _, work, seen = given
        for pair, mutants in work:
            read.extend((pair.name, each.number) for each in mutants)
            for each in mutants:
                seen[each.number].update({"beside": pair.name == "two" and each.number > 0})

    monkeypatch.setattr(parser_mutants, "_read_mutants", read_mutants)
    judged: dict[str, Judgement | str] = {pair.name: Judgement("pass", {}, (), {}, {}) for pair in pairs}
    lines = set(range(1, len(SOURCE.splitlines()) + 1))
    reached = {str(parser): {"one": lines, "two": lines}}
    given = argparse.Namespace(seed=1, count=7, templates=3, python="")
    parser_mutants._try_mutants(given, tmp_path, {}, pairs, judged, reached)
    assert len(read) == len(set(read))
    assert {name for name, number in read if number == 0} == {"one", "two"}
    assert {number for name, number in read if name == "two"} == set(range(7))
    printed = capsys.readouterr().out
    assert re.findall(r"noticed beside the number before: (\d) of 7", printed)[1:] == ["6", "6"]
    assert len(re.findall("(?m)^survived", printed)) == 1
    assert re.search("read with: (one, two|two, one)$", printed, re.MULTILINE)
