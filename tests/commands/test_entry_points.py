"""The entry point of every command is its function ``run``; ``builder/commands/__init__.py`` says so."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from builder import commands

# They look things up for the command line, and are no commands.
LOOK_UPS = {"completion", "schemas"}


@pytest.mark.parametrize(
    "name", sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if module.name not in LOOK_UPS)
)
def test_a_command_is_run(name: str) -> None:
    assert callable(importlib.import_module(f"builder.commands.{name}").run)
