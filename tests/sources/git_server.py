"""A real git server for tests: git's own ``http-backend`` behind a small HTTP server that can be made to fail, and a
repository with a history like vLLM's."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.sources import mirror
from builder.sources.git import SUBMODULE_MODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.sources.git import GitRepository

AUTHOR = {f"GIT_{who}_{what}": "tests@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_QUIET = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **AUTHOR}


@dataclass
class Trouble:
    """Failures of the next requests. ``refuse`` and ``drop`` count down; ``stall_after`` is the number of bytes of a
    pack after which the server goes silent (``stalled``) until it is ``over``; ``login`` is the only one accepted;
    ``redirect`` is another server to redirect all requests to."""

    status: int = 0
    refuse: int = 0
    drop: int = 0
    stall_after: int | None = None
    login: str = ""
    redirect: str = ""
    requests: list[str] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Server:
    """``root`` holds the bare repositories that are served below ``url``."""

    root: Path
    url: str
    trouble: Trouble

    @property
    def requests(self) -> list[str]:
        return self.trouble.requests

    def with_login(self, login: str) -> str:
        """The address with ``user:token@`` in it."""
        return self.url.replace("://", f"://{login}@")


@contextmanager
def serve(root: Path) -> Iterator[Server]:
    """Serves ``root`` on a free port of this machine until the block ends."""
    trouble = Trouble()
    handler = type("Handler", (_Handler,), {"root": root, "trouble": trouble})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Server(root, f"http://127.0.0.1:{server.server_port}", trouble)
    finally:
        trouble.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    trouble: Trouble

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            self._answer(b"".join(iter(self._chunk, b"")))
        else:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _chunk(self) -> bytes:
        content = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return content

    def _answer(self, body: bytes) -> None:
        trouble = self.trouble
        trouble.requests.append(f"{self.command} {self.path}")
        if trouble.drop:
            trouble.drop -= 1
            self.close_connection = True
            return
        if trouble.refuse:
            trouble.refuse -= 1
            self._plain(trouble.status)
            return
        if trouble.redirect:
            self.send_response(302)
            self.send_header("Location", trouble.redirect + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if trouble.login and self.headers.get("Authorization") != _basic(trouble.login):
            self._plain(401)
            return
        self._backend(body)

    def _plain(self, status: int) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="tests"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _backend(self, body: bytes) -> None:
        address = urlsplit(self.path)
        environ = {
            **os.environ,
            **_QUIET,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": address.path,
            "QUERY_STRING": address.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environ, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.trouble.stall_after is not None and address.path.endswith("git-upload-pack") and b"PACK" in content:
            self.wfile.write(content[: self.trouble.stall_after])
            self.wfile.flush()
            self.trouble.stalled.set()
            self.trouble.over.wait(600)
            self.close_connection = True
            return
        with suppress(BrokenPipeError):
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: the test's output is no access log."""


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


@dataclass
class Repository:
    """A bare repository in the making, without a working copy. Each commit is a minute after the one before."""

    path: Path
    minutes: int = 0

    def git(self, *arguments: str, given: bytes = b"") -> str:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        dates = {"GIT_AUTHOR_DATE": self._moment, "GIT_COMMITTER_DATE": self._moment}
        done = subprocess.run(
            ["git", "-C", str(self.path), *arguments],
            input=given,
            capture_output=True,
            check=False,
            env={**environ, **_QUIET, **dates},
        )
        assert done.returncode == 0, f"git {arguments}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    @property
    def _moment(self) -> str:
        return f"{1_770_000_000 + 60 * self.minutes} +0200"

    def commit(
        self,
        ref: str,
        title: str,
        files: Mapping[str, str | bytes | None],
        parent: str | None = None,
        modes: Mapping[str, str] | None = None,
    ) -> str:
        """Commits ``files`` (None removes one) on top of ``ref``, or of ``parent``, and moves ``ref`` there; ``modes``
        are those of others than plain files, by name. The content of a submodule is its commit."""
        self.minutes += 1
        parent = parent or self.git("for-each-ref", "--format=%(objectname)", ref)
        who = f"{AUTHOR['GIT_AUTHOR_NAME']} <{AUTHOR['GIT_AUTHOR_EMAIL']}> {self._moment}"
        stream = [f"commit {ref}\nmark :1\nauthor {who}\ncommitter {who}\n".encode(), _data(title)]
        stream += [f"from {parent}\n".encode()] if parent else []
        for name, content in files.items():
            quoted = json.dumps(name, ensure_ascii=False)
            mode = (modes or {}).get(name, "100644")
            if content is None:
                stream.append(f"D {quoted}\n".encode())
            elif mode == SUBMODULE_MODE:
                stream.append(f"M {mode} {content!s} {quoted}\n".encode())
            else:
                stream += [f"M {mode} inline {quoted}\n".encode(), _data(content)]
        # One process for all files: a process for each file took most of the time of these tests.
        return self.git(
            "fast-import", "--quiet", "--force", "--done", given=b"".join([*stream, b"get-mark :1\ndone\n"])
        )


def _data(content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return b"data %d\n%b\n" % (len(content), content)


@cache
def _empty() -> tempfile.TemporaryDirectory[str]:
    """An empty repository, made once for all tests; the folder goes when they end."""
    folder = tempfile.TemporaryDirectory(prefix="builder-tests-")
    repository = Repository(Path(folder.name))
    repository.git("init", "--quiet", "--bare", "--initial-branch=main", "--template=")
    for setting in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        repository.git("config", setting, "true")
    return folder


def make_repository(path: Path) -> Repository:
    return Repository(Path(shutil.copytree(_empty().name, path)))


DRAFTER = "vllm/v1/spec_decode/dflash.py"
INC = "vllm/model_executor/layers/quantization/inc.py"


def lines(first: int, last: int, **changed: str) -> str:
    """Numbered lines; ``line7="x"`` gives line 7 another text."""
    return "".join(changed.get(f"line{number}", f"line {number}") + "\n" for number in range(first, last + 1))


@dataclass
class History:
    """A history like vLLM's. Attributes are commits; the pull requests 40898 and 40727 conflict with each other, 40001
    is already in main, 40002 was merged as another commit, 40003 does not apply to main, and 40004 applies."""

    repository: Repository
    v0_19_0: str
    v0_19_1: str
    main: str
    pull_40898: str
    pull_40727: str


def make_history(path: Path) -> History:
    own = make_repository(path)
    main = "refs/heads/main"
    own.commit(
        main,
        "Start",
        {
            "README.md": "vLLM\n",
            DRAFTER: lines(1, 60),
            INC: lines(1, 40),
            "requirements/common.txt": "transformers >= 5\n# a comment\nnumpy  # as it is\n",
            "requirements/cuda.txt": "-r common.txt\n--extra-index-url https://example.org\ntorch==2.10.0 \\\n  ; x\n",
        },
    )
    v0_19_0 = own.commit(main, "Release 0.19.0", {"VERSION": "0.19.0\n"})
    own.git("tag", "v0.19.0", v0_19_0)
    own.git("tag", "nightly-v0.19.5-20260401", v0_19_0)
    v0_19_1 = own.commit(main, "Release 0.19.1", {"VERSION": "0.19.1\n"})
    own.git("tag", "v0.19.1rc0", v0_19_1)
    own.git("tag", "--annotate", "--message=Release", "v0.19.1", v0_19_1)
    own.git("tag", "--annotate", "--message=Last candidate", "v0.19.1rc1", v0_19_1)
    pull = "refs/pull/{}/head".format
    merged = own.commit(pull(40001), "Merged as it is", {"vllm/merged.py": lines(1, 5)}, parent=v0_19_1)
    own.git("update-ref", main, merged)
    own.commit(pull(40003), "Made for an older inc.py", {INC: lines(1, 40, line30="thirty, by 40003")}, parent=v0_19_1)
    own.commit(pull(40002), "Will be squashed", {"vllm/squashed.py": lines(1, 9)}, parent=v0_19_1)
    for number, title in (
        (1, "[Model] Unterstützung für Qwen 模型 🚀"),
        (2, "[Bugfix] \x1b[31mred\x1b[0m"),
        (3, "Third"),
    ):
        own.commit(main, title, {f"vllm/file{number}.py": lines(1, number)})
    own.commit(main, "Squash of 40002", {"vllm/squashed.py": lines(1, 9)})
    tip = own.commit(main, "inc.py changes again", {INC: lines(1, 40, line5="five", line29="29", line30="thirty")})
    window = {"line10": "sliding", "line11": "window"}
    old = own.commit(pull(40727), "Sliding window", {DRAFTER: lines(1, 60, **window)}, parent=v0_19_1)
    new = own.commit(
        pull(40898),
        "Sliding window in the drafter",
        {DRAFTER: lines(1, 60, line10="SLIDING", line50="fifty"), "vllm/picture.bin": bytes(range(256))},
        parent=merged,
    )
    own.commit(pull(40004), "Something else", {"vllm/else.py": lines(1, 3), "README.md": None}, parent=merged)
    return History(own, v0_19_0, v0_19_1, tip, new, old)


@dataclass
class Vllm:
    """A history that is served: ``url`` is its address, ``mirrors`` an empty folder, ``messages`` what was reported."""

    server: Server
    history: History
    url: str
    mirrors: Path
    messages: list[str] = field(default_factory=list)

    @property
    def source(self) -> GitRepository:
        """The mirror of ``url``, which need not exist yet. What it reports goes nowhere."""
        return mirror.locate(self.mirrors, self.url)

    @property
    def mirror(self) -> Path:
        """The one mirror in the folder."""
        (path,) = self.mirrors.glob("*.git")
        return path

    def git(self, *arguments: str) -> str:
        """Runs git in the mirror."""
        return Repository(self.mirror).git(*arguments)

    def requests_of(self, do: Callable[[], object]) -> int:
        """Counts the requests that reach the server while ``do`` runs."""
        before = len(self.server.requests)
        do()
        return len(self.server.requests) - before


@cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], History]:
    """Made once for all tests; the folder goes when they end."""
    folder = tempfile.TemporaryDirectory(prefix="builder-tests-")
    return folder, make_history(Path(folder.name) / "vllm.git")


@contextmanager
def served_vllm(folder: Path) -> Iterator[Vllm]:
    """A fresh history like vLLM's on a server of its own."""
    made, history = _template()
    path = Path(shutil.copytree(Path(made.name) / "vllm.git", folder / "served" / "vllm.git"))
    history = replace(history, repository=replace(history.repository, path=path))
    with serve(folder / "served") as server:
        yield Vllm(server, history, f"{server.url}/vllm.git", folder / "mirrors")
