"""An ssh for tests: it runs the command on this machine instead of the other machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# As with the real ssh, a shell runs the command in the home of the remote user.
_SSH = """#!/bin/sh
printf '%s\\n' "$@" >> "$FAKE_SSH.asked"
while [ "${1#-}" != "$1" ]; do
  case $1 in -l|-p|-o) shift 2 ;; --) shift; break ;; *) shift ;; esac
done
shift
cd "$FAKE_SSH" || exit
PATH=${FAKE_PATH:-$PATH} exec /bin/sh -c "$*"
"""


def make(programs: Path, home: Path) -> dict[str, str]:
    """Puts ``ssh`` into the folder ``programs``. Its arguments are appended to the file ``home`` plus ``.asked``.
    Returns the environment variables for it; ``FAKE_PATH`` may set the PATH of the other machine."""
    programs.mkdir(parents=True)
    home.mkdir(parents=True)
    (programs / "ssh").write_text(_SSH)
    (programs / "ssh").chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "FAKE_SSH": str(home)}
