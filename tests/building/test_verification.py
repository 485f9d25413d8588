"""The checks of a finished image, in a container of it on the real engine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuildFailedError, Location
from builder.base.events import TaskStarted
from builder.building import verification
from builder.definitions.mod import ModCheck
from builder.engine import containers, machine
from builder.engine.client import Endpoint, environment
from builder.lock.model import Version
from builder.plan.plan_model import WORKSPACE, ImageCheck
from tests import shared
from tests.conftest import BASE, remove_all
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine

# Stands in for a Python with vLLM: what it is asked is the program's, what it answers is the image's.
PYTHON = """#!/bin/sh
case $2 in
  *metadata*) echo 'a warning'; echo "$VERSION"; exit "$MISSING" ;;
  'import vllm') echo 'ImportError: libcuda.so.1'; exit "$BROKEN" ;;
esac
"""
DOCKERFILE = f"""\
FROM --platform=$BUILDPLATFORM {BASE} AS here
COPY --chmod=755 python3 /usr/bin/python3
RUN mkdir -p {WORKSPACE} && echo 'a tool_call' > {WORKSPACE}/chat.jinja && \
  printf '{{%% if a %%}}\\n{{%% endfi %%}}\\n' > {WORKSPACE}/broken.jinja
FROM scratch
COPY --from=here / /
"""
# The head of a program for a processor that does not exist (https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html).
NO_PROCESSOR = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\x02\0\xfe\xed".ljust(48, b"\0")

Make = Callable[..., str]


@pytest.fixture
def make(endpoint: Endpoint, tmp_path: Path) -> Iterator[Make]:
    """Makes an image of this machine's programs that says it is for a platform."""
    repository = shared.unique_name()

    def run(platform: str, *, runs: bool = True, version: str = "0.19.1", missing: int = 0, broken: int = 0) -> str:
        (tmp_path / "python3").write_text(PYTHON)
        (tmp_path / "none").write_bytes(NO_PROCESSOR)
        lines = [] if runs else ["COPY --chmod=755 none /usr/bin/sleep", "COPY --chmod=755 none /usr/bin/true"]
        lines += [f"ENV PATH=/usr/bin:/bin VERSION={version} MISSING={missing} BROKEN={broken}"]
        (tmp_path / "Dockerfile").write_text(DOCKERFILE + "\n".join(lines))
        argv = [*endpoint.buildx, "build", "--provenance=false", f"--platform={platform}", "-t", f"{repository}:1", "."]
        subprocess.run(argv, cwd=tmp_path, env=environment(endpoint), check=True, capture_output=True)
        return f"{repository}:1"

    yield run
    remove_all(endpoint, repository)


@pytest.fixture(scope="module")
def host(endpoint: Endpoint) -> str:
    return machine.platform(endpoint)


@pytest.fixture(scope="module")
def foreign(host: str) -> str:
    """A platform that is not this engine's."""
    return next(platform for platform in shipped.PLATFORMS if platform != host)


def check(
    endpoint: Endpoint,
    image: str,
    platform: str,
    host: str,
    *wanted: ImageCheck,
    templates: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> list[str]:
    """The messages while the image of a plan with vLLM 0.19.1 is checked."""
    plan = replace(shipped.plan("cpu", "wheel", platform), checks=wanted, versions={"vllm": Version("0.19.1", None)})
    messages: list[str] = []
    label = image.partition(":")[0]
    expected = {path: Location("recipes/r.yaml", 7, 30) for path in templates}
    try:
        verification.run_checks(
            endpoint, image, plan, {label: ""}, host, lambda event: messages.append(str(event)), expected, without
        )
    finally:
        assert containers.container_listing(endpoint, label) == []
    return messages


def contains(text: str) -> ImageCheck:
    return ImageCheck("template", ModCheck(file="chat.jinja", contains=text), None)


@pytest.mark.long
def test_an_image_as_it_was_planned(endpoint: Endpoint, make: Make, host: str) -> None:
    began, ended = check(endpoint, make(host), host, host, contains("tool_call"))
    assert began == str(TaskStarted("checking the image"))
    assert ended.startswith("TaskFinished(text='checking the image', seconds=")


@pytest.mark.long
@pytest.mark.parametrize(
    ("image", "messages"),
    [
        ({"version": "0.20.0"}, "check vllm-version: the image contains vLLM 0.20.0, but 0.19.1 is pinned"),
        ({"missing": 1}, "check vllm-version: the image contains no package vllm, but 0.19.1 is pinned"),
        ({"broken": 1}, "check vllm-import: vLLM cannot be imported in the image:\n  ImportError: libcuda.so.1"),
    ],
)
def test_what_is_not_as_it_was_planned(
    endpoint: Endpoint, make: Make, host: str, image: dict[str, object], messages: str
) -> None:
    with pytest.raises(BuildFailedError) as caught:
        check(endpoint, make(host, **image), host, host)
    assert caught.value.message == messages


@pytest.mark.long
def test_a_check_of_a_mod_that_does_not_hold(endpoint: Endpoint, make: Make, host: str) -> None:
    with pytest.raises(BuildFailedError) as caught:
        check(endpoint, make(host), host, host, contains("tool_call"), contains("reasoning"))
    assert caught.value.message == "check of mod template: chat.jinja lacks 'reasoning'"
    assert "mods/template" in caught.value.hint
    assert caught.value.hint.endswith("build with `--without-check template --note WHY`")
    check(endpoint, make(host), host, host, contains("reasoning"), without=("template",))


@pytest.mark.long
def test_each_check_of_an_image_may_be_left_out(endpoint: Endpoint, make: Make, host: str) -> None:
    image = make(host, version="0.20.0", broken=1)
    with pytest.raises(BuildFailedError, match="check vllm-version:") as caught:
        check(endpoint, image, host, host, templates=("ours.jinja",))
    assert "`--without-check vllm-version --note WHY`" in caught.value.hint
    with pytest.raises(BuildFailedError, match="check vllm-import:"):
        check(endpoint, image, host, host, templates=("ours.jinja",), without=("vllm-version",))
    with pytest.raises(BuildFailedError, match="check chat-template:"):
        check(endpoint, image, host, host, templates=("ours.jinja",), without=("vllm-version", "vllm-import"))
    every = ("vllm-version", "vllm-import", "chat-template")
    assert len(check(endpoint, image, host, host, templates=("ours.jinja",), without=every)) == 2


@pytest.mark.long
def test_a_template_that_a_recipe_names_must_be_in_the_image(endpoint: Endpoint, make: Make, host: str) -> None:
    image = make(host)
    check(endpoint, image, host, host, templates=("chat.jinja", f"{WORKSPACE}/chat.jinja"))
    with pytest.raises(BuildFailedError) as caught:
        check(endpoint, image, host, host, templates=("chat.jinja", "ours.jinja", "/opt/ours.jinja"))
    assert caught.value.message.splitlines() == [
        "check chat-template:",
        "recipes/r.yaml:7:30: the image has no chat template ours.jinja",
        "recipes/r.yaml:7:30: the image has no chat template /opt/ours.jinja",
    ]


@pytest.mark.long
def test_another_platform_is_checked_where_the_machine_runs_it(
    endpoint: Endpoint, make: Make, host: str, foreign: str
) -> None:
    image = make(foreign, broken=1)
    _, messages, _ = check(endpoint, image, foreign, host, contains("tool_call"))
    assert f"vLLM not imported: on an emulated {foreign}" in messages
    with pytest.raises(BuildFailedError, match="lacks 'reasoning'"):
        check(endpoint, image, foreign, host, contains("reasoning"))
    with pytest.raises(BuildFailedError, match=r"contains vLLM 0\.20\.0"):
        check(endpoint, make(foreign, version="0.20.0"), foreign, host)


@pytest.mark.long
def test_another_platform_that_cannot_run_here_is_reported(
    endpoint: Endpoint, make: Make, host: str, foreign: str
) -> None:
    _, messages, _ = check(endpoint, make(foreign, runs=False), foreign, host, contains("reasoning"))
    assert f"checks not run: this engine is {host} and does not emulate {foreign}" in messages


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "is_there"),
    [("a tool_call\n", True), ("tool_call\n", True), ("reasoning\n", False), ("a tool_call\nmore", False)],
)
def test_a_text_of_several_lines_is_one_text(
    endpoint: Endpoint, make: Make, host: str, text: str, is_there: bool
) -> None:
    if is_there:
        assert len(check(endpoint, make(host), host, host, contains(text))) == 2
        return
    with pytest.raises(BuildFailedError, match="chat.jinja lacks"):
        check(endpoint, make(host), host, host, contains(text))


@pytest.mark.long
def test_a_template_that_no_jinja_takes(endpoint: Endpoint, make: Make, host: str) -> None:
    check(endpoint, make(host), host, host, templates=("chat.jinja",))
    with pytest.raises(BuildFailedError) as caught:
        check(endpoint, make(host), host, host, templates=("broken.jinja",))
    told = "check chat-template:\nrecipes/r.yaml:7:30: line 2 of broken.jinja: Encountered unknown tag 'endfi'."
    assert caught.value.message.startswith(told)
