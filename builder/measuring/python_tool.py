"""A tool from the Python index, of one version, that runs in an environment of its own: nothing of it is imported here,
and nothing is installed into the environment of this program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import MeasuringError
from builder.measuring import bounded_process
from builder.sources import environment, uv_program

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSTALL_SECONDS = 900.0


@dataclass(frozen=True)
class PythonTool:
    """A tool by the name of its package, which is that of its program, and its version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def argv_with_script(self, variables: Mapping[str, str], script: str) -> list[str]:
        """The beginning of an argument vector that runs a Python script in the environment of the tool, with these
        variables set for the script and not for uv."""
        set_variables = [f"{name}={value}" for name, value in variables.items()]
        return [*_uv_tool(self), "env", *set_variables, "python", "-c", script]


LLAMA_BENCHY = PythonTool("llama-benchy", "0.4.0")


def environ_of_uv(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, with the settings that uv does not read by itself."""
    settings = environment.read(environ)
    links = [link if "://" in link else str(Path(link).absolute()) for link in settings.find_links]
    return {**environ, **uv_program.variables(settings, links)}


def require(tool: PythonTool, environ: Mapping[str, str], folder: Path) -> None:
    """Fetches the tool where it is not here yet. Raises MeasuringError where it cannot be had, or is another
    version."""
    try:
        ended = bounded_process.run(
            [*_uv_tool(tool), tool.name, "--version"],
            folder=folder,
            environ=environ_of_uv(environ),
            seconds=_INSTALL_SECONDS,
        )
    except OSError as error:
        raise MeasuringError(f"uv cannot be started: {error.strerror}") from None
    printed = ended.output.decode(errors="replace").strip()
    if ended.exit_code or printed != str(tool):
        text = ended.last_lines if ended.exit_code else f"it calls itself `{printed[:80]}`"
        raise MeasuringError(
            f"{tool} cannot be had: {text}",
            hint="look at the network and the settings of the package index (UV_DEFAULT_INDEX, HTTPS_PROXY):"
            f" `uv tool run --from {tool.name}=={tool.version} {tool.name} --version` must answer",
        )


def _uv_tool(tool: PythonTool) -> list[str]:
    options = ["--no-progress", "--quiet", *uv_program.options_of_user()]
    return [uv_program.path(), "tool", "run", *options, "--from", f"{tool.name}=={tool.version}"]
