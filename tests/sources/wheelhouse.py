"""Small real wheels and a package index of them on disk, for uv to resolve from."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, tag: str = "py3-none-any", requires: tuple[str, ...] = ()
) -> Path:
    """A wheel with nothing but its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{stem}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_index(folder: Path, wheels: list[Path]) -> str:
    """A simple index (PEP 503) of ``wheels``, as a file: address."""
    names = sorted({wheel.name.split("-")[0].replace("_", "-") for wheel in wheels})
    for name in names:
        own = [wheel for wheel in wheels if wheel.name.split("-")[0].replace("_", "-") == name]
        links = "".join(f'<a href="{wheel.as_uri()}#sha256={sha256(wheel)}">{wheel.name}</a>\n' for wheel in own)
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n", encoding="utf-8")
    return folder.as_uri()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
