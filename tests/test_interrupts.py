"""^C ends programs that the tests start, even if the tests themselves ignore it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests import projects

# A stand-in for pytest: starts a program, prints its process id, and then its exit code.
PARENT = """\
import subprocess, sys
from tests import interrupts
if sys.argv[1] == "restored":
    interrupts.restore()
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
try:
    print(child.wait(timeout=float(sys.argv[2])), flush=True)
except subprocess.TimeoutExpired:
    child.kill()
    print("ignored", flush=True)
"""


@pytest.mark.parametrize(
    ("started", "how", "seconds", "ended"),
    [
        ("ignoring SIGINT", "restored", 30, str(-signal.SIGINT)),
        ("as usual", "restored", 30, str(-signal.SIGINT)),
        ("ignoring SIGINT", "not restored", 0.2, "ignored"),  # shows that the test can fail
    ],
)
def test_a_program_ends_by_an_interrupt(started: str, how: str, seconds: float, ended: str) -> None:
    before = "trap '' INT; " if started == "ignoring SIGINT" else ""
    argv = ["bash", "-c", before + 'exec "$0" -c "$@"', sys.executable, PARENT, how, str(seconds)]
    with subprocess.Popen(argv, cwd=projects.REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        os.kill(int(parent.stdout.readline()), signal.SIGINT)
        assert parent.stdout.readline().strip() == ended


def test_the_tests_themselves_do_not_ignore_it() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
