"""``builder schema``, and the line that leads editors to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import jsonschema_rs
import pytest

from builder.cli.main import cli
from builder.commands import about
from builder.commands.explaining import OUTPUTS
from tests import program, projects, shipped_files

ROOT = shipped_files.project().root
LINE = "# yaml-language-server: $schema="
WRITTEN = {
    "image": sorted(ROOT.glob("dockerfiles/*/image.yaml")),
    "mod": sorted(ROOT.glob("mods/*/mod.yaml")),
    "recipe": sorted(ROOT.glob("recipes/*.yaml")),
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return program.run([sys.executable, "-m", "builder", "schema", *arguments])


@pytest.mark.parametrize("name", about.FILES)
def test_each_is_a_schema_and_printed_as_it_is_kept(name: str) -> None:
    printed = run(name).stdout
    assert printed == about.FILES[name].read_text(encoding="utf-8")
    jsonschema_rs.meta.validate(json.loads(printed))


@pytest.mark.parametrize("name", about.FILES)
def test_every_key_is_described(name: str) -> None:
    def undescribed(node: object, path: str) -> list[str]:
        if isinstance(node, list):
            return [missing for n, item in enumerate(node) for missing in undescribed(item, f"{path}[{n}]")]
        if not isinstance(node, dict):
            return []
        own = [
            f"{path}.{key}"
            for key, value in node.get("properties", {}).items()
            if "description" not in value and "description" not in _target(value)
        ]
        return own + [missing for key, value in node.items() for missing in undescribed(value, f"{path}.{key}")]

    whole = json.loads(about.text(name))

    def _target(value: dict[str, str]) -> dict[str, str]:
        reference = value.get("$ref", "").removeprefix("#/$defs/")
        target: dict[str, str] = whole.get("$defs", {}).get(reference, {})
        return target

    assert undescribed(whole, name) == []


def test_without_a_name_it_tells_where_each_is() -> None:
    output = run().stdout
    for name in about.FILES:
        assert f"{name:<7}  {about.title(name)}" in output
        assert str(about.FILES[name]) in output


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_command_of_each_output_prints_json(name: str) -> None:
    command = cli.get_command(click.Context(cli), name.removesuffix("-json").partition("-")[0])
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), name.split("-")[1])
    assert command
    assert "--json" in {option for param in command.params for option in param.opts}


def test_an_unknown_name_ends_with_2() -> None:
    assert run("images").returncode == 2


@pytest.mark.parametrize("name", WRITTEN)
def test_the_shipped_files_lead_an_editor_to_their_schema(name: str) -> None:
    assert WRITTEN[name]
    for file in WRITTEN[name]:
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith(LINE), file
        led_to = (file.parent / first.removeprefix(LINE)).resolve()
        assert projects.REPOSITORY_ROOT / led_to.relative_to(ROOT) == Path(about.FILES[name]).resolve()
