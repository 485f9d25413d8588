"""``builder`` as a process that need not import its modules first.

Starting Python with the modules of the program takes 0.1 to 0.5 s of processor time, and tests start it thousands of
times. Each test process therefore has a server that has imported the modules and does nothing else. A command is a fork
of this server with its own arguments, environment, folder, streams and exit code. Tests of start-up, terminals or
signals start `tests.conftest.command` as a new process instead.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests import shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STREAMS = 3
PYTHON = [sys.executable, "-m", "builder"]
# Other modules that the program imports only when it needs them.
_LIBRARIES = (
    *("docker", "git.cmd", "httpx2", "huggingface_hub.file_download", "jinja2.sandbox", "jsonschema_rs"),
    *("packaging.requirements", "packaging.specifiers", "packaging.utils", "packaging.version", "yaml"),
    *("rich.console", "rich.markup", "rich.progress", "rich.table", "rich.text"),
    *("ctypes", "difflib", "email.parser", "ssl", "tarfile", "tempfile", "traceback", "zipfile"),
)
# This module runs in the environment of llama-benchy.
_NOT_HERE = {"builder.lab.measure.benchy_client"}


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str | None = None,  # noqa: A002  # as subprocess.run calls it
    timeout: float = 800,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs an ``argv`` of `tests.conftest.command`, and returns the same as `subprocess.run` with text output."""
    assert list(argv[:3]) == PYTHON, argv
    request = {
        "arguments": argv[3:],
        "environ": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
    }
    with ExitStack() as stack:
        given = stack.enter_context(tempfile.TemporaryFile())
        given.write((input or "").encode())
        given.seek(0)
        pipes = [os.pipe(), os.pipe()]
        outputs = [stack.enter_context(os.fdopen(reading, "rb")) for reading, _ in pipes]
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(_server())
        socket.send_fds(connection, [b"?"], [given.fileno(), *(writing for _, writing in pipes)])
        for _, writing in pipes:
            os.close(writing)
        connection.sendall(json.dumps(request).encode() + b"\n")
        readers = stack.enter_context(ThreadPoolExecutor(len(outputs)))
        texts = [readers.submit(output.read) for output in outputs]
        answers = stack.enter_context(connection.makefile())
        child = int(answers.readline())
        connection.settimeout(timeout)
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, timeout) from None
        stdout, stderr = (text.result().decode() for text in texts)
    done = subprocess.CompletedProcess(argv, code, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def script() -> str:
    """A program of a few milliseconds that does what ``builder`` does, for a shell that calls that."""
    return f"#!{sys.executable} -IS\n{_SCRIPT.format(path=_server())}"


_SCRIPT = """\
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect("{path}")
socket.send_fds(connection, [b"?"], [0, 1, 2])
request = {{"arguments": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd()}}
connection.sendall(json.dumps(request).encode() + b"\\n")
answers = connection.makefile()
answers.readline()
sys.exit(int(answers.readline()))
"""


@functools.cache
def _server() -> str:
    """The socket of this process's server. The server ends with this process, which keeps its standard input open."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    path = f"{tempfile.mkdtemp(prefix='program-', dir=shared.folder())}/socket"
    argv = [sys.executable, "-m", __name__, path]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=root)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    _servers.append(process)
    return path


_servers: list[subprocess.Popen[bytes]] = []


def _serve(path: str) -> None:
    """Forks a process for each request at the socket ``path``, and returns only there. Ends with standard input."""
    import builder

    for module in pkgutil.walk_packages(builder.__path__, "builder."):
        if module.name not in _NOT_HERE:
            importlib.import_module(module.name)
    for name in _LIBRARIES:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    os.write(1, b"ready\n")
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                os._exit(0)
            elif key.fileobj is listener:
                connection = listener.accept()[0]
                if not (child := _fork(connection)):
                    selector.close()
                    return
                selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, connection))
            else:
                child, connection = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with suppress(BrokenPipeError), connection:  # the test no longer waits
                    connection.sendall(b"%d\n" % code)


def _fork(connection: socket.socket) -> int:
    """Forks a process for a request, and returns its process id; 0 in that process, which is set up for ``builder``."""
    _, streams, _, _ = socket.recv_fds(connection, 1, _STREAMS)
    request = json.loads(connection.makefile().readline())
    if child := os.fork():
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % child)
        return child
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = ["builder", *request["arguments"]]
    return 0


def _end(code: object) -> None:
    """Ends this process like Python, but without freeing the memory of its modules, which takes 40 ms."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(sys.argv[1])
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
    from builder.__main__ import main

    try:
        main()
    except SystemExit as ended:
        _end(ended.code)
