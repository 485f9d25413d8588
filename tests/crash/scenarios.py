"""The commands that write, each with a bench on which it does its work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from builder.engine import images
from builder.engine.client import Endpoint
from builder.evidence import run_record
from builder.evidence.run_record import Subject
from builder.lock import lock_file, text
from builder.lock.model import ImageName
from tests import fake_ssh, hub_server, locks, projects, safetensors_files, shared, stock, web_server
from tests.conftest import remove_all
from tests.crash.bench import Bench
from tests.crash.trial import Trial
from tests.evidence.runs import proof
from tests.moving.migration import checkouts
from tests.moving.nodes import machine
from tests.sources import git_server

MODEL = locks.MODEL
_MAIN = "refs/heads/main"
_MODS: dict[str, str | bytes | None] = {
    "mods/house/run.sh": "cp house.jinja $WORKSPACE_DIR/house.jinja\n",
    "mods/house/house.jinja": "one\n",
    "recipes/copied.yaml": projects.RECIPE.format(name="copied", model="Org/M", repository="small", mods=["house"]),
}


@dataclass(frozen=True)
class Scenario:
    """A command in the table: its name there, and how a bench for it is set up in a folder. ``engine`` is true where it
    needs one, and ``alone`` where nobody else may use that meanwhile. ``long`` is true where another scenario ends
    the same kind of transaction."""

    name: str
    set_up: Callable[[Bench], Iterator[Trial]]
    engine: bool = False
    alone: bool = False
    long: bool = False

    @contextmanager
    def trial(self, folder: Path, endpoint: Endpoint | None) -> Iterator[Trial]:
        """The command on its bench, until the block ends."""
        repository = shared.unique_name()
        bench = Bench(folder / "bench", endpoint, repository)
        projects.make(bench.project.root, repository)
        projects.with_own_steps(bench.project, repository)
        try:
            yield from self.set_up(bench)
        finally:
            bench.forget()
            if endpoint:
                remove_all(endpoint, repository)


def _on_stock(*arguments: str, before: tuple[str, ...] = ()) -> Callable[[Bench], Iterator[Trial]]:
    """Of numbers 1 to 3, of which a model has the last. In arguments ``R`` is the repository."""

    def set_up(bench: Bench) -> Iterator[Trial]:
        assert bench.endpoint
        stock.stock(bench.project, bench.endpoint, bench.repository, (1, 2, 3), (MODEL,))
        if before:
            bench.must(*_of(bench, before))
        yield Trial(bench, _of(bench, arguments))

    return set_up


def _of(bench: Bench, arguments: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(bench.repository + word[1:] if word == "R" or word.startswith("R:") else word for word in arguments)


def _build(bench: Bench) -> Iterator[Trial]:
    yaml = "description: x\nrun: run.sh\ncheck: [{run: look.sh}]\n"
    projects.add_mod(bench.project.root, "looked", "touch /looked\n", {"look.sh": "test -e /looked\n"}, yaml)
    bench.must("build", "small")
    yield Trial(bench, ("build", "chat", "--mod", "looked"))


def _rebuild(bench: Bench) -> Iterator[Trial]:
    """Number 1 was pruned."""
    assert bench.endpoint
    bench.must("build", "small")
    bench.must("build", "chat")
    name = ImageName(bench.repository, 1)
    lock = lock_file.read_lock(bench.project.lock)
    record = lock.image(name)
    assert record
    pruned = lock.with_image(name, replace(record, pruned="2026-11-20T22:00:00Z"))
    bench.project.lock.write_text(text.dump_lock(pruned), encoding="utf-8")
    images.remove_image(bench.endpoint, str(name))
    yield Trial(bench, ("rebuild", str(name)))


def _import_image(bench: Bench) -> Iterator[Trial]:
    """Number 2 was made by another clone."""
    assert bench.endpoint
    stock.stock(bench.project, bench.endpoint, bench.repository, (1,))
    before = bench.project.lock.read_bytes()
    stock.stock(bench.project, bench.endpoint, bench.repository, (1, 2))
    file = bench.root.with_name("two.tar")
    _prove(bench, 2)
    _prove(bench, 2, "fail")
    bench.must("export-image", f"{bench.repository}:2", str(file))
    shutil.rmtree(bench.project.evidence)
    bench.project.lock.write_bytes(before)
    images.remove_image(bench.endpoint, f"{bench.repository}:2")
    images.tag_image(bench.endpoint, f"{bench.repository}:1", f"{bench.repository}:latest")
    yield Trial(bench, ("import-image", str(file)))


def _export_image(bench: Bench) -> Iterator[Trial]:
    assert bench.endpoint
    stock.stock(bench.project, bench.endpoint, bench.repository, (1,))
    yield Trial(bench, ("export-image", f"{bench.repository}:1", str(bench.project.root / "one.tar"), "--force"))


def _adopt(bench: Bench) -> Iterator[Trial]:
    assert bench.endpoint
    stock.stock(bench.project, bench.endpoint, bench.repository, (1,), (MODEL,))
    stock.load(bench.endpoint, f"{bench.repository}-theirs:x", [{"file": b"theirs\n"}])
    arguments = ("adopt", f"{bench.repository}-theirs:x", "--as", bench.repository)
    try:
        yield Trial(bench, arguments)
    finally:
        remove_all(bench.endpoint, f"{bench.repository}-theirs")


def _recover(bench: Bench) -> Iterator[Trial]:
    bench.must("build", "small")
    bench.must("build", "chat")
    bench.project.lock.unlink()
    yield Trial(bench, ("lock", "--recover"))


def _renumber(bench: Bench) -> Iterator[Trial]:
    """A merge in conflict: two branches built number 2, each with a mod of its own; the engine has that of theirs."""
    assert bench.endpoint
    root, repository = bench.project.root, bench.repository
    projects.write(root / ".gitignore", ".builder/\n.images.lock.*\n")
    for side in ("ours", "theirs"):
        projects.add_mod(root, side, f"echo {side} > /side\n", {})
    checkouts.git(root, "init", "--quiet", "--initial-branch=ours")
    bench.must("build", "small")
    _commit(root)
    for side in ("ours", "theirs"):
        if side == "theirs":
            checkouts.git(root, "checkout", "--quiet", "-b", side, "HEAD~1")
        bench.must("build", "small", "--mod", side, "--model", f"m/{side}")
        _prove(bench, 2)
        _prove(bench, 2, "fail")
        images.tag_image(bench.endpoint, f"{repository}:2", f"{repository}-{side}:2")
        images.remove_image(bench.endpoint, f"{repository}:2")
        bench.set_free(2)  # the other branch was built on another machine
        _commit(root)
    checkouts.git(root, "checkout", "--quiet", "ours")
    with suppress(subprocess.CalledProcessError):
        checkouts.git(root, "merge", "--quiet", "theirs")
    images.tag_image(bench.endpoint, f"{repository}-theirs:2", f"{repository}:2")
    try:
        yield Trial(bench, ("lock", "--merge"))
    finally:
        for side in ("ours", "theirs"):
            remove_all(bench.endpoint, f"{repository}-{side}")


def _prove(bench: Bench, number: int, verdict: str = "pass") -> None:
    """A run of a number, by the content that it has now."""
    name = ImageName(bench.repository, number)
    record = lock_file.read_lock(bench.project.lock).image(name)
    assert record
    run = proof(verdict, subject=Subject(str(name), record.fingerprint, MODEL))
    run_record.add_run(bench.project, name, run)


def _commit(root: Path) -> None:
    checkouts.git(root, "add", "--all")
    checkouts.git(root, "commit", "--quiet", "--message=x")


def _lock(bench: Bench) -> Iterator[Trial]:
    yield Trial(bench, ("lock", "small"))


def _mods_add(bench: Bench) -> Iterator[Trial]:
    with _served(bench) as (url, _):
        yield Trial(bench, ("mods", "add", f"{url}//mods/house"))


def _mods_update(bench: Bench) -> Iterator[Trial]:
    with _served(bench) as (url, repository):
        bench.must("mods", "add", f"{url}//mods/house")
        repository.commit(_MAIN, "A change", {"mods/house/house.jinja": "two\n", "mods/house/more.txt": "more\n"})
        yield Trial(bench, ("mods", "update", "house", "--yes"))


def _recipes_add(bench: Bench) -> Iterator[Trial]:
    with _served(bench) as (url, _):
        yield Trial(bench, ("recipes", "add", f"{url}//recipes/copied.yaml", "--with-mods"))


@contextmanager
def _served(bench: Bench) -> Iterator[tuple[str, git_server.Repository]]:
    folder = bench.root.with_name("served")
    repository = git_server.make_repository(folder / "community.git")
    with git_server.serve(folder) as server:
        repository.commit(_MAIN, "Start", _MODS)
        yield f"{server.url}/community.git", repository


def _mods_pin(bench: Bench) -> Iterator[Trial]:
    with web_server.serving() as web:
        web.files["/a.jinja"] = b"a\n"
        yaml = f"description: x\nfiles:\n  - from: {web.url}/a.jinja\n    to: .\n"
        projects.write(bench.project.mods / "m/mod.yaml", yaml)
        yield Trial(bench, ("mods", "pin", "m"))


def _mods_new(bench: Bench) -> Iterator[Trial]:
    yield Trial(bench, ("mods", "new", "fresh"), codes=(0, 2))


def _download(bench: Bench) -> Iterator[Trial]:
    with hub_server.serve() as hub:
        hub.add(MODEL, {"config.json": b"{}", "model.safetensors": b"w" * 5000})
        bench.variables = {"HF_ENDPOINT": hub.url}
        yield Trial(bench, ("download", MODEL))


def _checkpoints_build(bench: Bench) -> Iterator[Trial]:
    """Of two files of weights into the cache, where an earlier revision has one of them as well."""
    source = bench.root.with_name("source")
    shards: dict[str, safetensors_files.Specification] = {
        "model-00001-of-00002.safetensors": {"first.weight": ("BF16", [16, 16]), "first.norm": ("F32", [16])},
        "model-00002-of-00002.safetensors": {"second.weight": ("BF16", [16, 16])},
    }
    safetensors_files.write(source, safetensors_files.files(shards))
    definition = bench.project.root / "checkpoints/small/checkpoint.yaml"
    text = f"description: x\nmodel: Org/M\nsources: {{all: {{folder: {source}}}}}\nsteps:\n  - take: all\n"
    projects.write(definition, text)
    bench.must("checkpoints", "build", "small")
    projects.write(definition, f"{text}    rename: {{second.weight: third.weight}}\n")
    yield Trial(bench, ("checkpoints", "build", "small"))


def _export(bench: Bench) -> Iterator[Trial]:
    locks.write(bench.project, (1, 2), 2, 2)
    yield Trial(bench, ("export", MODEL, "--format", "compose", "--output", str(bench.project.root / "compose.yaml")))


def _migrate(bench: Bench) -> Iterator[Trial]:
    theirs = checkouts.cloned(bench.root.with_name("theirs"))
    projects.write(theirs / ".env", "CONTAINER_NCCL_DEBUG=INFO\n")
    shutil.rmtree(bench.project.mods)
    shutil.rmtree(bench.project.recipes)
    yield Trial(bench, ("migrate", str(theirs), "--no-adopt", "--yes"))


def _nodes_discover(bench: Bench) -> Iterator[Trial]:
    folder = bench.root.with_name("machines")
    bench.variables = fake_ssh.make(folder / "bin", folder / "far")
    bench.variables |= machine.network(folder / "other", machine.PAIR, {"enp1s0f1np1": "10.0.0.2/24"})
    bench.variables["FAKE_PATH"] = f"{folder}/other/bin:{bench.environ['PATH']}"
    projects.write(bench.project.root / "builder.yaml", "nodes:\n  two: ssh://me@two\n")
    yield Trial(bench, ("nodes", "discover", "--yes"))


def _init(bench: Bench) -> Iterator[Trial]:
    for folder in (bench.project.dockerfiles, bench.project.mods, bench.project.recipes):
        shutil.rmtree(folder)
    yield Trial(bench, ("init", "--minimal"))


def _init_update(bench: Bench) -> Iterator[Trial]:
    yield Trial(bench, ("init", "--update", "--cpu", "--yes"))


SCENARIOS = (
    Scenario("init", _init),
    Scenario("init --update", _init_update),
    Scenario("build", _build, engine=True),
    Scenario("rebuild", _rebuild, engine=True, long=True),
    Scenario("rollback MODEL", _on_stock("rollback", MODEL, "--to", "2"), engine=True),
    Scenario("rollback RECIPE", _on_stock("rollback", "recipes/chat.yaml", "--to", "2"), engine=True, long=True),
    Scenario("promote", _on_stock("promote", "R:1"), engine=True, long=True),
    Scenario("pair", _on_stock("pair", MODEL, "R:1"), engine=True, long=True),
    Scenario("mark", _on_stock("mark", "R:2", "bad", "--note", "slow"), engine=True),
    Scenario("keep", _on_stock("keep", "R:1"), engine=True, long=True),
    Scenario("release", _on_stock("release", "R:1", before=("keep", "R:1")), engine=True, long=True),
    Scenario("prune", _on_stock("prune", "--keep", "1", "--yes"), engine=True, alone=True),
    Scenario("adopt", _adopt, engine=True, long=True),
    Scenario("export-image", _export_image, engine=True),
    Scenario("import-image", _import_image, engine=True),
    Scenario("lock", _lock, engine=True),
    Scenario("lock --recover", _recover, engine=True, long=True),
    Scenario("lock --merge", _renumber, engine=True, long=True),
    Scenario("mods add", _mods_add),
    Scenario("mods update", _mods_update),
    Scenario("mods pin", _mods_pin),
    Scenario("mods new", _mods_new),
    Scenario("recipes add", _recipes_add),
    Scenario("download", _download),
    Scenario("checkpoints build", _checkpoints_build),
    Scenario("export", _export),
    Scenario("migrate", _migrate),
    Scenario("nodes discover", _nodes_discover),
)
