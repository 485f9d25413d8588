"""Programs of others: they end as they do by themselves, and nothing that they started stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.base import events
from builder.base.errors import FileProblemsError, MeasuringError, UsageError
from builder.base.project import Project
from builder.definitions import configuration
from builder.lab.measure import own_script
from builder.lab.measure.measurement import Outcome, ServedModel
from builder.lab.measure.own_script import EndedProcess
from tests import processes, projects

# A server that is started in the background, and notes its process.
DAEMON = "sh -c 'echo $$ >> pids; trap \"\" TERM; exec sleep 600' & while ! test -s pids; do sleep 0.02; done"


def run(folder: Path, text: str, seconds: float = 600) -> EndedProcess:
    return own_script.run_bounded(["sh", "-c", text], folder=folder, environ=os.environ, seconds=seconds)


def has_noted(folder: Path) -> bool:
    """True once a program has noted its process."""
    return (folder / "pids").exists() and (folder / "pids").stat().st_size > 0


def until_all_gone(folder: Path) -> None:
    """Waits until every process that was noted has ended."""
    pids = [int(word) for word in (folder / "pids").read_text().split()]
    assert pids
    processes.until(lambda: all(map(processes.is_gone, pids)), "what was started has ended")


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 125", 125), ("kill -9 $$", -9), ("kill $$", -15)])
def test_it_ends_as_the_program_did(tmp_path: Path, text: str, code: int) -> None:
    ended = run(tmp_path, f"echo out; echo err >&2; {text}")
    assert (ended.exit_code, ended.cause, ended.output, ended.messages) == (code, "itself", b"out\n", b"err\n")


@pytest.mark.slow
def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    ended = run(tmp_path, f"{DAEMON}; echo done")
    assert (ended.exit_code, ended.output) == (0, b"done\n")
    until_all_gone(tmp_path)


@pytest.mark.slow
def test_what_it_started_ends_when_its_time_is_up(tmp_path: Path) -> None:
    for seconds in processes.GROWING:
        assert run(tmp_path, f"{DAEMON}; sleep 600", seconds).cause == "time"
        if has_noted(tmp_path):
            break
    until_all_gone(tmp_path)


@pytest.mark.slow
def test_it_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    call = "import os; from pathlib import Path; from builder.lab.measure import own_script; "
    call += "import sys; own_script.run_bounded(['sh', '-c', 'echo $$ > pids; exec sleep 600'], "
    call += "folder=Path(sys.argv[1]), environ=os.environ, seconds=600)"
    with subprocess.Popen([sys.executable, "-c", call, str(tmp_path)]) as process:
        processes.until(lambda: has_noted(tmp_path), "the program notes its process")
        process.send_signal(signal.SIGKILL)
    until_all_gone(tmp_path)


@pytest.mark.slow
def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    ended = own_script.run_bounded(["./missing"], folder=tmp_path, environ=os.environ, seconds=120)
    assert (ended.exit_code, "./missing: No such file or directory" in ended.last_lines) == (127, True)
    projects.write(tmp_path / "here", "#!/bin/sh\nexit 3\n")
    (tmp_path / "here").chmod(0o755)
    assert own_script.run_bounded(["./here"], folder=tmp_path, environ=os.environ, seconds=120).exit_code == 3


# A project's own probes: everything that a script can do wrong is a failure that says so.

SERVED = ServedModel("http://127.0.0.1:9/v1", "org/model", 4096)
SCORE = {"score": {"unit": "ratio", "better": "higher"}}


def write(project: Project, script: str, **more: object) -> None:
    projects.write(project.root / "probes/mine/check.py", script)
    content = {"command": ["python3", "check.py", "{address}"], **more}
    projects.write(project.root / "probes/mine/probe.yaml", json.dumps(content))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def probed(project: Project, script: str, **more: object) -> Outcome:
    write(project, script, **more)
    return own_script.run_own_probe(
        SERVED, configuration.load_probe(project, "mine"), {**os.environ, "HF_TOKEN": "hf_secret"}, events.ignore
    )


def reasons(outcome: Outcome) -> set[str]:
    return {finding.text for finding in outcome.findings}


@pytest.mark.slow
def test_a_script_gets_the_address_and_no_token_and_passes(project: Project) -> None:
    script = """\
import os, sys
assert sys.argv[1] == os.environ["BUILDER_ADDRESS"] == "http://127.0.0.1:9/v1"
assert os.environ["BUILDER_MODEL"] == "org/model" and os.environ["BUILDER_CONTEXT"] == "4096"
assert "HF_TOKEN" not in os.environ
"""
    done = probed(project, script)
    assert (done.verdict, done.counts) == ("pass", {"runs": 4, "failed": 0})


@pytest.mark.slow
def test_figures_that_agree_are_measured_a_few_times(project: Project) -> None:
    done = probed(project, 'print("busy"); print(\'{"score": 0.93, "other": 1}\')', figures=SCORE)
    (figure,) = done.figures
    assert (figure.name, figure.unit, figure.better, figure.values) == ("score", "ratio", "higher", (0.93,) * 4)


@pytest.mark.slow
def test_figures_that_spread_are_measured_more_often(project: Project) -> None:
    script = """\
import json, pathlib
runs = pathlib.Path("runs")
count = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (count + 1))
print(json.dumps({"score": 1 + count % 2}))
"""
    done = probed(project, script, figures=SCORE)
    assert done.verdict == "pass"
    assert len(done.figures[0].values) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit('no such answer')", "no such answer"),
        ("raise SystemExit(2)", "it ended with exit code 2, which is not 0, 1 or 125"),
        ("import os; os.kill(os.getpid(), 9)", "it ended by signal 9, which is not 0, 1 or 125"),
        ("print('{\"score\": 3')", 'its last line is not a JSON object with the figures: {"score": 3'),
        ("print('[1]')", "its last line is not a JSON object with the figures: [1]"),
        ("pass", "its last line is not a JSON object with the figures: nothing"),
        ("print('{\"score\": NaN}')", "the figure score is nan, which is out of range"),
        ("print('{\"score\": Infinity}')", "the figure score is inf, which is out of range"),
        ("print('{\"score\": 1e999}')", "the figure score is inf, which is out of range"),
        ("print('{\"score\": -1' + 400 * '0' + '}')", f"the figure score is -1{400 * '0'}, which is out of range"),
        ("print('{\"score\": true}')", "the figure score is not a number: True"),
        ('print(\'{"score": "3"}\')', "the figure score is not a number: 3"),
        ("print('{}')", "the figure score is not a number: None"),
        ("print('[' * 100000)", "its last line is not a JSON object with the figures: " + "[" * 200),
        (
            "import sys; sys.stdout.buffer.write(b'\\xff\\xfe{')",
            "its last line is not a JSON object with the figures: ��{",
        ),
    ],
)
def test_every_way_to_go_wrong_is_a_failure(project: Project, script: str, reason: str) -> None:
    done = probed(project, script, figures=SCORE)
    assert done.verdict == "fail"
    assert reasons(done) == {reason}
    assert done.counts == {"runs": 2, "failed": 2}


@pytest.mark.slow
def test_125_is_unclear_and_not_repeated(project: Project) -> None:
    done = probed(project, "import sys; sys.stderr.write('no GPU to try it on'); sys.exit(125)")
    assert (done.verdict, reasons(done), done.counts["runs"]) == ("unclear", {"no GPU to try it on"}, 1)


@pytest.mark.slow
def test_100_megabytes_are_cut_short(project: Project) -> None:
    done = probed(project, "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)")
    assert reasons(done) == {"it printed more than 1 MiB"}
    assert len(done.raw) < 3 * own_script.LARGEST_OUTPUT


@pytest.mark.long
@pytest.mark.slow
def test_a_script_that_hangs_is_ended_with_all_that_it_started(project: Project) -> None:
    script = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "a").write(f"{os.getpid()} {child.pid} ")
time.sleep(600)
"""
    for seconds in processes.GROWING:
        done = probed(project, script, seconds=seconds)
        assert reasons(done) == {f"it did not end within {seconds} s"}
        if has_noted(project.root / "probes/mine"):
            break
    until_all_gone(project.root / "probes/mine")


@pytest.mark.slow
def test_what_a_script_leaves_in_the_background_holds_nothing_up(project: Project) -> None:
    script = 'import subprocess, sys\nsubprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])'
    began = time.monotonic()
    assert probed(project, script).verdict == "pass"
    assert time.monotonic() - began < 300


def test_a_program_that_is_not_there_is_the_users_mistake(project: Project) -> None:
    write(project, "", command=["./missing"])
    with pytest.raises(MeasuringError, match="./missing was not found"):
        own_script.run_own_probe(SERVED, configuration.load_probe(project, "mine"), os.environ, events.ignore)


def test_another_file_in_the_folder_is_another_probe(project: Project) -> None:
    write(project, "pass")
    before = configuration.load_probe(project, "mine").digest
    projects.write(project.root / "probes/mine/__pycache__/check.pyc", "x")
    assert configuration.load_probe(project, "mine").digest == before
    projects.write(project.root / "probes/mine/answers.json", "{}")
    assert configuration.load_probe(project, "mine").digest != before


def test_a_link_to_itself_is_a_problem_of_the_probe(project: Project) -> None:
    write(project, "pass")
    (project.root / "probes/mine/loop").symlink_to("loop")
    with pytest.raises(FileProblemsError, match="loop cannot be read: not a regular file"):
        configuration.load_probe(project, "mine")


def test_probes_are_named_and_checked(project: Project, tmp_path: Path) -> None:
    write(project, "pass")
    assert configuration.probe_names(project) == ("mine",)
    with pytest.raises(UsageError, match="no probe is called `mime`; did you mean `mine`"):
        configuration.load_probe(project, "mime")
    projects.write(project.root / "probes/mine/probe.yaml", "command: run it\nsecond: 3\n")
    with pytest.raises(FileProblemsError, match="unknown key `second`") as error:
        configuration.load_probe(project, "mine")
    assert "is not a list" in str(error.value)
    with pytest.raises(UsageError):
        configuration.load_probe(project, "../mine")


def test_a_folder_that_is_a_link_out_of_the_project_is_not_run(tmp_path: Path) -> None:
    write(Project(tmp_path / "other"), "pass")
    project = Project(tmp_path / "mine")
    (project.root / "probes").mkdir(parents=True)
    (project.root / "probes/mine").symlink_to(tmp_path / "other/probes/mine")
    with pytest.raises(Exception, match="leads out of"):
        configuration.load_probe(project, "mine")
