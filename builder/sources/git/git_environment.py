"""The surroundings that git runs in: environment variables, which override those of the person's shell or a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.sources.git.credentials import Address

_ISOLATED_SETTINGS = (("core.attributesFile", "/dev/null"), ("core.quotePath", "false"))


def repository_variables(path: Path) -> dict[str, str]:
    """git run by a hook, and this program by git, would otherwise work on that other repository."""
    return {
        "GIT_DIR": str(path),
        "GIT_WORK_TREE": str(path),  # there is none; a hook's, with us below it, would shift every path
        "GIT_OBJECT_DIRECTORY": str(path / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": "",
        "GIT_NAMESPACE": "",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",  # set but empty: neither core.askPass nor SSH_ASKPASS opens a window
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def isolated_variables() -> dict[str, str]:
    """No network, and no settings of the person or the machine: some of them change the text of a diff."""
    return {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_PARAMETERS": "",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DIFF_OPTS": "",
        "GIT_ALLOW_PROTOCOL": "none",  # a blob that is missing is not fetched behind our back
        "GIT_NO_LAZY_FETCH": "1",  # the same, said plainly to git 2.45 and later
        **config_variables(_ISOLATED_SETTINGS),
    }


def user_variables(address: Address, ssh: str, stalled_seconds: int) -> dict[str, str]:
    """The person's own settings, and ours on top. ``ssh`` is the command that reaches the repository, if ssh does."""
    import os

    from builder.sources import environment

    settings = (
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", str(stalled_seconds)),
        *credentials.configuration(address),
    )
    present = os.environ.get("GIT_CONFIG_COUNT", "")
    variables = {
        **credentials.environment(address),
        **config_variables(settings, int(present) if present.isdecimal() else 0),
    }
    if ssh:
        variables["GIT_SSH_COMMAND"] = f"{ssh} -o BatchMode=yes -o ConnectTimeout=20"
    ca_file = environment.read(os.environ).ca_file
    if ca_file and "GIT_SSL_CAINFO" not in os.environ:
        variables["GIT_SSL_CAINFO"] = str(ca_file)
    return variables


def config_variables(settings: Sequence[tuple[str, str]], first: int = 0) -> dict[str, str]:
    """git reads GIT_CONFIG_KEY_n and GIT_CONFIG_VALUE_n as it reads ``-c``, but nobody else sees them."""
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
