"""The versions of other packages that the pinned vLLM names in its requirement files, or in the metadata of its wheel.

vLLM is compiled and tested with one FlashInfer, torch, Triton, TileLang and TVM FFI. Another one is found out when it
is compiled, or first run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.package_name import canonical
from builder.errors import SourceError
from builder.lock.pins import GitPin
from builder.pinning import version_ranges, wheel_versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.specifiers import SpecifierSet

    from builder.definitions.image import ImageDefinition
    from builder.lock.pins import LockedPackage, Pins, SourcePin
    from builder.pinning.resolver import Resolver

FLASHINFER = "flashinfer-python"
PACKAGES = frozenset([*image.PACKAGES_BUILT_FROM["flashinfer"], "torch", "triton", "tilelang", "apache-tvm-ffi"])
_USUAL_FILE = "requirements/cuda.txt"
# At the top of vLLM's repository since 0.22; dockerfiles/_parts/rust.j2 reads the same line when vLLM is built.
RUST_FILE = "rust-toolchain.toml"
_CHANNEL = re.compile(rb'^ *channel *= *"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Named:
    """The versions of one package that are named, and ``by`` whom (``vllm 0.33.0 (4ba787ec9abc)``)."""

    specifiers: SpecifierSet
    by: str

    def text(self, package: str) -> str:
        """The half of a sentence that says it."""
        return f"{self.by} names {package}{self.specifiers}"


def identity(pin: SourcePin | None) -> str:
    """A pinned vLLM in a word: its commit, or its version where it is a wheel; empty where it is not pinned."""
    if pin is None:
        return ""
    return pin.commit[:12] if isinstance(pin, GitPin) else pin.version.partition("+")[0]


def read(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, Named]:
    """The ``PACKAGES`` that the pinned vLLM of a definition names, by package; none where it comes with the base, or
    is that of a parent, since their versions are known. Raises SourceError."""
    pin, source = pins.sources.get("vllm"), definition.sources.get("vllm")
    if isinstance(pin, GitPin) and isinstance(source, image.GitSource):
        return _of_commit(definition, source, pin, resolver)
    version = wheel_versions.version(source, pin)
    if isinstance(source, image.WheelSource) and version:
        return _of_wheel(definition, source, version, resolver)
    return {}


def installed(packages: Iterable[LockedPackage], by: str) -> dict[str, Named]:
    """The ``PACKAGES`` that an image has, by package: one version each."""
    return {
        package.name: Named(version_ranges.only(package.version), by)
        for package in packages
        if package.name in PACKAGES
    }


def flashinfer_tag(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> str:
    """The tag of the FlashInfer that the pinned vLLM names. Raises SourceError where it names none, or several."""
    named = read(definition, pins, resolver).get(FLASHINFER)
    vllm = pins.sources.get("vllm")
    hint = "write a tag, branch or commit of it: `ref: v0.7.2`"
    if named is None:
        which = f"vllm {vllm.version}" if vllm else "a vllm whose version is not known yet, or that is no source here,"
        raise SourceError(f"`version: from-vllm`: {which} names no version of FlashInfer", hint=hint)
    if not (version := version_ranges.exact(named.specifiers)):
        text = f"{FLASHINFER}{named.specifiers}"
        raise SourceError(f"`version: from-vllm`: {named.by} names {text}, which is no single version", hint=hint)
    return f"v{version}"


def rust(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> str:
    """The Rust toolchain that the pinned vLLM names for its front end: a version, or a channel such as ``stable``.
    Empty where it is not built from git, or names none. Raises SourceError."""
    from builder.sources.git import mirror_reading

    pin, source = pins.sources.get("vllm"), definition.sources.get("vllm")
    if not (isinstance(pin, GitPin) and isinstance(source, image.GitSource)):
        return ""
    files = mirror_reading.read_files(resolver.project.mirrors, source.git, pin.commit, [RUST_FILE], resolver.say)
    channel = _CHANNEL.search(files.get(RUST_FILE, b""))
    return channel[1].decode("utf-8", "replace") if channel else ""


def _of_commit(
    definition: ImageDefinition, source: image.GitSource, pin: GitPin, resolver: Resolver
) -> dict[str, Named]:
    from builder.sources.git import mirror_reading

    mirrors, files = resolver.project.mirrors, source.requirements
    if not files and mirror_reading.read_files(mirrors, source.git, pin.commit, [_USUAL_FILE], resolver.say):
        files = (_USUAL_FILE,)
    named: dict[str, Named] = {}
    for file in files:
        lines = mirror_reading.read_requirements(mirrors, source.git, pin.commit, file, resolver.say)
        named = {**_of_lines(lines, definition, f"vllm {pin.version} ({pin.commit[:12]})"), **named}
    return named


def _of_wheel(
    definition: ImageDefinition, source: image.WheelSource, version: str, resolver: Resolver
) -> dict[str, Named]:
    from email.parser import BytesHeaderParser

    from builder.sources.wheels import wheel_files, wheel_lookup

    if definition.python is None:
        return {}
    cache = resolver.project.state / "wheels"
    request = wheel_versions.lookup(definition, source, version)
    wheel = wheel_lookup.find(cache, request, resolver.settings)
    name = "-".join(wheel.address.rpartition("/")[2].split("-")[:2]).replace("%2B", "+")
    file = f"{name}.dist-info/METADATA"
    metadata = wheel_files.read(cache, wheel, [file], resolver.settings.ca_file).get(file, b"")
    lines = BytesHeaderParser().parsebytes(metadata).get_all("Requires-Dist") or []
    return _of_lines([str(line) for line in lines], definition, f"the wheel of {source.package} {version}")


def _of_lines(lines: Iterable[str], definition: ImageDefinition, by: str) -> dict[str, Named]:
    named: dict[str, Named] = {}
    python = definition.python.version if definition.python else "3.12"
    for line in lines:
        requirement = version_ranges.parse(line, definition.platform, python)
        if requirement and (name := canonical(requirement.name)) in PACKAGES and not requirement.url:
            before = named[name].specifiers if name in named else requirement.specifier
            named[name] = Named(requirement.specifier & before, by)
    return named
