"""A mod whose file comes from an address, built on the real engine: fetched before the build, and never in it."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from tests import projects, web_server
from tests.commands.test_mods import look
from tests.conftest import Command

pytestmark = pytest.mark.engine

TEMPLATE = b"{{ messages }}\n"


def test_what_was_fetched_once_is_built_and_rebuilt_without_the_network(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    digest = hashlib.sha256(TEMPLATE).hexdigest()
    with web_server.serving() as web:
        web.files["/chat.jinja"] = TEMPLATE
        yaml = f"description: x\nfiles: [{{from: {web.url}/chat.jinja, to: .}}]\n"
        projects.write(small.mods / "far/mod.yaml", yaml)
        assert "has no sha256; `builder mods pin far`" in builder("build", "small", "--mod", "far", code=2).stderr
        assert f"  sha256 {digest}" in builder("mods", "pin", "far").stdout
        shutil.rmtree(small.downloads)
        builder("build", "small", "--mod", "far")
        assert look(endpoint, f"{repository}:1", "cat chat.jinja") == TEMPLATE.decode()
        web.files["/chat.jinja"] = b"changed\n"
        shutil.rmtree(small.downloads)
        projects.write(small.mods / "far/more.txt", "so that something is to be built\n")
        failed = builder("build", "small", "--mod", "far", code=6).stderr
        assert digest in failed
        assert hashlib.sha256(b"changed\n").hexdigest() in failed
    build_directory = small.build_directory(repository, 1)
    assert (build_directory / f"mods/far/.fetched/{digest}/chat.jinja").read_bytes() == TEMPLATE
    builder("verify")
    builder("rebuild", f"{repository}:1")
    builder("build", "small", "--mod", "far")  # the server is gone: the earlier build has the content
    assert look(endpoint, f"{repository}:2", "cat chat.jinja") == TEMPLATE.decode()
