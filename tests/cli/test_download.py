"""The download command, and `list --models` after it, as a user runs them; the hub answers over HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.lock import lock_file, text
from tests import fake_ssh, hub_server, json_outputs, locks, program, projects
from tests.conftest import command
from tests.hub_server import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow

MODEL = locks.MODEL
CACHED = "models--Org--Model-1B"
# More than one of the pieces in which huggingface_hub reads.
WEIGHTS = random.Random(7).randbytes(21_000_000)  # noqa: S311
FILES = {"config.json": b"{}", "sub/tokenizer.json": b"[1]", "model.safetensors": WEIGHTS}
# `printf '{}' | git hash-object --stdin`
SMALL_ID = "9e26dfeeb6e641a33dae4961196235bdb965b21b"
SMALL = {"config.json": b"{}", "model.safetensors": b"w" * 5000}


@dataclass(frozen=True)
class Machine:
    """A user's machine: a project, a home, and the hub that they reach."""

    project: Project
    home: Path
    hub: Hub

    @property
    def cache(self) -> Path:
        return self.home / ".cache/huggingface/hub"

    @property
    def model(self) -> Path:
        return self.cache / CACHED

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
        return {**kept, "HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "DOCKER_HOST": "tcp://127.0.0.1:9"}

    def run(self, *arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = program.run(command(self.project, *arguments), env={**self.environ, **environ})
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def refuse(self, *arguments: str, code: int = 6, **environ: str) -> str:
        """The error of a command that fails."""
        return self.run("download", *arguments, code=code, **environ).stderr


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    project = projects.make(tmp_path / "project")
    (tmp_path / "home").mkdir()
    with hub_server.serve() as hub:
        yield Machine(project, tmp_path / "home", hub)


def content(machine: Machine, commit: str) -> dict[str, bytes]:
    """The files of a snapshot in the cache."""
    folder = machine.model / "snapshots" / commit
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def add_to_recipe(machine: Machine, line: str) -> None:
    path = machine.project.recipes / "chat.yaml"
    path.write_text(path.read_text().replace("container:", f"{line}\ncontainer:"))


def test_a_model_comes_whole_and_once(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, FILES)
    done = machine.run("download", "chat")
    assert content(machine, commit) == FILES
    assert (machine.model / "refs/main").read_text() == commit
    link = machine.model / "snapshots" / commit / "model.safetensors"
    assert str(link.readlink()).startswith("../../blobs/")
    assert f"downloading {MODEL} at main ({commit[:7]}): 3 files, 21.0 MB" in done.stderr
    assert f"{MODEL}: 100 % of 21.0 MB" in done.stderr
    assert f"{MODEL} at {commit[:7]}: 21.0 MB in " in done.stdout
    assert str(machine.model / "snapshots" / commit) in done.stdout
    machine.hub.requests.clear()
    assert "already here" in machine.run("download", "chat").stdout
    assert not [request for request in machine.hub.requests if "/resolve/" in request.path]


def test_of_a_model_with_quantizations_comes_the_one_that_is_named(machine: Machine) -> None:
    names = ("m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "Q8_0/m-q8_0.gguf", "m-IQ4_K_M.gguf", "config.json")
    commit = machine.hub.add(MODEL, {name: name.encode() for name in names})
    assert f"{MODEL}:Q4_K_M at {commit[:7]}" in machine.run("download", f"{MODEL}:Q4_K_M").stdout
    assert set(content(machine, commit)) == {"m-Q4_K_M.gguf", "config.json"}
    machine.run("download", f"{MODEL}:Q8_0")
    assert set(content(machine, commit)) == set(names) - {"m-IQ4_K_M.gguf"}
    told = machine.refuse(f"{MODEL}:Q5_K_M")
    assert f"{MODEL} has no file with the quantization Q5_K_M" in told
    assert "m-IQ4_K_M.gguf" in told


def test_huggingface_hub_finds_it_without_the_hub(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, SMALL)
    machine.run("download", MODEL)
    script = f"import huggingface_hub; print(huggingface_hub.snapshot_download({MODEL!r}))"
    argv = [command(machine.project)[0], "-c", script]
    process = subprocess.run(argv, capture_output=True, text=True, env={**machine.environ, "HF_HUB_OFFLINE": "1"})
    assert process.stdout.strip() == str(machine.model / "snapshots" / commit), process.stderr


def test_a_draft_model_comes_along(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    draft = machine.hub.add("Org/Draft", SMALL)
    add_to_recipe(machine, "draft_model: Org/Draft")
    assert f"Org/Draft at {draft[:7]}" in machine.run("download", "recipes/chat.yaml").stdout
    assert (machine.cache / "models--Org--Draft/snapshots" / draft / "config.json").is_file()


def test_which_revision_is_meant(machine: Machine) -> None:
    first, second = machine.hub.add(MODEL, SMALL), machine.hub.add(MODEL, {"a": b"tagged"}, ref="v1")
    third = machine.hub.add(MODEL, {"a": b"newest"})
    locks.write(machine.project, (1,), current=1, paired=1)
    lock = machine.project.lock
    recorded = lock_file.read_lock(lock)
    model = recorded.models[MODEL]
    paired = replace(model, pairing=replace(model.pairing, revision=first))
    lock.write_text(text.dump_lock(recorded.with_model(MODEL, paired)))
    # As it was paired, where nobody says anything else; and what is loaded without asking the hub.
    machine.run("download", MODEL)
    assert [path.name for path in (machine.model / "snapshots").iterdir()] == [first]
    assert (machine.model / "refs/main").read_text() == first
    # As the recipe says.
    add_to_recipe(machine, "model_revision: v1")
    machine.run("download", "chat")
    assert content(machine, second) == {"a": b"tagged"}
    assert (machine.model / "refs/v1").read_text() == second
    assert (machine.model / "refs/main").read_text() == first
    # As the user says.
    machine.run("download", "chat", "--revision", "main")
    assert (machine.model / "refs/main").read_text() == third
    assert lock.read_text().count(first) == 1


def test_a_pairing_without_a_revision_gets_it(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, SMALL)
    locks.write(machine.project, (1,), current=1, paired=1)
    assert f"paired at revision {commit[:7]}" in machine.run("download", MODEL).stderr
    assert f"revision: {commit}" in machine.project.lock.read_text()


def test_a_lost_connection_is_taken_up_again(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, FILES)
    machine.hub.break_after = 11_000_000
    machine.run("download", "chat")
    assert content(machine, commit) == FILES
    whole, rest = machine.hub.got("model.safetensors")
    assert (whole, rest) == (None, "bytes=10485760-")


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_download_goes_on(machine: Machine, how: signal.Signals) -> None:
    commit = machine.hub.add(MODEL, {"a": b"old"})
    machine.run("download", "chat")
    commit = machine.hub.add(MODEL, FILES)
    machine.hub.stall_after = 11_000_000
    process = subprocess.Popen(
        command(machine.project, "download", "chat"), env=machine.environ, stderr=subprocess.PIPE, text=True
    )
    assert machine.hub.stalled.wait(120)
    partial = _until_written(machine)
    process.send_signal(how)
    _, output = process.communicate(timeout=120)
    assert process.returncode == (-9 if how is signal.SIGKILL else 130), output
    assert "Traceback" not in output
    # The old model is what `main` means until the new one is whole.
    assert (machine.model / "refs/main").read_text() != commit
    row = json.loads(_listed(machine, "--json"))["models"][0]
    assert (row["cached"], row["cached_size"] >= partial.stat().st_size) == (False, True)
    assert ", incomplete" in _listed(machine)
    machine.hub.stall_after = None
    done = machine.run("download", "chat")
    assert "10.5 MB of it already here" in done.stderr
    assert machine.hub.got("model.safetensors") == [None, "bytes=10485760-"]
    assert content(machine, commit) == FILES
    assert not list((machine.model / "blobs").glob("*.incomplete"))


def test_for_programs(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, SMALL)
    done = machine.run("download", "chat", "--json")
    (model,) = json_outputs.parsed("download", done.stdout)["models"]
    assert (model["model"], model["commit"]) == (MODEL, commit)
    assert model["size"] == model["fetched_bytes"] == sum(map(len, SMALL.values()))
    assert f"downloading {MODEL}" in done.stderr
    (again,) = json_outputs.parsed("download", machine.run("download", "chat", "--json").stdout)["models"]
    assert (again["folder"], again["fetched_bytes"]) == (model["folder"], 0)
    failed = machine.run("download", "nothing", "--json", code=2)
    assert (failed.stdout, failed.stderr.partition(":")[0]) == ("", "error")


def test_parts_of_files_that_are_whole_go(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.run("download", "chat")
    blobs = machine.model / "blobs"
    left = [blob.with_name(f"{blob.name}.0badf00d.incomplete") for blob in blobs.iterdir()]
    wanted_by_another = blobs / f"{'0' * 64}.0badf00d.incomplete"
    for part in (*left, wanted_by_another):
        part.write_bytes(b"part")
    machine.run("download", "chat")
    assert left
    assert list(blobs.glob("*.incomplete")) == [wanted_by_another]


def test_a_terminal_shows_how_much_is_there(machine: Machine) -> None:
    machine.hub.add(MODEL, FILES)
    outer, inner = os.openpty()
    with subprocess.Popen(
        command(machine.project, "download", "chat"),
        env={**machine.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=inner,
        text=True,
    ) as process:
        os.close(inner)
        shown = b"".join(_read_all(outer)).decode()
        assert process.wait() == 0, shown
    assert "downloading Org/Model-1B at main" in shown
    assert "of 21.0 MB" in shown
    assert "100 % of" not in shown


def _read_all(descriptor: int) -> Iterator[bytes]:
    """The output of a terminal until its last writer is gone, which Linux reports as EIO."""
    with suppress(OSError):
        while read := os.read(descriptor, 65536):
            yield read
    os.close(descriptor)


def test_models_go_on_to_nodes(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, SMALL)
    there = machine.home / "there"
    environ = fake_ssh.make(machine.home / "bin", there)
    projects.write(machine.project.root / "builder.yaml", "nodes: {spark2: 'ssh://ann@spark2', spark3: 'tcp://b:1'}\n")
    assert "builder.yaml has no node `spark9`" in machine.refuse("chat", "--to", "spark9", code=2)
    assert "models are copied over ssh" in machine.refuse("chat", "--to", "spark3", code=2)
    assert machine.hub.requests == []
    done = machine.run("download", "chat", "--to", "spark2", code=0, **environ)
    assert f"copying {MODEL} to spark2" in done.stderr
    assert done.stdout.splitlines()[-1] == "copied to spark2"
    copied = there / ".cache/huggingface/hub" / CACHED
    assert (copied / "snapshots" / commit / "model.safetensors").read_bytes() == SMALL["model.safetensors"]


def _until_written(machine: Machine) -> Path:
    """The part of the weights that is there, once it is as long as the hub lets it become."""
    partial = machine.model / "blobs" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete"
    for _ in range(6000):
        if partial.exists() and partial.stat().st_size == 10_485_760:
            return partial
        time.sleep(0.02)
    raise AssertionError("nothing was written")


def _listed(machine: Machine, *arguments: str) -> str:
    locks.write(machine.project, (1,), current=1, paired=1)
    return machine.run("list", "--models", *arguments).stdout


def test_other_content_is_refused_and_not_kept(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.hub.changes["model.safetensors"] = b"x" * 5000
    listed = hashlib.sha256(SMALL["model.safetensors"]).hexdigest()
    process = hashlib.sha256(b"x" * 5000).hexdigest()
    output = machine.refuse("chat")
    assert f"the content has the id {process}, but the hub lists {listed}" in output
    assert not list(machine.model.glob(f"blobs/{listed}*"))
    assert not (machine.model / "refs").exists()
    machine.hub.changes.clear()
    machine.run("download", "chat")


def test_other_content_of_a_small_file_is_refused_too(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.hub.changes["config.json"] = b"[]"
    assert f"the hub lists {SMALL_ID}" in machine.refuse("chat")
    assert not list(machine.model.glob(f"blobs/{SMALL_ID}*"))
    machine.hub.changes.clear()
    machine.run("download", "chat")
    assert (machine.model / "blobs" / SMALL_ID).read_bytes() == SMALL["config.json"]


def test_a_mirror_that_lists_no_ids_is_left_to_huggingface_hub(machine: Machine) -> None:
    machine.hub.hides_ids = True
    commit = machine.hub.add(MODEL, FILES)
    machine.run("download", "chat")
    assert content(machine, commit) == FILES


def test_too_large_for_the_disk(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.hub.claims["model.safetensors"] = 10**15
    output = machine.refuse("chat")
    assert f"{MODEL}: the download needs 1000.0 TB, but " in output
    assert " GB free" in output
    assert "HF_HOME" in output
    assert machine.hub.got("config.json") == []


def test_a_stored_token_that_the_hub_refuses(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.hub.token = "hf_right"
    projects.write(machine.home / ".cache/huggingface/token", "hf_stored")
    # A process of its own: huggingface_hub finds the file when it is imported.
    argv = command(machine.project, "download", "chat")
    done = subprocess.run(argv, env=machine.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "refuses the token" in done.stderr
    assert "/settings/tokens), or log in again: `hf auth login`" in " ".join(done.stderr.split())
    assert "hf_stored" not in done.stderr


def test_a_gated_model(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL, gated=True)
    machine.hub.token = "hf_right"
    output = machine.refuse("chat")
    assert f"{MODEL} is gated: " in output
    assert f"accept the terms at {machine.hub.url}/{MODEL}" in output
    assert "then set HF_TOKEN to a token of that account" in output
    output = machine.refuse("chat", HF_TOKEN="hf_wrong")
    assert "refuses the token" in output
    assert "/settings/tokens), or unset it" in output
    assert "hf_wrong" not in output
    done = machine.run("download", "chat", "--verbose", HF_TOKEN="hf_right", HF_DEBUG="1")
    assert "hf_right" not in done.stdout + done.stderr
    assert not [path for path in machine.home.rglob("*") if path.is_file() and b"hf_right" in path.read_bytes()]
    assert {request.authorization for request in machine.hub.requests if "/resolve/" in request.path} >= {
        "Bearer hf_right"
    }
    # The hub redirects to another host for the weights, which is not to have the token.
    assert [each.authorization for each in machine.hub.requests if each.path.startswith(hub_server.STORE)] == [None]


def test_what_the_hub_does_not_have(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    assert f"{MODEL} has no revision `v9`" in machine.refuse("chat", "--revision", "v9")
    assert f"{MODEL} has no revision `../../x`" in machine.refuse("chat", "--revision", "../../x")
    output = machine.refuse("Org/Unknown")
    assert f"{machine.hub.url} has no model `Org/Unknown`" in output
    assert "if the model is private, set HF_TOKEN" in output


def test_a_hub_that_does_not_work(machine: Machine) -> None:
    machine.hub.status = 400
    assert f"{machine.hub.url} answers 400" in machine.refuse("chat")
    output = machine.refuse("chat", HF_ENDPOINT="http://ann:pass@127.0.0.1:9/")
    assert "http://127.0.0.1:9 does not answer" in output
    assert "HF_ENDPOINT" in output
    assert "pass" not in output
    assert "HF_ENDPOINT is not an address: Invalid IPv6 URL" in machine.refuse("chat", code=2, HF_ENDPOINT="http://[x")


@pytest.mark.parametrize("name", ["../../../evil", "/evil", "evil\0", "evil\ud800", f"evil/{'e' * 256}"])
def test_names_that_would_leave_the_cache_are_refused(machine: Machine, name: str) -> None:
    machine.hub.add(MODEL, {name: b"e" * 5000})
    assert f"a file with an unsafe name: {name!r}"[:60] in machine.refuse("chat")
    assert not list(machine.home.rglob("evil"))


def test_offline_takes_what_is_here(machine: Machine) -> None:
    commit = machine.hub.add(MODEL, SMALL)
    output = machine.refuse("chat", HF_HUB_OFFLINE="1")
    assert f"HF_HUB_OFFLINE is set, and the cache does not hold {MODEL} at `main`" in output
    machine.run("download", "chat")
    machine.hub.requests.clear()
    done = machine.run("download", "chat", HF_HUB_OFFLINE="1")
    assert f"{MODEL} at {commit[:7]}: already here" in done.stdout
    assert machine.hub.requests == []


def test_what_cannot_be_downloaded(machine: Machine) -> None:
    assert "`small` is an image definition" in machine.refuse("small", code=2)
    assert "`chta` is not a model, definition, repository or recipe" in machine.refuse("chta", code=2)
    path = machine.project.recipes / "chat.yaml"
    path.write_text(path.read_text().replace(f"model: {MODEL}\n", "").replace(MODEL, "/models/mine"))
    assert "/models/mine is a folder, not a model on Hugging Face" in machine.refuse("chat", code=2)
    path.write_text(path.read_text().replace("vllm serve /models/mine", "python -m server"))
    assert "recipes/chat.yaml names no model" in machine.refuse("chat", code=2)
    assert machine.hub.requests == []


def test_list_says_what_is_here(machine: Machine) -> None:
    assert _listed(machine).splitlines() == [
        "MODEL             IMAGE    STATUS    NOTE",
        "Org/Model-1B      small:1  unmarked  -",
        "  not downloaded",
    ]
    row = json.loads(_listed(machine, "--json"))["models"][0]
    assert (row["cached"], row["cached_size"], row["cached_revision"]) == (False, None, None)
    commit = machine.hub.add(MODEL, SMALL)
    machine.run("download", MODEL)
    assert _listed(machine).splitlines()[2] == f"  5.0 kB at {commit[:7]}"
    row = json.loads(_listed(machine, "--json"))["models"][0]
    assert (row["cached"], row["cached_size"], row["cached_revision"]) == (True, 5002, commit)


def test_list_does_not_import_huggingface_hub(machine: Machine) -> None:
    machine.hub.add(MODEL, SMALL)
    machine.run("download", MODEL)
    locks.write(machine.project, (1,), current=1, paired=1)
    argv, environ = command(machine.project, "list", "--models"), {**machine.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    output = subprocess.run(argv, capture_output=True, text=True, env=environ).stderr
    assert "builder.base.hub_cache" in output
    assert not [name for name in ("huggingface_hub", "httpx2", "builder.sources") if name in output]
