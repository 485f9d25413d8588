"""The software of images that others built: in a venv, beside another Python, with metadata of its own, or without."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import records
from builder.base.errors import ImageContentsError, ImageStateError
from builder.engine import containers, installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.client import Endpoint
    from tests.engine.conftest import Build


COMMIT = "0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665"
FLASHINFER = "d768c14e7cf5dd5df45a8a1de78ae815879f108a"


def answer(**values: Any) -> dict[str, Any]:
    packages = {"vllm": "0.23.0", "Flashinfer_Python": "0.6.12", "torch": "2.13.0+cu130"}
    return {
        "python": "3.12.3",
        "packages": packages,
        "requires": {"Flashinfer_Python": ["torch>=2.9"]},
        "vllm": "",
        "flashinfer": "",
        "commit": "",
        "metadata": "",
        **values,
    }


PYTHON = "/usr/bin/python3"


def parse(**values: Any) -> installed.InstalledSoftware:
    return installed._software(PYTHON, records.record(installed._Contents, answer(**values)))


def vllm_commit(**values: Any) -> str | None:
    return parse(**values).sources["vllm"].commit


def test_names_are_canonical_and_sources_have_their_versions() -> None:
    software = parse()
    assert software.packages == {"flashinfer-python": "0.6.12", "torch": "2.13.0+cu130", "vllm": "0.23.0"}
    assert software.requires == {"flashinfer-python": ("torch>=2.9",)}
    assert software.sources["vllm"] == installed.InstalledPackage("0.23.0")
    assert software.sources["flashinfer"] == installed.InstalledPackage("0.6.12")


def test_an_image_without_them_has_no_sources() -> None:
    assert parse(packages={"torch": "2.13.0"}).sources == {}


def test_a_commit_comes_from_the_package_itself_in_full_where_the_image_has_it() -> None:
    version_py = f"__commit_id__ = commit_id = 'g{COMMIT[:9]}'\n"
    assert vllm_commit(vllm=version_py) == COMMIT[:9]
    assert vllm_commit(vllm=version_py, commit=COMMIT) == COMMIT
    assert vllm_commit(vllm=version_py, metadata=f"vllm_commit: {COMMIT}\n") == COMMIT
    assert vllm_commit(metadata=f"vllm_commit: {COMMIT}\n") == COMMIT


def test_a_place_that_names_another_commit_is_not_believed() -> None:
    assert vllm_commit(vllm=f"__commit_id__ = commit_id = 'g{COMMIT[:9]}'\n", commit=FLASHINFER) == COMMIT[:9]


def test_a_local_version_names_the_commit_too() -> None:
    packages = {"vllm": f"0.23.1rc1.dev12+g{COMMIT[:9]}.d20261120"}
    assert vllm_commit(packages=packages) == COMMIT[:9]
    assert vllm_commit(packages={"vllm": "0.23.0+cu130"}) is None


def test_a_package_whose_name_or_version_is_none_is_left_out() -> None:
    packages = {"vllm": "0.1~custom", "odd-": "1.0", "o d": "1", "dated": "1.0 beta", "weird": "nightly"}
    software = parse(packages=packages)
    assert software.packages == {"vllm": "0.1~custom", "weird": "nightly"}


ODD: list[dict[str, Any]] = [
    {"python": 3}, {"python": "3.12\ud800"}, {"python": "3\n12"}, {"packages": []}, {"packages": {"vllm": 1}},
    {"packages": {"a": ["1"]}}, {"vllm": {}}, {"metadata": {"a": 1}}, {"commit": 7}, {"requires": []},
    {"requires": {"a": 1}},
]  # fmt: skip


@dataclass(frozen=True)
class Printing:
    """A container whose Python prints a text and ends with an exit code."""

    output: str
    exit_code: int = 0

    def run(self, _argv: Sequence[str], **_options: object) -> containers.ExecResult:
        return containers.ExecResult(self.exit_code, self.output)


def read(output: str, exit_code: int = 0) -> installed.InstalledSoftware:
    container: Any = Printing(output, exit_code)
    return installed._software(PYTHON, installed._answer(container, "i:1 cannot be read", [], installed._Contents))


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_an_odd_answer_is_an_error_and_no_bug(odd: dict[str, Any]) -> None:
    """The Python of a stranger's image prints whatever it likes."""
    assert read(f"a warning\n{json.dumps(answer())}").python == "3.12.3"
    for text in (json.dumps(answer(**odd)), "{}", "", "[" * 100_000):
        with pytest.raises(ImageStateError, match="i:1 cannot be read: its Python ended with exit code 0: "):
            read(text)


def test_the_end_of_a_failed_python_is_shown_with_its_last_line_first() -> None:
    with pytest.raises(ImageStateError) as raised:
        read("Traceback\n  in x\nValueError: no\n", 1)
    message = "i:1 cannot be read: its Python ended with exit code 1: ValueError: no\nTraceback\n  in x"
    assert raised.value.message == message
    with pytest.raises(ImageStateError, match="was killed, probably because memory ran out"):
        read("", 137)


def test_an_answer_counts_although_the_python_crashed_at_its_end() -> None:
    """The libraries of a GPU may crash when Python unloads them."""
    facts = installed.GpuFacts("NVIDIA GB10", "12.1", {}, {})
    container: Any = Printing(f"{json.dumps(vars(facts))}\n", 139)
    assert installed.read_gpu(container, PYTHON) == facts


def test_metadata_that_is_no_yaml_is_no_metadata() -> None:
    assert parse(metadata="a: b: c\n- x").metadata == {}
    software = parse(metadata=f"gpu_arch: 12.1a\nflashinfer_commit: {FLASHINFER}")
    assert software.metadata["gpu_arch"] == "12.1a"
    assert software.sources["flashinfer"].commit == FLASHINFER


INSTALL = "RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3\n"
FAKE = """\
RUN mkdir -p {site}/vllm {site}/vllm-0.23.0.dist-info \\
    && echo "__commit_id__ = commit_id = 'g0fc695fc6'" > {site}/vllm/_version.py \\
    && echo 'raise SystemExit("imported")' > {site}/vllm/__init__.py \\
    && printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.23.0\\n' > {site}/vllm-0.23.0.dist-info/METADATA
"""
# A venv without pip: what makes a Python one is a link and a file beside it.
VENV = """\
RUN mkdir -p /srv/v/bin /srv/v/lib/python3.11/site-packages && ln -s /usr/bin/python3 /srv/v/bin/python3 \\
    && printf 'home = /usr/bin\\n' > /srv/v/pyvenv.cfg
RUN printf '#!/srv/v/bin/python3\\n' > /usr/local/bin/vllm && chmod +x /usr/local/bin/vllm
"""


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize("place", ["system", "venv"])
def test_reading_an_image(endpoint: Endpoint, build: Build, repository: str, place: str) -> None:
    site = "/usr/local/lib/python3.11/dist-packages" if place == "system" else "/srv/v/lib/python3.11/site-packages"
    more = VENV if place == "venv" else ""
    text = f'FROM debian:bookworm-slim\n{INSTALL}{more}{FAKE.format(site=site)}USER nobody\nENTRYPOINT ["false"]\n'
    build(f"{repository}:1", text)
    labels = {repository: ""}
    software = installed.read_installed(endpoint, f"{repository}:1", labels)
    assert software.sources == {"vllm": installed.InstalledPackage("0.23.0", "0fc695fc6")}
    assert software.executable == ("/usr/bin/python3" if place == "system" else "/srv/v/bin/python3")
    assert software.python.startswith("3.11")
    files = installed.read_files(endpoint, f"{repository}:1", labels, "vllm", ["vllm/_version.py", "vllm/gone.py"])
    assert files == {"vllm/_version.py": b"__commit_id__ = commit_id = 'g0fc695fc6'\n"}
    assert installed.read_files(endpoint, f"{repository}:1", labels, "no_such", ["x"]) == {}


@pytest.mark.engine
def test_an_image_without_python(endpoint: Endpoint, build: Build, repository: str) -> None:
    build(f"{repository}:1", "FROM debian:bookworm-slim\n")
    with pytest.raises(ImageContentsError, match="has no Python 3"):
        installed.read_installed(endpoint, f"{repository}:1", {repository: ""})
