"""The user's own settings for package indexes, certificates and proxies, which are passed to uv and to build steps.

They say where packages come from, never which: nothing of them enters a plan, a lock or an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class UserSettings:
    """Settings for fetching packages. ``ca_file`` replaces the certificates of the image while a step runs;
    ``find_links`` are folders or addresses with wheels; ``proxies`` pairs the usual variables, in capitals, with their
    values."""

    ca_file: Path | None = None
    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    proxies: tuple[tuple[str, str], ...] = ()

    def local_wheels(self) -> tuple[Path, ...]:
        """Returns the wheels in the folders among ``find_links``, sorted."""
        folders = (
            Path(link.removeprefix("file://")) for link in self.find_links if "://" not in link.removeprefix("file://")
        )
        return tuple(sorted(wheel for folder in folders if folder.is_dir() for wheel in folder.glob("*.whl")))


def read(environ: Mapping[str, str]) -> UserSettings:
    """Reads the settings that pip and uv themselves would follow."""
    ca_file = next((environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if environ.get(name)), None)
    proxies = tuple((name, value) for name in PROXIES if (value := environ.get(name) or environ.get(name.lower(), "")))
    return UserSettings(
        ca_file=Path(ca_file) if ca_file and Path(ca_file).is_file() else None,
        index_url=environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL", ""),
        extra_index_urls=tuple((environ.get("UV_INDEX") or environ.get("PIP_EXTRA_INDEX_URL", "")).split()),
        find_links=tuple((environ.get("UV_FIND_LINKS") or environ.get("PIP_FIND_LINKS", "")).replace(",", " ").split()),
        proxies=proxies,
    )
