"""The entry point of every command is its function ``run``; ``builder/commands/__init__.py`` says so."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from builder import commands

# What looks things up for the command line, and what commands are made of.
NO_COMMANDS = {
    "bisect_parts",
    "bringing_back",
    "completion",
    "init_parts",
    "schemas",
    "shared",
    "up_parts",
    "upgrade_parts",
}


@pytest.mark.parametrize(
    "name",
    sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if module.name not in NO_COMMANDS),
)
def test_a_command_is_run(name: str) -> None:
    assert callable(importlib.import_module(f"builder.commands.{name}").run)
