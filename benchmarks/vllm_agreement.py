"""Prints how far `recipes check --image` and `vllm serve` agree on recipes, for several versions of vLLM.

    python benchmarks/vllm_agreement.py FOLDER… --vllm PYTHON[=PYTHONPATH] …

FOLDER contains recipes. Each PYTHON has vLLM installed, or finds a different version of vLLM in PYTHONPATH. First, vLLM
is asked in the same way as in an image. Then `vllm serve` runs with the same arguments, in one process for each recipe,
until it is about to open its port. Its parser and its checks refuse before that. Without a GPU, vLLM for CUDA gets
the platform that it was built for. Options that name files are left out, because the files are missing here.

``--each`` prints every recipe that vLLM refuses, with both reasons. ``--options FILE`` writes the first and the last
version with each option and variable: the content of builder/serving/vllm_options.json.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.recipe_agreement import recipes_in
from builder.base import records
from builder.definitions import recipe
from builder.engine import vllm_words
from builder.engine.installed import VllmAnswers, VllmFacts
from builder.serving import image_words
from builder.serving.image_words import ImageAnswer

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe

# Runs `vllm serve` for each question in a file; prints the exit code and the last output. 77: it was about to open its
# port.
_SERVE = r"""
import gc, json, os, sys, traceback
sys.path.insert(0, sys.argv[2])
import vllm_words
vllm_words.take_a_platform()
import vllm.entrypoints.cli.main as vllm_main, vllm.entrypoints.cli.serve as serve
def bound(*_, **__):
    raise SystemExit(77)
for module in [serve, sys.modules[serve.setup_server.__module__]]:
    for name in ("create_server_socket", "create_server_unix_socket"):
        if hasattr(module, name):
            setattr(module, name, bound)
questions = json.load(open(sys.argv[1]))
sys.argv = ["vllm", "serve", "--help"]
try:
    vllm_main.main()  # imports what each process would import again
except SystemExit:
    pass
gc.freeze()
for question in questions:
    output, inner = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(inner, 1)
        os.dup2(inner, 2)
        os.close(output)
        os.environ.update(question["env"])
        sys.argv = ["vllm", *question["argv"]]
        try:
            vllm_main.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)
    os.close(inner)
    with open(output, errors="replace") as text:
        said = text.read().strip().splitlines() or [""]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("\nserved", json.dumps([code, said[-1][:300]]), flush=True)
"""
_ACCEPTED = 77
_WORDS = Path(vllm_words.__file__)


@dataclass(frozen=True)
class Asked:
    """A recipe and the question about it."""

    file: Path
    recipe: Recipe
    question: dict[str, Any]
    is_whole: bool


def asked_in(folders: list[Path]) -> list[Asked]:
    """The recipes below the folders with commands that can be read without a shell."""
    found: dict[str, Asked] = {}  # by question: copies of a recipe count once
    for file in (file for folder in folders for file in recipes_in(folder)):
        parsed = recipe.parse_recipe(file.read_text(encoding="utf-8-sig"), str(file))
        if parsed.recipe and (asked := image_words.question(parsed.recipe)):
            found.setdefault(json.dumps(asked[0]), Asked(file, parsed.recipe, *asked))
    return [*found.values()]


def run(python: str, path: str, arguments: list[str]) -> list[str]:
    """Runs a Python with vLLM; returns its output lines."""
    env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1"}  # noqa: S108
    done = subprocess.run([python, "-B", *arguments], env=env, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{python} {path}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()


def compare(python: str, path: str, asked: list[Asked], folder: Path, *, each: bool) -> VllmFacts:
    """Asks one vLLM in both ways, and prints the number of recipes with equal results."""
    packed = base64.b64encode(zlib.compress(json.dumps([one.question for one in asked]).encode())).decode()
    pieces = [packed[at : at + 100_000] for at in range(0, len(packed), 100_000)]
    answers = records.parse(run(python, path, [str(_WORDS), *pieces])[-1], VllmAnswers)
    questions = [{**one.question, "argv": vllm_words.without(one.question["argv"], vllm_words.FILES)} for one in asked]
    (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    lines = run(python, path, ["-c", _SERVE, str(folder / "questions.json"), str(_WORDS.parent)])
    served = [json.loads(line.removeprefix("served ")) for line in lines if line.startswith("served ")]
    counts: Counter[str] = Counter()
    for one, answer, (code, said) in zip(asked, answers.commands, served, strict=True):
        if answer is None:
            counts["no answer"] += 1
            continue
        argv = tuple(one.question["argv"])
        told = [*image_words.problems(one.recipe, ImageAnswer("image", answers.facts, argv, answer, one.is_whole), ())]
        refuses = bool(answer.faults) and (one.is_whole or any(fault.option for fault in answer.faults))
        outcome = {(True, False): "both refuse", (False, True): "both accept", (True, True): "FALSE ALARM"}
        kind = outcome.get((refuses, code == _ACCEPTED), "MISSED" if one.is_whole else "only the shell can tell")
        counts[kind] += 1
        counts["variables that nothing reads"] += len(answer.unread)
        if told and not refuses:
            counts["refused later"] += 1
        if (each and told) or kind in {"FALSE ALARM", "MISSED"}:
            print(f"{kind}: {one.file}: {code} {said}\n  ours: {'; '.join(map(str, told))}")
    print(f"vLLM {answers.facts.version}: {len(asked)} recipes: {dict(counts)}", flush=True)
    return answers.facts


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--vllm", action="append", required=True)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--options", type=Path)
    given = parser.parse_args()
    import tempfile

    asked = asked_in(given.folders)
    every = []
    with tempfile.TemporaryDirectory() as folder:
        for text in given.vllm:
            python, _, path = text.partition("=")
            every.append(compare(python, path, asked, Path(folder), each=given.each))
    if given.options:
        given.options.write_text(options_by_version(every), encoding="utf-8")


def options_by_version(every: list[VllmFacts]) -> str:
    """The first and the last release (``0.27``) with each option and variable, as JSON. The first is empty if it is the
    oldest release that was asked, and the last if it is the newest. Options that switch off another option are left
    out."""
    having: dict[str, set[tuple[int, ...]]] = {}
    releases = {tuple(map(int, facts.version.split(".")[:2])): facts for facts in every}
    for release, facts in releases.items():
        names = {name for name in facts.options if f"--{name.removeprefix('--no-')}" not in {*facts.options} - {name}}
        names = {name for name in {*names, *facts.variables} if name.startswith(("--", "VLLM_"))}
        for name in names:
            having.setdefault(name, set()).add(release)
    oldest, newest = (".".join(map(str, end(releases))) for end in (min, max))
    rows = {
        name: [text if text != end else "" for text, end in zip(_ends(had), (oldest, newest), strict=True)]
        for name, had in sorted(having.items())
    }
    lines = (f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    head = f'{{\n  "oldest": "{oldest}",\n  "newest": "{newest}",\n  "names": {{\n'
    return head + ",\n".join(lines) + "\n  }\n}\n"


def _ends(releases: set[tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(".".join(map(str, end(releases))) for end in (min, max))


if __name__ == "__main__":
    main()
