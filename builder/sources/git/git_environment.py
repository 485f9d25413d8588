"""The environment that git runs in: variables that override those of the user's shell or of a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.sources.git import credentials

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.sources.git.credentials import Address

_NO_HOOKS = ("core.hooksPath", "/dev/null")  # nothing in a mirror is run
_NO_PROGRAM = "false"  # takes the place of a program that a repository names, and fails
_NO_PROGRAMS = (
    _NO_HOOKS,
    ("safe.bareRepository", "explicit"),  # git 2.38: a folder with HEAD, objects and refs is not taken for a repository
    ("core.fsmonitor", "false"),
    ("core.sshCommand", _NO_PROGRAM),
    ("core.gitProxy", _NO_PROGRAM),
    ("core.alternateRefsCommand", _NO_PROGRAM),
    *((f"gpg.{kind}program", _NO_PROGRAM) for kind in ("", "openpgp.", "x509.", "ssh.")),
    ("diff.external", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)
_ISOLATED_SETTINGS = (_NO_HOOKS, ("core.attributesFile", "/dev/null"), ("core.quotePath", "false"))
_NO_NETWORK = {
    "GIT_ALLOW_PROTOCOL": "none",  # a missing blob is not fetched silently
    "GIT_NO_LAZY_FETCH": "1",  # the same, for git 2.45 and later
}


def repository_variables(path: Path) -> dict[str, str]:
    """Returns the variables that select the repository at ``path``. Where this program is run by a git hook, git would
    otherwise work on the hook's repository."""
    return {
        "GIT_DIR": str(path),
        "GIT_WORK_TREE": str(path),  # there is none; a hook's, above this folder, would shift every path
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
    """Returns the variables that allow no network and no settings of the user or the machine, some of which change the
    text of a diff."""
    return {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_PARAMETERS": "",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DIFF_OPTS": "",
        **_NO_NETWORK,
        **config_variables(_ISOLATED_SETTINGS),
    }


def project_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for the repository that git finds around a project, which others may have made: no
    program that its configuration names is run, and nothing is fetched. The user's own settings stay, such as whose
    repositories are safe."""
    return {
        **_NO_NETWORK,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_EXTERNAL_DIFF": "",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        **config_variables(_NO_PROGRAMS, _settings_in(environ)),
    }


def user_variables(address: Address, ssh: str, stalled_seconds: int) -> dict[str, str]:
    """Returns the variables that keep the user's own settings and add ours. ``ssh`` is the user's ssh command, or empty
    to leave ssh alone."""
    import os

    from builder.sources import environment

    settings = (
        _NO_HOOKS,
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", str(stalled_seconds)),
        *credentials.configuration(address),
    )
    variables = {
        **credentials.environment(address),
        **config_variables(settings, _settings_in(os.environ)),
    }
    if ssh:
        variables["GIT_SSH_COMMAND"] = f"{ssh} -o BatchMode=yes -o ConnectTimeout=20"
    ca_file = environment.read(os.environ).ca_file
    if ca_file and "GIT_SSL_CAINFO" not in os.environ:
        variables["GIT_SSL_CAINFO"] = str(ca_file)
    return variables


def config_variables(settings: Sequence[tuple[str, str]], first: int = 0) -> dict[str, str]:
    """Returns the variables GIT_CONFIG_KEY_n and GIT_CONFIG_VALUE_n for these settings: the same as ``-c``, but hidden
    from other users. ``first`` is the first n."""
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _settings_in(environ: Mapping[str, str]) -> int:
    """The number of settings that the environment has."""
    present = environ.get("GIT_CONFIG_COUNT", "")
    return int(present) if present.isdecimal() else 0
