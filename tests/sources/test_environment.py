from __future__ import annotations

from typing import TYPE_CHECKING

from builder.sources import git
from builder.sources.git import UserSettings

if TYPE_CHECKING:
    from pathlib import Path


def test_an_empty_environment_sets_nothing() -> None:
    assert git.read_index_settings({}) == UserSettings()


def test_pips_variables_are_followed(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert git.read_index_settings(
        {
            "PIP_CERT": str(tmp_path / "ca.pem"),
            "PIP_INDEX_URL": "https://index.example/simple",
            "PIP_EXTRA_INDEX_URL": "https://a.example https://b.example",
            "PIP_FIND_LINKS": "/wheels https://links.example",
            "https_proxy": "http://proxy.example:3128",
        }
    ) == UserSettings(
        ca_file=tmp_path / "ca.pem",
        index_url="https://index.example/simple",
        extra_index_urls=("https://a.example", "https://b.example"),
        find_links=("/wheels", "https://links.example"),
        proxies=(("HTTPS_PROXY", "http://proxy.example:3128"),),
    )


def test_uvs_own_variables_come_first() -> None:
    settings = git.read_index_settings(
        {"PIP_INDEX_URL": "https://pip.example", "UV_DEFAULT_INDEX": "https://uv.example"}
    )
    assert settings.index_url == "https://uv.example"


def test_a_certificate_file_that_is_not_there_is_no_setting(tmp_path: Path) -> None:
    assert git.read_index_settings({"SSL_CERT_FILE": str(tmp_path / "none.pem")}).ca_file is None


def test_only_folders_hold_local_wheels(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").touch()
    settings = UserSettings(find_links=(str(tmp_path), tmp_path.as_uri(), "https://links.example"))
    assert settings.local_wheels() == (tmp_path / "a-1-py3-none-any.whl",) * 2
