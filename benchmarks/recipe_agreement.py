"""A table of how far recipes of version 2 come to the same here and with sparkrun, which is asked itself.

    python benchmarks/recipe_agreement.py FOLDER… --sparkrun PYTHON

FOLDER holds recipes, or registries with recipes in them; PYTHON is that of an environment in which sparkrun is
installed. Nothing is started: sparkrun loads, resolves and renders each recipe, for one machine and for as many as it
spreads the model over, and both commands are compared word by word, and both environments value by value. With
``--each`` a line tells of every recipe that differs, with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.base import yaml_file
from builder.base.errors import BuilderError, FileProblemsError
from builder.definitions import cluster, command, recipe, recipe_problems
from builder.definitions.configuration import Node

# Prints sparkrun's result for each file: reads names from its input, and writes a line of JSON for each.
_ORACLE = r"""
import json, logging, sys
logging.disable(logging.CRITICAL)
from sparkrun.core.recipe import Recipe
from sparkrun.core.parallelism import extract_parallelism
from sparkrun.runtimes.vllm_distributed import VllmDistributedRuntime
from sparkrun.runtimes.vllm_ray import VllmRayRuntime
from sparkrun.runtimes.eugr_vllm_ray import EugrVllmRayRuntime
known = {each.runtime_name: each for each in (VllmDistributedRuntime, VllmRayRuntime, EugrVllmRayRuntime)}
for line in sys.stdin:
    file = json.loads(line)
    try:
        recipe = Recipe.load(file)
        answer = {"runtime": recipe.runtime, "issues": recipe.validate(), "env": recipe.env}
        if recipe.runtime in known:
            runtime = known[recipe.runtime]()
            several = extract_parallelism(recipe.build_config_chain({})).total_nodes
            answer["one"] = runtime.generate_command(recipe, {}, is_cluster=False)
            answer["nodes"], answer["several"] = several, []
            answer["env_of_several"] = {**runtime.get_cluster_env("10.0.0.1", several), **recipe.env}
            hosts = ["10.0.0.%d" % (rank + 1) for rank in range(several)]
            if several > 1 and runtime.cluster_strategy() == "native":
                answer["several"] = [
                    runtime.generate_node_command(recipe, {}, hosts[0], several, rank, 29501, hosts=hosts)
                    for rank in range(several)
                ]
            elif several > 1:
                answer["several"] = [runtime.generate_command(recipe, {}, True, several, hosts[0])]
    except Exception as error:
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass(frozen=True)
class Compared:
    """A recipe. ``outcome`` is `same`, `differs`, `refused`, `runtime` or `broken`; ``why`` is the reason or
    difference."""

    registry: str
    file: Path
    version: int
    outcome: str
    why: str = ""

    @property
    def names_vllm(self) -> bool:
        """True if the recipe names vLLM as its runtime."""
        return re.search(r"(?m)^runtime: *[\"']?vllm", self.file.read_text(encoding="utf-8-sig")) is not None


def recipes_in(folder: Path) -> Iterator[Path]:
    """Yields the files below ``folder`` that are recipes for a model."""
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
        if not path.is_file() or path.is_symlink() or ".git" in path.parts:
            continue
        try:
            data, _ = yaml_file.load_shared(path.read_text(encoding="utf-8-sig"), str(path))
        except (FileProblemsError, OSError, UnicodeDecodeError):
            continue
        keys = {"runtime", "container", "command", "recipe_version"}
        if isinstance(data, dict) and isinstance(data.get("model"), str) and keys & set(data):
            yield path


def ask(python: str, files: list[Path]) -> list[dict[str, Any]]:
    """Returns sparkrun's results for ``files``."""
    text = "".join(f"{json.dumps(str(file.resolve()))}\n" for file in files)
    done = subprocess.run([python, "-c", _ORACLE], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compared(registry: str, file: Path, theirs: dict[str, Any]) -> Compared:
    """Compares the results of builder and sparkrun for ``file``."""
    parsed = recipe.parse_recipe(file.read_text(encoding="utf-8-sig"), file.name)
    runtime = str(theirs.get("runtime", ""))
    if "error" not in theirs and "one" not in theirs:
        said = " ".join(problem.message for problem in parsed.problems)
        is_told = f"`{runtime}`" in said
        return Compared(registry, file, 2, "runtime" if is_told else "differs", f"{runtime}: {said or 'taken'}")
    ours = parsed.recipe
    version = ours.version if ours else 2
    problems = parsed.problems or (recipe_problems.recipe_problems(ours) if ours else ())
    if "error" in theirs:
        return Compared(registry, file, version, "broken" if problems else "differs", theirs["error"])
    if ours is None or problems:
        return Compared(registry, file, version, "refused", "; ".join(str(problem) for problem in problems))
    try:
        why = _difference(ours, theirs)
    except BuilderError as error:
        return Compared(registry, file, version, "refused", error.message)
    return Compared(registry, file, version, "differs" if why else "same", why)


def _without_own_name(text: str) -> str:
    """The command without the model's own name as its served name, which is vLLM's default."""
    served = re.search(r"\bvllm serve\s+(\S+)", text)
    return re.sub(rf" --served-model-name {re.escape(served[1])}(?= --|$)", "", text) if served else text


def _difference(ours: recipe.Recipe, theirs: dict[str, Any]) -> str:
    one = command.render_command(ours, {})
    alone = _without_own_name(theirs["one"])
    if command.BACKEND not in one.words:  # sparkrun keeps a backend of `defaults` on one machine, too
        alone = alone.replace(f" {command.BACKEND} ray", "")
    if why := _words(one, alone):
        return why
    if why := _variables(one.env, theirs["env"]):
        return why
    if theirs["several"] and not ours.solo_only:
        nodes = [Node(f"n{n}", "default", address=f"10.0.0.{n + 1}") for n in range(theirs["nodes"])]
        backend = cluster.backend_of(ours, None)
        joined = cluster.cluster_of(ours, {}, (), nodes, backend)
        if (backend == "ray") != (len(theirs["several"]) == 1):
            return "what joins several machines"
        if len(joined.members) != theirs["nodes"]:
            return f"machines: {len(joined.members)} and not {theirs['nodes']}"
        if ours.version == 2 and (why := _variables(joined.command.env, theirs["env_of_several"])):
            return f"several machines: {why}"
        for member, text in zip(joined.members, theirs["several"], strict=False):
            if why := _each(member.argv, _without_own_name(text)):
                return f"machine {member.rank}: {why}"
    return ""


def _variables(env: dict[str, str], theirs: dict[str, str]) -> str:
    """Describes the difference. Ignores variables from the caller's environment: builder passes them on only on
    request."""
    expected = {name: value for name, value in theirs.items() if value not in (f"${name}", f"${{{name}}}")}
    return f"environment: {sorted({*env.items()} ^ {*expected.items()})}" if env != expected else ""


def _words(one: command.ServeCommand, text: str) -> str:
    if one.is_script:
        wanted = " ".join(text.replace("\\\n", " ").split())
        have = " ".join(one.argv[2].replace("\\\n", " ").split())
        return "" if wanted == have else f"script: {_first(have, wanted)}"
    return _each(one.words, text)


def _each(argv: tuple[str, ...], text: str) -> str:
    text = text.rstrip().rstrip("\\")
    if argv[:2] == ("bash", "-c"):
        have, wanted = " ".join(argv[2].split()), " ".join(text.split())
        return "" if have.replace("\\ ", "") == wanted.replace("\\ ", "") else f"script: {_first(have, wanted)}"
    try:
        wanted_words = shlex.split(text.replace("\\\n", ""))
    except ValueError as error:
        return f"sparkrun's own text is no command: {error}"
    if sorted(argv) == sorted(wanted_words):
        return ""
    more = [word for word in argv if word not in wanted_words]
    less = [word for word in wanted_words if word not in argv]
    return f"ours alone: {more}; sparkrun's alone: {less}"


def _first(have: str, wanted: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(have, wanted, strict=False)) if a != b), min(len(have), len(wanted)))
    return f"…{have[max(at - 20, 0) : at + 40]}… and not …{wanted[max(at - 20, 0) : at + 40]}…"


OUTCOMES = ("same", "differs", "refused", "broken", "runtime")


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sparkrun", required=True, metavar="PYTHON")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write sparkrun's answers to FILE, as JSON")
    options = parser.parse_args(arguments)
    every: list[Compared] = []
    for folder in options.folders:
        files = list(recipes_in(folder))
        answers = ask(options.sparkrun, files)
        if options.record:
            named = dict(zip((file.name for file in files), answers, strict=True))
            options.record.write_text(json.dumps(named, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        every += [compared(folder.name, file, answer) for file, answer in zip(files, answers, strict=True)]
    print(f"{'registry':<48}{'found':>6}" + "".join(f"{name:>9}" for name in OUTCOMES))
    for registry in [*dict.fromkeys(each.registry for each in every), ""]:
        own = [each for each in every if registry in {each.registry, ""}]
        count = Counter(each.outcome for each in own)
        print(f"{registry or 'all':<48}{len(own):>6}" + "".join(f"{count[name]:>9}" for name in OUTCOMES))
    served = [each for each in every if each.outcome in ("same", "differs", "refused")]
    for label, own in (
        ("`runtime: vllm…` is written", [each for each in served if each.names_vllm]),
        ("version 1 here", [each for each in served if each.version == 1]),
        ("version 2 here", [each for each in served if each.version == 2]),
    ):
        same = sum(each.outcome == "same" for each in own)
        print(f"{label}: {same} of {len(own)} the same ({same / max(len(own), 1):.1%})")
    if options.each:
        for each in every:
            if each.outcome != "same":
                print(f"{each.outcome}: {each.registry}: v{each.version} {each.file.name}: {each.why[:300]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
