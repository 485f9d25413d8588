"""A bisection that builds the next candidates while one is tried, beside the same one that does not."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from benchmarks.measuring import Row, Table, once, run
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.sandbox import Sandbox
    from builder.base.project import Project


_PLACES, _PLANTED = 16, 10
_BUILD_SECONDS, _JUDGE_SECONDS = 8, 10
_WITHOUT = """\
import sys
from builder.commands import bisect_trying
bisect_trying.CandidatesAhead.ahead = lambda *_: None
from builder.cli.main import run_program
sys.exit(run_program(sys.argv[1:]))
"""
_JUDGE = """\
sleep {seconds}
! docker run --rm "$BUILDER_IMAGE" grep -q '^new' /workspace/vllm/{planted}
"""


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures both in turn; each run has a project of its own, of which nothing is in BuildKit's cache."""
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(_search(sandbox, ["-m", "builder"]))
        theirs.append(_search(sandbox, ["-c", _WITHOUT]))
    yield Table(
        "Looking for what broke it",
        f"`bisect` for one of {_PLACES} mods. A candidate's build waits {_BUILD_SECONDS} seconds, a verdict "
        f"{_JUDGE_SECONDS}, and each end is tried three times; all else is the real engine's.",
        [Row("the next two candidates are built meanwhile", ours, "each is built when it is needed", theirs)],
    )


def _search(sandbox: Sandbox, program: list[str]) -> float:
    name = f"bisect-{secrets.token_hex(3)}"
    project = sandbox.project(name)
    judge = project.root / "judge.sh"
    projects.write(judge, "#!/bin/sh\n" + _JUDGE.format(seconds=_JUDGE_SECONDS, planted=_PLANTED))
    judge.chmod(0o755)
    for word in ("old", "new"):
        mods = _write_mods(project, name, word)
        sandbox.builder(project, "build", "small", *(argument for mod in mods for argument in ("--mod", mod)))
    arguments = ["bisect", "small", "--good", "1", "--run", str(judge), "--no-serve"]
    argv = [sys.executable, *program, "--project", str(project.root), *arguments]
    return once(lambda: run(argv, project.root, {"PYTHONPATH": str(projects.REPOSITORY_ROOT)}))


def _write_mods(project: Project, name: str, word: str) -> list[str]:
    """Mods whose files differ, and a last one that is the same and takes its time."""
    mods = [f"place-{number:02}" for number in range(_PLACES)]
    for number, mod in enumerate(mods):
        script = f'cp file "$WORKSPACE_DIR/{number}"\n'
        projects.add_mod(project.root, mod, script, {"file": f"{word} {name}\n"})
    script = f'sleep {_BUILD_SECONDS}\ncp file "$WORKSPACE_DIR/waited"\n'
    projects.add_mod(project.root, "waiting", script, {"file": f"{name}\n"})
    return [*mods, "waiting"]
