"""An ssh for tests: it runs on this machine what it would run on the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# As with the real one, what is to be run goes through a shell of the user there, in their home.
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
    """Puts ``ssh`` into the folder ``programs``; what it is asked goes to ``home`` with ``.asked`` added. Returns the
    variables to run it with; ``FAKE_PATH`` is the PATH of the other machine."""
    programs.mkdir(parents=True)
    home.mkdir(parents=True)
    (programs / "ssh").write_text(_SSH)
    (programs / "ssh").chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "FAKE_SSH": str(home)}
