"""Builds with bake, and everything that can end them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuildFailedError, EngineError
from builder.engine import bake_run, images
from builder.engine.bake_run import BakeResult, Material
from builder.engine.build_log import Event, LayersPacked, StepFinished, StepOutput, StepStarted
from builder.engine.client import Endpoint
from builder.plan import making
from tests.engine.conftest import Build, write_build
from tests.engine.relay import Relay
from tests.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator


# Debian's base, and steps that need no network: an engine may have none.
FROM = "FROM debian:bookworm-slim\n"
RUN = "RUN --network=none "


def test_options_that_buildx_reads_as_csv() -> None:
    assert making.csv_field("src=/a b/c") == "src=/a b/c"
    assert making.csv_field('src=/a,b/"c"') == '"src=/a,b/""c"""'


def test_what_was_used_in_both_forms_of_provenance() -> None:
    uri = "pkg:docker/debian@bookworm?platform=linux%2Famd64"
    used = {"uri": uri, "digest": {"sha256": "aa"}}
    expected = (Material(uri, "sha256:aa"),)
    assert bake_run._materials({"buildx.build.provenance": {"materials": [used]}}) == expected
    newer = {"buildDefinition": {"resolvedDependencies": [used, {"uri": "https://x"}]}}
    assert bake_run._materials({"buildx.build.provenance": newer}) == expected
    assert bake_run._materials({}) == ()


@pytest.mark.engine
def test_a_build(endpoint: Endpoint, repository: str, build: Build, tmp_path: Path) -> None:
    events: list[Event] = []
    salt = secrets.token_hex(8)
    baked = build(f"{repository}:1", f"{FROM}{RUN}echo {salt} && echo more >&2\n", on_event=events.append)
    assert baked.id.startswith("sha256:")
    run = next(step for step in baked.steps if "RUN" in step.name)
    assert not run.cached
    (base,) = baked.materials
    assert base.uri.startswith("pkg:docker/debian@bookworm-slim?platform=linux")
    assert base.digest.startswith("sha256:")
    assert {StepStarted, StepFinished, StepOutput} <= {type(event) for event in events}
    log = (tmp_path / "log").read_text()
    number = next(line.split()[0] for line in log.splitlines() if line.endswith(f"echo {salt} && echo more >&2"))
    assert f"{number} {salt}\n" in log
    assert f"{number} DONE " in log
    assert {path.name for path in tmp_path.iterdir()} == {"build", "log"}


@pytest.mark.engine
def test_the_base_is_known_whatever_the_user_wants_in_metadata(repository: str, build: Build) -> None:
    environ = {**os.environ, "BUILDX_METADATA_PROVENANCE": "disabled"}
    (base,) = build(f"{repository}:1", f"{FROM}{RUN}true\n", environ=environ).materials
    assert base.digest.startswith("sha256:")


@pytest.mark.engine
def test_the_bytes_that_are_packed_are_told_while_layers_are_exported(
    endpoint: Endpoint, repository: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bake_run, "_REPORT_SECONDS", 0.01)
    listed = bake_run._packed_sizes
    layers: dict[bytes, int] = {}

    def noted(of: Endpoint) -> Iterator[dict[bytes, int]]:
        for sizes in listed(of):
            layers.update(sizes)
            yield sizes

    monkeypatch.setattr(bake_run, "_packed_sizes", noted)
    events: list[Event] = []
    step = f"{RUN}head -c 150000000 /dev/urandom >/{secrets.token_hex(8)}\n"
    build(f"{repository}:1", FROM + step, on_event=events.append)
    amounts = [event.size for event in events if isinstance(event, LayersPacked)]
    assert amounts
    assert amounts == sorted(set(amounts))
    # Others may build in this engine: the amount includes their layers, and one layer has the size of this one.
    assert 0 < amounts[-1] <= sum(layers.values())
    assert [size for size in layers.values() if 75_000_000 < size < 152_000_000]


@pytest.mark.engine
def test_git_is_not_run_where_a_build_is(
    repository: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would obey the project's repository, which may name programs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(f"#!/bin/sh\necho $* >>{tmp_path}/ran\nexit 1\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    build(f"{repository}:1", f"{FROM}{RUN}true\n")
    assert not (tmp_path / "ran").exists()


@pytest.mark.engine
@pytest.mark.alone  # others may prune the build cache meanwhile
def test_the_same_build_again_is_cached_and_is_the_same_image(
    endpoint: Endpoint, repository: str, build: Build
) -> None:
    dockerfile = f"{FROM}{RUN}echo {secrets.token_hex(8)} > /x\n"
    builds = [build(f"{repository}:{number}", dockerfile) for number in range(3)]
    assert len({baked.id for baked in builds}) == 1
    assert not next(step for step in builds[0].steps if "RUN" in step.name).cached
    assert next(step for step in builds[2].steps if "RUN" in step.name).cached


@pytest.mark.engine
def test_secrets_and_contexts(endpoint: Endpoint, repository: str, build: Build, tmp_path: Path) -> None:
    file = tmp_path / "a, b" / "token"
    file.parent.mkdir()
    file.write_text("from a file")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "one.whl").write_text("a wheel")
    dockerfile = (
        "FROM scratch AS wheels\n"
        f"{FROM}{RUN}--mount=type=secret,id=token --mount=type=secret,id=value,env=VALUE"
        " --mount=type=bind,from=wheels,target=/wheels"
        ' test "$(cat /run/secrets/token) $VALUE $(cat /wheels/one.whl)" = "from a file from the environment a wheel"\n'
    )
    baked = build(
        f"{repository}:1",
        dockerfile,
        secrets=[f"id=token,{making.csv_field(f'src={file}')}", "id=value,env=BUILDER_TEST_VALUE"],
        contexts={"wheels": str(wheels)},
        environ={**os.environ, "BUILDER_TEST_VALUE": "from the environment"},
    )
    assert baked.id


@pytest.mark.engine
def test_a_chain_of_targets_and_several_results(endpoint: Endpoint, repository: str, tmp_path: Path) -> None:
    write_build(
        tmp_path / "build",
        f"{FROM}{RUN}echo {secrets.token_hex(8)} > /base; touch -d @0 /base\n",
        {"Second": "FROM base\nLABEL n=2\n"},
    )
    targets = {
        "base": {"context": "."},
        "second": {"context": ".", "dockerfile": "Second", "contexts": {"base": "target:base"}},
    }
    (tmp_path / "build" / "bake.json").write_text(json.dumps({"target": targets}))

    def run(names: dict[str, str]) -> dict[str, BakeResult]:
        return bake_run.bake_targets(
            endpoint,
            tmp_path / "build",
            names=names,
            log_path=tmp_path / "log",
            on_event=lambda _: None,
            environ=os.environ,
        )

    alone = run({"second": f"{repository}:2"})
    assert images.image_tags(endpoint, [repository]) == {f"{repository}:2": alone["second"].id}
    before = images.inspect_image(endpoint, f"{repository}:2")
    both = run({"base": f"{repository}:1", "second": f"{repository}:2"})
    after = images.inspect_image(endpoint, f"{repository}:2")
    assert before is not None
    assert after is not None
    # A new engine may run a step again, which gives the image another time, and the same content.
    assert images.fingerprint(after) == images.fingerprint(before)
    assert images.image_tags(endpoint, [repository]) == {
        f"{repository}:1": both["base"].id,
        f"{repository}:2": both["second"].id,
    }


@pytest.mark.engine
def test_a_step_that_fails(endpoint: Endpoint, repository: str, build: Build, tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError) as caught:
        build(f"{repository}:1", f"{FROM}{RUN}echo the reason; exit 3\n")
    assert caught.value.message.startswith(
        "the build failed in step `[2/2] RUN --network=none echo the reason; exit 3`"
    )
    assert "with exit code 3\n  the reason" in caught.value.message
    assert caught.value.log == str(tmp_path / "log")
    assert "exit code: 3" in (tmp_path / "log").read_text()
    assert images.inspect_image(endpoint, f"{repository}:1") is None


@pytest.mark.engine
@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        (f"{FROM}RUNX\n", "unknown instruction: RUNX"),
        (f"{FROM}COPY nothing /\n", '"/nothing": not found'),
        ("FROM 127.0.0.1:1/a/b:1\n", "connection refused"),
    ],
)
def test_other_failures(endpoint: Endpoint, repository: str, build: Build, dockerfile: str, message: str) -> None:
    with pytest.raises(BuildFailedError) as caught:
        build(f"{repository}:1", dockerfile)
    assert message in caught.value.message


@pytest.mark.engine
def test_a_target_that_is_not_there(endpoint: Endpoint, repository: str, build: Build) -> None:
    with pytest.raises(BuildFailedError, match=r"target matching 'other'|find target other"):
        build(f"{repository}:1", FROM, target="other")


@pytest.mark.slow
def test_a_display_that_waits_keeps_no_build_waiting(tmp_path: Path) -> None:
    """BuildKit cancels a build whose messages nobody takes, as while a terminal is paused."""
    message = json.dumps({"logs": [{"vertex": "a", "stream": 1, "data": b64encode(b"x" * 60 + b"\n").decode()}]})
    program, written = tmp_path / "buildx", tmp_path / "written"
    more_than_a_pipe_holds = 5000
    lines = f"sys.stderr.write({message!r} + chr(10)) for _ in range({more_than_a_pipe_holds})"
    program.write_text(f"#!{sys.executable}\nimport sys\n[{lines}]\nsys.stderr.flush()\nopen({str(written)!r}, 'w')\n")
    program.chmod(0o755)
    endpoint = Endpoint(f"unix://{tmp_path}/none", (str(program),), "a test")
    seen: list[Event] = []

    def show(event: Event) -> None:
        if not seen:
            until(written.exists, "buildx has written all of it")
        seen.append(event)

    bake_run.run_buildx(endpoint, tmp_path, (), os.environ, tmp_path / "log", show)
    assert len(seen) == more_than_a_pipe_holds


def test_no_buildx(tmp_path: Path) -> None:
    write_build(tmp_path / "build", FROM, {})
    nowhere = Endpoint(f"unix://{tmp_path}/none", (str(tmp_path / "no-buildx"),), "a test")
    with pytest.raises(EngineError, match="no-buildx"):
        bake_run.bake_targets(
            nowhere,
            tmp_path / "build",
            names={"image": "x:1"},
            log_path=tmp_path / "log",
            on_event=lambda _: None,
            environ=os.environ,
        )


@pytest.mark.engine
def test_an_engine_that_stops_during_the_build(
    relay: tuple[Endpoint, Relay], endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    behind, one = relay
    write_build(tmp_path / "build", f"{FROM}{RUN}echo {secrets.token_hex(8)}; sleep 300\n", {})

    def cut(event: Event) -> None:
        if isinstance(event, StepOutput):
            one.cut()

    began = time.monotonic()
    with pytest.raises(EngineError, match="the Docker engine stopped during the build"):
        bake_run.bake_targets(
            behind,
            tmp_path / "build",
            names={"image": f"{repository}:1"},
            log_path=tmp_path / "log",
            on_event=cut,
            environ=os.environ,
        )
    assert time.monotonic() - began < 240


@pytest.mark.engine
def test_an_error_in_the_display_ends_the_build(endpoint: Endpoint, repository: str, build: Build) -> None:
    seconds = unique_sleep()

    def fail(event: Event) -> None:
        if isinstance(event, StepOutput):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build(f"{repository}:1", f"{FROM}{RUN}echo x; sleep {seconds}\n", on_event=fail)
    until(lambda: not processes(f"sleep {seconds}"), "the step ended")


CHILD = """\
import os
import sys
from pathlib import Path
from builder.engine import bake_run
from builder.engine import client
from builder.engine.build_log import StepOutput
def show(event):
    if isinstance(event, StepOutput):
        print("running", flush=True)
try:
    bake_run.bake_targets(client.find_endpoint(os.environ), Path(sys.argv[1]), names={"image": sys.argv[2]},
                      log_path=Path(sys.argv[1]) / "log", on_event=show, environ=os.environ)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


@pytest.mark.engine
@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_interrupted(endpoint: Endpoint, repository: str, tmp_path: Path, whole_group: bool) -> None:
    seconds = unique_sleep()
    with started(tmp_path, repository, seconds) as child:
        os.killpg(child.pid, signal.SIGINT) if whole_group else child.send_signal(signal.SIGINT)
        assert child.stdout
        assert child.stdout.read().splitlines()[-1] == "interrupted"
        assert child.wait(timeout=120) == 130
    until(lambda: not processes(f"sleep {seconds}"), "the step ended")
    assert not processes(f"{repository}:1")
    assert images.inspect_image(endpoint, f"{repository}:1") is None


@pytest.mark.engine
def test_killed(endpoint: Endpoint, repository: str, tmp_path: Path) -> None:
    seconds = unique_sleep()
    with started(tmp_path, repository, seconds) as child:
        assert processes(f"{repository}:1"), "buildx runs"
        child.kill()
        child.wait(timeout=120)
    until(lambda: not processes(f"{repository}:1"), "buildx ended")
    until(lambda: not processes(f"sleep {seconds}"), "the step ended")
    assert images.inspect_image(endpoint, f"{repository}:1") is None


def started(tmp_path: Path, repository: str, seconds: str) -> subprocess.Popen[str]:
    """Starts a build in a process and session of its own; returns once its long and silent step runs."""
    write_build(tmp_path / "build", f"{FROM}{RUN}echo {secrets.token_hex(8)}; sleep {seconds}\n", {})
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "build"), f"{repository}:1"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout
    assert child.stdout.readline() == "running\n"
    until(lambda: bool(processes(f"sleep {seconds}")), "the step runs")
    return child


def unique_sleep() -> str:
    """Returns a number of seconds that no other process sleeps."""
    return f"300.{secrets.randbelow(10**9):09}"


def processes(words: str) -> list[int]:
    """Returns the processes of this machine with these words in their command line, but for shells that start them."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line and "-c " not in line.partition(words)[0]:
            pids.append(int(folder.name))
    return pids
