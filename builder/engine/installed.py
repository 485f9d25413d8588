"""The software that an image brings: its Python, the packages, and which vLLM and FlashInfer these are.

Read in a container of it, so for any image, whoever built it: the Python is the one that has vLLM, wherever that is.
"""

from __future__ import annotations

import base64
import json
import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.engine import containers
from builder.errors import BuildFailedError, FileProblemsError, ImageContentsError, ImageStateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.containers import Container

READ_SECONDS = 300
_KILLED = 128 + signal.SIGKILL
METADATA = "/workspace/build-metadata.yaml"

# Prints the Python that has vLLM, else any: those that PATH finds first, then the one that the command `vllm` runs by,
# then virtual environments where images have them. From an empty folder: the current one comes first in Python's path.
_FIND_PYTHON = """\
cd "$(mktemp -d)" || exit 1
any=
interpreter=$(sed -n '1s/^#! *\\([^ ]*\\).*/\\1/p' "$(command -v vllm)" 2> /dev/null)
for candidate in python3 python "$VIRTUAL_ENV/bin/python3" "$interpreter" /opt/venv/bin/python3 \\
    /app/.venv/bin/python3 /workspace/.venv/bin/python3 /opt/conda/bin/python3 \\
    /usr/local/bin/python3 /usr/bin/python3; do
    path=$("$candidate" -B -c 'import sys; print(sys.executable if sys.version_info > (3,) else "")' 2> /dev/null)
    case "$path" in /*) ;; *) continue ;; esac
    any=${any:-$path}
    if "$path" -B -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' 2> /dev/null; then
        printf '%s\\n' "$path"
        exit
    fi
done
printf '%s\\n' "$any"
"""

# Nothing is imported: that takes minutes, and may ask for a GPU. The last line is the answer.
_READ_ALL = """\
import importlib.metadata, importlib.util, json, os, pathlib, platform, sys
versions = {}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name and distribution.version:
        versions.setdefault(name, distribution.version)
def text(package, file):
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
        path = pathlib.Path(place, file)
        if path.is_file():
            return path.read_text(errors="replace")[:10000]
    return ""
metadata = pathlib.Path(sys.argv[1])
print()
print(json.dumps({
    "python": platform.python_version(),
    "packages": versions,
    "vllm": text("vllm", "_version.py"),
    "flashinfer": text("flashinfer", "_build_meta.py"),
    "commit": os.environ.get("VLLM_BUILD_COMMIT", ""),
    "metadata": metadata.read_text(errors="replace")[:100000] if metadata.is_file() else "",
}))
"""

_READ_FILES = """\
import base64, importlib.util, json, pathlib, sys
spec = importlib.util.find_spec(sys.argv[1])
places = list((spec and spec.submodule_search_locations) or ()) or ([spec.origin] if spec and spec.origin else [])
files = {}
for name in json.loads(sys.argv[2]) if places else ():
    path = pathlib.Path(places[0]).parent / name
    if path.is_file():
        files[name] = base64.b64encode(path.read_bytes()).decode()
print()
print(json.dumps(files))
"""

# setuptools-scm: commit_id = 'gb1388b1fb'; FlashInfer: __git_version__ = "768c…"; a local version: +gb1388b1fb.d2026
_COMMIT = re.compile(r"(?:commit_id|__git_version__) *= *['\"]g?([0-9a-f]{7,40})['\"]")
_LOCAL_COMMIT = re.compile(r"\+(?:.*\.)?g([0-9a-f]{7,40})(?:\.|$)")
# Anything else is no package that pip can have installed.
_PACKAGE_NAME = re.compile("[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PACKAGE_VERSION = re.compile("[A-Za-z0-9][A-Za-z0-9.!+_~-]*")
_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")
_SOURCES = {"vllm": "vllm", "flashinfer": "flashinfer-python"}  # the package of each


@dataclass(frozen=True)
class InstalledPackage:
    """A package in an image: its version, and the first digits (7 to 40) of the commit that it was built from, None
    where the image does not tell."""

    version: str
    commit: str | None = None


@dataclass(frozen=True)
class InstalledSoftware:
    """The software in an image: the version and the path of its Python, each package's version by canonical name, vLLM
    and FlashInfer (``vllm``, ``flashinfer``) where it has them, and the keys of its build-metadata.yaml that have one
    plain value."""

    python: str
    executable: str
    packages: Mapping[str, str]
    sources: Mapping[str, InstalledPackage] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def read(
    endpoint: Endpoint, image: str, labels: Mapping[str, str], platform: str = "", seconds: float = READ_SECONDS
) -> InstalledSoftware:
    """Reads the software of ``image`` in a container with these ``labels``, without a network; ``platform`` chooses one
    of an image of several. Finding its Python takes at most ``seconds``, and so does reading.

    Raises ImageStateError where the engine lacks the image, ImageContentsError where it cannot run its programs or
    finds no Python in it.
    """
    with containers.running(endpoint, image, labels=labels, platform=platform) as container:
        executable = require_python(container, image, seconds=seconds)
        answer = _answer(container, image, [executable, "-B", "-c", _READ_ALL, METADATA], seconds)
        return parse(executable, answer)


def parse(executable: str, data: Mapping[str, Any]) -> InstalledSoftware:
    """Returns the software that the answer of the Python ``executable`` of an image tells of. A package whose name or
    version is none is left out; raises ImageStateError where that is vLLM or FlashInfer, and for an answer of another
    form."""
    try:
        return _software(executable, data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        message = f"the Python of the image, {executable}, answers with something else than was asked"
        raise ImageStateError(message) from None


def _software(executable: str, data: Mapping[str, Any]) -> InstalledSoftware:
    metadata = _plain_values(data["metadata"])
    named = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in data["packages"].items()
        if _PACKAGE_NAME.fullmatch(name)
    }
    packages = {name: version for name, version in named.items() if _PACKAGE_VERSION.fullmatch(version)}
    for name in _SOURCES.values():
        if name in named and name not in packages:
            raise ImageStateError(f"its {name} says that it is version {ascii(named[name])[:100]}, which is none")
    commits = {
        "vllm": _commit_of(packages.get("vllm", ""), data["vllm"], data["commit"], metadata.get("vllm_commit", "")),
        "flashinfer": _commit_of("", data["flashinfer"], metadata.get("flashinfer_commit", "")),
    }
    versions = {name: packages.get(package) for name, package in _SOURCES.items()}
    return InstalledSoftware(
        python=_python_version(data["python"]),
        executable=executable,
        packages=dict(sorted(packages.items())),
        sources={name: InstalledPackage(version, commits[name]) for name, version in versions.items() if version},
        metadata=metadata,
    )


def read_files(
    endpoint: Endpoint,
    image: str,
    labels: Mapping[str, str],
    package: str,
    paths: Collection[str],
    platform: str = "",
) -> dict[str, bytes]:
    """Returns those of ``paths`` that exist in ``image``, which are relative to the folder that holds the importable
    ``package`` (``vllm/config.py``). Raises as ``read`` does."""
    with containers.running(endpoint, image, labels=labels, platform=platform) as container:
        executable = require_python(container, image)
        argv = [executable, "-B", "-c", _READ_FILES, package, json.dumps(sorted(paths))]
        files = _answer(container, image, argv)
    try:
        return {name: base64.b64decode(content) for name, content in files.items() if name in paths}
    except (TypeError, ValueError):
        raise ImageStateError(f"{image} cannot be looked into: its Python answers with something else") from None


def find_python(container: Container, seconds: float = READ_SECONDS) -> str:
    """Returns the path of the Python in a container that has vLLM, or of another where none has; empty without any."""
    result = container.run(["sh", "-c", _FIND_PYTHON], timeout=seconds)
    return (result.output.strip().splitlines() or [""])[-1] if result.exit_code == 0 else ""


def require_python(container: Container, image: str, hint: str = "", seconds: float = READ_SECONDS) -> str:
    """Returns the path of the Python in a container of ``image`` as `find_python` does. Raises ImageContentsError where
    there is none, with ``hint``, or it does not run here."""
    if not containers.can_execute(container):
        raise ImageContentsError(
            f"this engine cannot run the programs of {image}, so nobody can tell what is in it",
            hint="it is for another processor: do this on a machine of its own kind",
        )
    try:
        executable = find_python(container, seconds)
    except BuildFailedError:
        raise ImageContentsError(
            f"the Python of {image} did not tell its version in {seconds:g} seconds", hint=hint
        ) from None
    if not executable.startswith("/"):
        raise ImageContentsError(f"{image} has no Python 3, so no vLLM either", hint=hint)
    return executable


def _answer(container: Container, image: str, argv: list[str], seconds: float = READ_SECONDS) -> dict[str, Any]:
    result = container.run(argv, timeout=seconds)
    try:
        answer = json.loads((result.output.strip().splitlines() or [""])[-1])
    except (ValueError, RecursionError):
        answer = None
    if result.exit_code == _KILLED:
        raise ImageStateError(f"{image} cannot be looked into: its Python was killed, as for want of memory")
    if result.exit_code or not isinstance(answer, dict):
        raise ImageStateError(f"{image} cannot be looked into; its Python said:\n{result.output.strip()[-2000:]}")
    return answer


def _python_version(text: str) -> str:
    if not _PACKAGE_VERSION.fullmatch(text):
        raise ValueError(text)
    return text


def _commit_of(version: str, *texts: str) -> str | None:
    """The commit that a package was built from: what it says itself, written out in full where another place of the
    image does so. A place that names another commit is not believed: it may be older than the package."""
    local = _LOCAL_COMMIT.search(version)
    stated = [match[1] for match in (_COMMIT.search(text) for text in texts) if match]
    if local:
        stated.append(local[1])
    whole = [text for text in texts if _WHOLE_COMMIT.fullmatch(text)]
    first = (*stated, *whole, None)[0]
    if first is None:
        return None
    return max((commit for commit in (*stated, *whole) if commit.startswith(first)), key=len)


def _plain_values(text: str) -> dict[str, str]:
    """The keys of a flat YAML file that have one plain value."""
    from builder.yaml import yaml_file

    try:
        data = yaml_file.load(text, METADATA)
    except FileProblemsError:
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(key): str(value) for key, value in data.items() if isinstance(value, str | int | float)}
