"""^C and a closed terminal end programs that the tests start, even if the tests themselves ignore them."""

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
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
sys.stdin.readline()  # the signal was sent
try:
    print(child.wait(timeout=float(sys.argv[2])), flush=True)
except subprocess.TimeoutExpired:
    child.kill()
    print("ignored", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    ("started", "how", "seconds"),
    [
        ("ignoring it", "restored", 120),
        ("as usual", "restored", 120),
        ("ignoring it", "not restored", 0.2),  # shows that the test can fail
    ],
)
def test_a_program_ends_by_a_signal(number: signal.Signals, started: str, how: str, seconds: float) -> None:
    before = f"trap '' {number.name}; " if started == "ignoring it" else ""
    argv = ["bash", "-c", before + 'exec "$0" -c "$@"', sys.executable, PARENT, how, str(seconds)]
    root, pipe = projects.REPOSITORY_ROOT, subprocess.PIPE
    with subprocess.Popen(argv, cwd=root, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdin
        assert parent.stdout
        os.kill(int(parent.stdout.readline()), number)
        parent.stdin.write("sent\n")
        parent.stdin.flush()
        assert parent.stdout.readline().strip() == (str(-number) if how == "restored" else "ignored")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_tests_themselves_do_not_ignore_it(number: signal.Signals) -> None:
    assert signal.getsignal(number) is not signal.SIG_IGN
