"""The contents of any image: its base, its GPU software and its packages, read in a container."""

from __future__ import annotations

import base64
import json
import re
import signal
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from builder.base import records
from builder.base.errors import BuildFailedError, FileProblemsError, ImageContentsError, ImageStateError, SourceError
from builder.base.events import Message, Report, ignore
from builder.base.values import dataclass, field
from builder.engine import containers, registry
from builder.engine.client import Endpoint, EngineHTTPError, EngineTimeoutError
from builder.engine.images import fingerprint, inspect_image

if TYPE_CHECKING:
    from builder.engine.containers import Container


T = TypeVar("T")

# The longest wait for a registry, in seconds. Behind a firewall that drops packets, a registry never answers.
REGISTRY_WAIT = 8.0
LOCAL = "local:"
_PLATFORM_HINT = "name a base image for that platform in image.yaml, or build for another platform with `--platform`"


def resolve_base(
    endpoint: Endpoint, reference: str, platform: str, report: Report = ignore, *, wait: float = REGISTRY_WAIT
) -> str:
    """Resolves ``reference`` to the registry's digest (``sha256:…``, of the whole index if it has one). If the registry
    lacks the image, or does not answer within ``wait`` seconds, the result is ``local:`` and the fingerprint of the
    engine's image; a failed request to the registry is reported. Raises SourceError if neither has it, or it is not for
    ``platform`` (``linux/arm64``)."""
    try:
        described = registry.describe(endpoint, reference, wait)
    except EngineHTTPError as error:
        why = error.explanation
    except EngineTimeoutError:
        why = f"the registry has not answered for {wait:g} seconds"
    else:
        _check_platform(reference, platform, described.get("Platforms") or ())
        return str(described["Descriptor"]["digest"])
    local = local_fingerprint(endpoint, reference, platform)
    if local is None:
        message = f"base image {reference} cannot be resolved: {why}"
        hint = f"check its name and the network; or bring the image into the engine: `docker pull {reference}`"
        raise SourceError(message, hint=hint)
    if not registry.lacks_image(why):
        pinned = f"{reference} is pinned to the image in this engine, because the request to its registry failed: {why}"
        report(Message(f"{pinned}; `builder lock --update base` asks the registry again"))
    return LOCAL + local


def local_fingerprint(endpoint: Endpoint, reference: str, platform: str = "") -> str | None:
    """Returns the fingerprint of the engine's image with this reference; None if the engine does not have it. Raises
    SourceError if ``platform`` is given and the image is for another platform."""
    image = inspect_image(endpoint, reference)
    if image is None:
        return None
    if platform and not _same_platform(platform, image.platform):
        message = f"the engine's image {reference} is for {image.platform}, but {platform} is required"
        raise SourceError(message, hint=_PLATFORM_HINT)
    return fingerprint(image)


def _check_platform(reference: str, platform: str, offered: Iterable[Mapping[str, Any]]) -> None:
    names = [
        "/".join(filter(None, (entry.get("os"), entry.get("architecture"), entry.get("variant"))))
        for entry in offered
        # Attestations are listed as images for an unknown platform.
        if entry.get("os") not in {None, "", "unknown"}
    ]
    if names and not any(_same_platform(platform, name) for name in names):
        message = f"base image {reference} is for {', '.join(sorted(set(names)))}, not for {platform}"
        raise SourceError(message, hint=_PLATFORM_HINT)


def _same_platform(requested: str, offered: str) -> bool:
    """True if the platforms are the same. A variant counts only if both have a variant."""
    return all(part == other for part, other in zip(requested.split("/"), offered.split("/"), strict=False))


# Importing vLLM reads some gigabytes from a cold disk, and may compile a kernel first.
PROBE_SECONDS = 900

# Each part reports its own failure, so that one failure does not hide the next. The last line is the answer.
_PROBE = """\
import importlib.metadata, json
facts = {"card": "", "capability": "", "failures": {}, "versions": {}}
def part(name, look):
    try:
        look()
    except BaseException as error:
        facts["failures"][name] = f"{type(error).__name__}: {error}"[:2000]
def card():
    import torch
    if torch.cuda.is_available():
        facts["card"] = " ".join(torch.cuda.get_device_name(0).split())
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
def platform():
    import vllm
    from vllm.platforms import current_platform
    if not current_platform.is_cuda():
        raise RuntimeError(f"vLLM takes the platform for {current_platform.device_name or 'none'}")
def kernel():
    import torch
    from vllm import _custom_ops
    given = torch.ones(2, 64, dtype=torch.bfloat16, device="cuda")
    result = torch.empty_like(given)
    _custom_ops.rms_norm(result, given, torch.ones_like(given[0]), 1e-6)
    torch.cuda.synchronize()
    if not bool(torch.allclose(result.float(), given.float(), atol=0.02)):
        raise RuntimeError("rms_norm of ones is not ones")
for each in importlib.metadata.distributions():
    name = (each.metadata["Name"] or "").lower().replace("_", "-")
    if name == "flashinfer-python" or name.startswith(("flashinfer-cubin", "flashinfer-jit-cache")):
        facts["versions"][name] = each.version
part("torch", card)
part("import", platform)
if facts["capability"]:
    part("kernel", kernel)
print()
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class GpuFacts:
    """The answers: the ``card`` and its compute ``capability``, empty if torch has no GPU; the ``versions`` of
    FlashInfer's packages; and the ``failures`` by part: ``torch``, ``import`` (of vLLM) and ``kernel`` (of vLLM)."""

    card: str
    capability: str
    versions: Mapping[str, str]
    failures: Mapping[str, str]


def read_gpu(container: Container, python: str) -> GpuFacts:
    """Asks the ``python`` of a running container with the GPU. Raises ImageStateError if it gives no valid answer."""
    return _answer(container, "the image cannot be checked", [python, "-B", "-c", _PROBE], GpuFacts, PROBE_SECONDS)


# The software in an image: its Python, the packages, and the exact vLLM and FlashInfer. A container of the image reads
# it, so this works for any image. The Python is the one that has vLLM, wherever it is.

READ_SECONDS = 300
_KILLED = 128 + signal.SIGKILL
METADATA = "/workspace/build-metadata.yaml"

# Prints the Python that has vLLM, else any Python. The candidates are the Pythons of PATH, then the interpreter of the
# command `vllm`, then usual places of virtual environments. The script runs in an empty folder, because the current
# folder comes first in Python's path.
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

# Imports no package: that takes minutes, and may require a GPU. The last line is the answer.
_READ_ALL = """\
import importlib.metadata, importlib.util, json, os, pathlib, platform, sys
versions, requires = {}, {}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name and distribution.version and name not in versions:
        versions[name], requires[name] = distribution.version, distribution.requires or []
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
    "requires": requires,
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
# pip cannot install a package with any other name or version.
_PACKAGE_NAME = re.compile("[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = "[A-Za-z0-9][A-Za-z0-9.!+_~-]*"
_PACKAGE_VERSION = re.compile(_VERSION)
_SOURCES = {"vllm": "vllm", "flashinfer": "flashinfer-python"}  # the package of each


@dataclass(frozen=True)
class _Contents:
    """The answer to `_READ_ALL`: ``vllm``, ``flashinfer`` and ``metadata`` are texts of files that may name a commit,
    and ``commit`` is a variable's value."""

    python: Annotated[str, _VERSION]
    packages: Mapping[str, str]
    requires: Mapping[str, tuple[str, ...]]
    vllm: str
    flashinfer: str
    commit: str
    metadata: str


@dataclass(frozen=True)
class InstalledPackage:
    """A package in an image: its version, and the first digits (7 to 40) of its commit, None if unknown."""

    version: str
    commit: str | None = None


@dataclass(frozen=True)
class InstalledSoftware:
    """The software in an image: the version and the path of its Python; each package's version and requirements (PEP
    508) by canonical name; vLLM and FlashInfer, if installed; and the plain values of its build-metadata.yaml."""

    python: str
    executable: str
    packages: Mapping[str, str]
    requires: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, InstalledPackage] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def read_installed(endpoint: Endpoint, image: str, labels: Mapping[str, str], platform: str = "") -> InstalledSoftware:
    """Reads the software of ``image`` in a container with these ``labels``, without a network. ``platform`` selects one
    platform of the image. Finding its Python takes at most `READ_SECONDS`, and so does reading. Raises ImageStateError
    if the engine does not have the image; ImageContentsError if its programs do not run here, or it has no Python."""
    with containers.running(endpoint, image, labels=labels, platform=platform) as container:
        executable = require_python(container, image)
        argv = [executable, "-B", "-c", _READ_ALL, METADATA]
        return _software(executable, _answer(container, f"{image} cannot be read", argv, _Contents))


def _software(executable: str, contents: _Contents) -> InstalledSoftware:
    """The software in an image. Packages without a valid name or version are left out."""
    packages = {
        _canonical(name): version
        for name, version in contents.packages.items()
        if _PACKAGE_NAME.fullmatch(name) and _PACKAGE_VERSION.fullmatch(version)
    }
    metadata = _plain_values(contents.metadata)
    stated = {
        "vllm": (contents.vllm, contents.commit, metadata.get("vllm_commit", "")),
        "flashinfer": (contents.flashinfer, metadata.get("flashinfer_commit", "")),
    }
    sources = {
        source: InstalledPackage(packages[package], _commit_of(packages[package], *stated[source]))
        for source, package in _SOURCES.items()
        if package in packages
    }
    requires = {_canonical(name): needs for name, needs in contents.requires.items()}
    return InstalledSoftware(contents.python, executable, dict(sorted(packages.items())), requires, sources, metadata)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_files(
    endpoint: Endpoint, image: str, labels: Mapping[str, str], package: str, paths: Collection[str], platform: str = ""
) -> dict[str, bytes]:
    """Returns the files of ``paths`` that exist in ``image``. A path is relative to the parent folder of the importable
    ``package`` (``vllm/config.py``). Raises as `read_installed` does."""
    with containers.running(endpoint, image, labels=labels, platform=platform) as container:
        executable = require_python(container, image)
        argv = [executable, "-B", "-c", _READ_FILES, package, json.dumps(sorted(paths))]
        files = _answer(container, f"{image} cannot be read", argv, dict[str, str])
    try:
        return {name: base64.b64decode(content) for name, content in files.items() if name in paths}
    except ValueError:
        raise ImageStateError(f"{image} cannot be read: its Python gave an unexpected answer") from None


# vLLM's answers about recipes. Importing vLLM takes 600 MB and some seconds, or minutes from a cold disk.

_VLLM_WORDS = Path(__file__).with_name("vllm_words.py")
_VLLM_MEMORY = 4 << 30
_PIECE = 100_000  # Linux limits each argument to 128 KiB, and all arguments to 2 MiB: execve(2)
_OFFLINE = {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # noqa: S108


@dataclass(frozen=True)
class CommandFault:
    """A reason why vLLM refuses a command: the ``option`` at fault, which may be empty, and vLLM's ``message``.
    ``unknown`` if vLLM has no such option."""

    option: str
    unknown: bool
    message: str


@dataclass(frozen=True)
class CommandAnswer:
    """The answer about a command: its faults; vLLM's errors about the ``values`` of variables, by name; and the
    ``unread`` variables, whose names are in no file of the image."""

    faults: tuple[CommandFault, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class VllmFacts:
    """The facts about a vLLM: its ``options`` with their choices; its ``variables``; the registered names (``choices``)
    by option without dashes; and the ``fields`` of JSON options that refuse any other field."""

    version: str
    options: Mapping[str, tuple[str, ...]]
    variables: tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class VllmAnswers:
    """The answers of an image's vLLM: the facts, and an answer for each command, None if the command took too long."""

    facts: VllmFacts
    commands: tuple[CommandAnswer | None, ...]


def vllm_words_digest() -> str:
    """The digest of the questions. Other questions get other answers from the same image."""
    return sha256(_VLLM_WORDS.read_bytes()).hexdigest()


def ask_vllm(
    endpoint: Endpoint, image: str, labels: Mapping[str, str], commands: Sequence[Mapping[str, Any]]
) -> VllmAnswers:
    """Asks the vLLM of ``image`` about ``commands``, each with its ``argv`` (``serve MODEL …``) and the variables
    ``env``. They run in one read-only container without a network or a GPU. Raises as `read_installed` does."""
    packed = base64.b64encode(zlib.compress(json.dumps(list(commands)).encode())).decode()
    pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
    with containers.running(endpoint, image, labels=labels, memory=_VLLM_MEMORY, read_only=True) as container:
        python = require_python(container, image)
        argv = [python, "-B", "-c", _VLLM_WORDS.read_text(encoding="utf-8"), *pieces]
        failed = f"the vLLM of {image} could not check the recipes"
        answers = _answer(container, failed, argv, VllmAnswers, PROBE_SECONDS, _OFFLINE)
    if len(answers.commands) != len(commands):
        raise ImageStateError(f"{failed}: its Python gave an unexpected answer")
    return answers


def find_python(container: Container) -> str:
    """Returns the path of the Python in a container that has vLLM, else of any Python; empty without Python."""
    result = container.run(["sh", "-c", _FIND_PYTHON], timeout=READ_SECONDS)
    return "" if result.exit_code else result.last_line


def require_python(container: Container, image: str, hint: str = "") -> str:
    """Returns the path of the Python in a container of ``image``, as `find_python` does. Raises ImageContentsError,
    with ``hint``, if the image has no Python; ImageContentsError if its programs do not run here."""
    if not containers.can_execute(container):
        raise ImageContentsError(
            f"this engine cannot run the programs of {image}, so its contents are unknown",
            hint="the image is for another processor: run the command on a machine with that processor",
        )
    try:
        executable = find_python(container)
    except BuildFailedError:
        message = f"looking for the Python of {image} took more than {READ_SECONDS} seconds"
        raise ImageContentsError(message, hint=hint) from None
    if not executable.startswith("/"):
        raise ImageContentsError(f"{image} has no Python 3, so no vLLM either", hint=hint)
    return executable


def _answer(
    container: Container,
    failed: str,
    argv: Sequence[str],
    kind: type[T],
    seconds: float = READ_SECONDS,
    env: Mapping[str, str] | None = None,
) -> T:
    """The record in the last line that a Python in a container prints, also if the Python crashes afterwards: the
    libraries that it loaded may crash at its end. Raises ImageStateError, which begins with ``failed``, if there is
    none."""
    result = container.run(argv, timeout=seconds, env=env)
    with suppress(records.RecordError):
        return records.parse(result.last_line, kind)
    if result.exit_code == _KILLED:
        raise ImageStateError(f"{failed}: its Python was killed, probably because memory ran out")
    *before, last = result.output.strip()[-2000:].splitlines() or [""]
    message = f"{failed}: its Python ended with exit code {result.exit_code}: {last}"
    raise ImageStateError("\n".join([message, *before]))


def _commit_of(version: str, *texts: str) -> str | None:
    """The commit that a package was built from, as the package itself states it; in full, if another place in the
    image has the full commit. Different commits in other places are ignored: they may be older than the package."""
    local = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})(?:\.|$)", version)
    stated = [match[1] for match in (_COMMIT.search(text) for text in texts) if match]
    if local:
        stated.append(local[1])
    whole = [text for text in texts if re.fullmatch(r"[0-9a-f]{40}", text)]
    first = (*stated, *whole, None)[0]
    if first is None:
        return None
    return max((commit for commit in (*stated, *whole) if commit.startswith(first)), key=len)


def _plain_values(text: str) -> dict[str, str]:
    from builder.base import yaml_file

    data: Any = {}
    with suppress(FileProblemsError):
        data = yaml_file.load(text, METADATA)
    entries = data.items() if isinstance(data, dict) else ()
    return {str(key): str(value) for key, value in entries if isinstance(value, str | int | float)}


# dpkg-query(1): lists packages; `name:arch` if a package is installed for several processors.
_LIST = ("dpkg-query", "--show", "--showformat", r"${db:Status-Abbrev}\t${binary:Package}\t${Version}\n")
_SECONDS = 60.0
# Valid names and versions: deb-control(5), deb-version(7).
_WORD = re.compile("[A-Za-z0-9][A-Za-z0-9.+:~-]*")


def read_system_packages(endpoint: Endpoint, image: str, labels: Mapping[str, str]) -> dict[str, str]:
    """The versions of the fully installed Debian packages in ``image`` by name; empty if it has no dpkg, or its
    programs do not run here. Raises ImageStateError for a missing image, and BuildFailedError on a timeout."""
    with containers.running(endpoint, image, labels=labels) as container:
        result = container.run(_LIST, timeout=_SECONDS) if containers.can_execute(container) else None
    if result is None or result.exit_code:
        return {}
    rows = (line.split("\t") for line in result.output.splitlines() if line.startswith("ii "))
    return {row[1]: row[2] for row in rows if len(row) == 3 and all(map(_WORD.fullmatch, row[1:]))}
