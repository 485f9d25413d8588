"""Files of a wheel: read in ranges, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import wheels
from builder.sources.wheels import Wheel
from tests.sources.wheelhouse import Served, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


FILES = {
    "vllm/kernels.so": "\0" * 1_000_000,
    "vllm/a.py": "a\n",
    "vllm/more.so": "\0" * 1_000_000,
    "vllm/b.py": "b\n",
    "vllm-0.20.0.data/purelib/vllm/apart.py": "apart\n",
    "vllm-0.20.0.data/scripts/vllm/script.py": "no\n",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "files") as server:
        yield server


@pytest.fixture
def wheel(tmp_path: Path, server: Served) -> Wheel:
    made = make_wheel(tmp_path / "files", "vllm", "0.20.0", files=FILES)
    return Wheel(f"{server.url}/{made.name}", sha256(made))


def test_a_file_comes_without_the_whole_wheel(tmp_path: Path, server: Served, wheel: Wheel) -> None:
    paths = ["vllm/a.py", "vllm/apart.py", "vllm/script.py", "vllm/none.py", "vllm"]
    assert wheels.read_wheel_files(tmp_path / "cache", wheel, paths, None) == {
        "vllm/a.py": b"a\n",
        "vllm/apart.py": b"apart\n",
    }
    assert sum(server.sent) < 300_000


def test_what_was_read_once_is_not_fetched_again(tmp_path: Path, server: Served, wheel: Wheel) -> None:
    cache = tmp_path / "cache"
    first = wheels.read_wheel_files(cache, wheel, ["vllm/a.py"], None)
    server.sent.clear()
    assert wheels.read_wheel_files(cache, wheel, ["vllm/a.py", "vllm/none.py"], None) == first
    assert server.sent == []
    assert wheels.read_wheel_files(cache, wheel, ["vllm/a.py", "vllm/b.py"], None) == {**first, "vllm/b.py": b"b\n"}
    assert server.sent


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(tmp_path: Path, wheel: Wheel) -> None:
    (tmp_path / "cache").write_text("a file")
    assert wheels.read_wheel_files(tmp_path / "cache", wheel, ["vllm/a.py"], None) == {"vllm/a.py": b"a\n"}


def test_a_wheel_that_is_gone_is_an_error(tmp_path: Path, wheel: Wheel) -> None:
    for path in (tmp_path / "files").iterdir():
        path.unlink()
    with pytest.raises(
        SourceError, match=r"vllm-0\.20\.0-py3-none-any\.whl cannot be read: the server says 404 Not Found"
    ):
        wheels.read_wheel_files(tmp_path / "cache", wheel, ["vllm/a.py"], None)
