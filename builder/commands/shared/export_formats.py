"""The formats of `builder export`: each with its line of help, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportFormat:
    """A format: ``line`` says what it is. One that describes a container gives a text for each node, in a file of this
    ``ending``; it is empty for the others. ``of_all`` of the models that are paired where none is named; ``executable``
    where the file is a program."""

    line: str
    ending: str = ""
    of_all: bool = False
    executable: bool = False


FORMATS = {
    "compose": ExportFormat("a compose file, the image pinned by its number", ending=".yaml"),
    "recipe": ExportFormat("a recipe that makes other launchers serve this very image"),
    "script": ExportFormat("a shell script with a plain docker run", ending=".sh", executable=True),
    "opencode": ExportFormat("the provider for OpenCode's configuration"),
    "llama-swap": ExportFormat("a configuration that starts each model when it is wanted", of_all=True),
    "litellm": ExportFormat("a model list that leads to the server of each model", of_all=True),
}
