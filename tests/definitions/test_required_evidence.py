"""``requires:`` in recipes and in builder.yaml: what it says, and the place of what is wrong in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import configuration, recipe
from builder.definitions.configuration import RequiredEvidence, RequiredFigure
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


WRITTEN = 'requires: {prove: pass, probe: [tools-long], bench: {tg at 32768: ">= 95 % of current"}}\n'
READ = RequiredEvidence(True, ("tools-long",), (RequiredFigure("tg", 32768, None, True, 95, True),))
RECIPE = "name: chat\nmodel: Org/M\ncontainer: small\ncommand: vllm serve Org/M\n"


def of_recipe(root: Path, text: str) -> recipe.Recipe:
    path = root / "recipes/chat.yaml"
    projects.write(path, RECIPE + text)
    return recipe.load_recipe(Project(root), path)


def of_configuration(root: Path, text: str) -> configuration.Configuration:
    projects.write(root / "builder.yaml", text)
    return configuration.load_configuration(Project(root))


def test_a_recipe_says_what_its_model_requires(tmp_path: Path) -> None:
    assert of_recipe(tmp_path, WRITTEN).requires == READ
    assert not of_recipe(tmp_path, "").requires
    assert not of_recipe(tmp_path, "requires:\n").requires
    assert not of_recipe(tmp_path, "requires: {probe: [], bench: {}}\n").requires


def test_builder_yaml_says_it_for_all_models_and_for_one(tmp_path: Path) -> None:
    text = 'requires:\n  prove: pass\n  Org/M: {probe: [own], bench: {"pp at 0, concurrency 4": "<= 12.5"}}\n'
    read = of_configuration(tmp_path, text)
    assert read.required_of("Org/Other") == read.required_of(None) == RequiredEvidence(prove=True)
    figure = RequiredFigure("pp", 0, 4, False, 12.5, False)
    assert read.required_of("Org/M") == RequiredEvidence(True, ("own",), (figure,))
    assert str(figure) == "pp at 0, concurrency 4 <= 12.5"
    assert not of_configuration(tmp_path, "reserve: 4g\n").required_of("Org/M")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("requires: {proof: pass}", "5:12: unknown key `proof`; did you mean `prove`?"),
        ("requires: {prove: good}", '5:12: `requires.prove`: "good" is none of pass'),
        ("requires: {probe: tools-long}", '5:12: `requires.probe`: "tools-long" is not a list'),
        ("requires: {probe: [../x]}", '5:20: `requires.probe.0`: "../x" has characters that are not allowed here'),
        ("requires: {bench: {tgs at 0: '>= 4'}}", "5:20: no bench measures `tgs`; did you mean `tg`?"),
        ("requires: {bench: {tg at deep: '>= 4'}}", "5:20: `tg at deep` names no figure"),
        ("requires: {bench: {tg: '95 % of current'}}", "5:20: `95 % of current` is no condition: `>= 40`"),
        ("requires: {bench: {tg: '>= nan'}}", "5:20: `>= nan` is no condition"),
        ("requires: {bench: {tg: 40}}", "5:20: `requires.bench.tg`: 40 is not text"),
        ("requires: prove", '5:1: `requires`: "prove" is not a mapping'),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, written: str, problem: str) -> None:
    with pytest.raises(FileProblemsError) as raised:
        of_recipe(tmp_path, f"{written}\n")
    assert f"recipes/chat.yaml:{problem}" in raised.value.message
    with pytest.raises(FileProblemsError) as raised:
        of_configuration(tmp_path, f"\n\n\n\n{written}\n")
    assert f"builder.yaml:{problem}" in raised.value.message
    inner = written.removeprefix("requires: ")
    if inner.startswith("{"):
        with pytest.raises(FileProblemsError, match=r"builder.yaml:2:\d+: "):
            of_configuration(tmp_path, f"requires:\n  Org/M: {inner}\n")


required = st.builds(
    RequiredEvidence,
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple),
    st.lists(
        st.builds(
            RequiredFigure,
            st.sampled_from(configuration.FIGURES),
            st.none() | st.integers(0, 10**8),
            st.none() | st.integers(1, 99),
            st.booleans(),
            st.integers(0, 10**6).map(float),
            st.booleans(),
        ),
        unique_by=lambda figure: figure.figure,
    ).map(tuple),
)


@given(required)
def test_what_is_told_of_a_requirement_reads_as_it_was_written(value: RequiredEvidence) -> None:
    data = {
        **({"prove": "pass"} if value.prove else {}),
        "probe": list(value.probes),
        "bench": {figure.figure: figure.condition for figure in value.figures},
    }
    assert not list(configuration.problems(data, ("requires",), "", "x.yaml"))
    assert configuration.parsed(data) == value


@given(required, required)
def test_what_two_files_require_counts_together(one: RequiredEvidence, other: RequiredEvidence) -> None:
    both = one.joined(other)
    assert both.prove == (one.prove or other.prove)
    assert set(both.probes) == {*one.probes, *other.probes}
    assert set(both.figures) == {*one.figures, *other.figures}
    assert one.joined(configuration.NOTHING_REQUIRED) == one
