"""A table of the parsers that a vLLM registers, by what proves them, and of the mutants that a proof notices.

    python -m benchmarks.parser_mutants PYTHON [--pairs FILE] [--count 300] [--seed 1] [--templates 1] [--folder FOLDER]

PYTHON is a Python with vLLM. The parsers are changed only in memory. Each parser reads a small template of
tests/lab/prove/formats.py, and the templates in FILE; its lines are `TOOL REASONING TEMPLATE`, with `-` for no parser.
A mutant has one change in a line that the reading of a turn reaches: a flipped comparison, a slice or number that is
off by one, a dropped statement, or a swapped mark. The mutants are spread evenly over the files. One of the templates
that reach its line reads a mutant; with `--templates N`, others follow until one of at most N notices it. A mutant is
noticed alone if the proof no longer passes. It is noticed beside the number before if an answer has changed. The list
of tests/mutation/equivalent_parsers.yaml says of survivors why no turn can show them, or which turn would.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from builder.base import yaml_file
from builder.base.words import counted
from builder.lab.prove import conversations, front_end, judging
from builder.lab.prove.conversations import Conversation
from builder.lab.prove.front_end import Setup
from builder.lab.prove.judging import Judgement, Reference
from builder.lab.prove.properties import Style
from tests.lab.prove import formats

_READER = Path(__file__).with_name("parser_reader.py")
_GPT_OSS = Path(__file__).parents[1] / "tests/end_to_end/gpt_oss_files.py"
JUDGED = Path(__file__).parents[1] / "tests/mutation/equivalent_parsers.yaml"
_REGISTERED = """
import importlib, json
names = {}
for kind in ("tool_parsers", "reasoning"):
    module = importlib.import_module("vllm." + kind)
    listed = next(value for key, value in vars(module).items() if key.endswith("_TO_REGISTER"))
    names[kind] = {name: file for name, (file, _) in sorted(listed.items())}
print(json.dumps([module.__file__, names]))
"""
_OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])
}
# Files that choose parsers, count, or constrain the output of a model; they do not read turns.
_OTHER_FILES = {"__init__.py", "metrics.py", "parser_manager.py", "structural_tag_registry.py", "tool_strict_level.py"}
# Functions of vLLM's parser interface that do not read turns: they change a request, constrain the output, or count.
# https://docs.vllm.ai/en/stable/api/vllm/reasoning/abs_reasoning_parsers
_OTHER_FUNCTIONS = re.compile("adjust_request|structural_tag|structured_tag|count|reasoning_tokens")
# Names of vLLM's classes that choose parsers, like the files above.
_OTHER_CLASSES = re.compile("Manager$")
# Calls that record metrics or write logs.
_OTHER_CALLS = re.compile(r"record_\w+|logger\.\w+")
# Deltas without information for a client.
_EMPTY = {"None", "DeltaMessage()", "DeltaMessage(content='')"}
# Token counts for the usage that a server reports; parsed messages do not contain them.
_TOKEN_COUNT = re.compile(r"[\w.]*token_counts?")
_MARK = re.compile(r"[<\[\]|{}>]")
# The marks of a template that are single tokens, and those of them that end a turn.
_OWN_MARKS = re.compile(
    r"</?[|\uff5c][^<>\s]{1,40}>|<[^<>\s]{1,40}\|>|</?[a-z]+[:|][a-z_]+>"
    r"|</?\w*(?:tool|arg_|think|response|assistant)\w*>|\[/?[A-Z][A-Z_]{2,20}\]|\]<\]\w+\[>\["
)
_ENDS = ("<|im_end|>", "<|tool_response>", "<|eot_id|>", "<|eom_id|>", "<|call|>", "<|end_message|>", "<|end_of_msg|>")


@dataclass(frozen=True)
class Pair:
    """A template and the parsers that read its turns back."""

    name: str
    tool: str
    reasoning: str
    template: str
    response: Mapping[str, Any] = field(default_factory=dict)

    def setup(self, python: str, folder: Path, marks: dict[str, str]) -> Setup:
        folder.mkdir(parents=True, exist_ok=True)
        if self.tool == "openai":
            return self._setup_of_gpt_oss(python, folder)
        file = folder / f"{self.name}.jinja"
        file.write_text(self.template, encoding="utf-8")
        options = ["--chat-template", str(file)]
        options += ["--enable-auto-tool-choice", "--tool-call-parser", self.tool] if self.tool else []
        options += ["--reasoning-parser", self.reasoning] if self.reasoning else []
        files = {name: json.loads(content) for name, content in front_end.files().items()}
        # The tokenizer of a real model contains the marks that its parser looks for.
        _add_marks(files["tokenizer.json"], files["config.json"], self.template + marks.get(self.tool, ""))
        if self.tool.startswith("cohere"):  # vLLM's parser for Cohere reads the model's architecture
            files["config.json"] |= {"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2"}
        if self.response:
            files["tokenizer_config.json"]["response_template"] = self.response
        if self.reasoning == "olmo3":
            _spell_thoughts(files["tokenizer.json"], files["config.json"])
        contents = {name: json.dumps(content).encode() for name, content in files.items()}
        return Setup(self.name, contents, tuple(options), {}, str(file), {}, self.questions())

    def _setup_of_gpt_oss(self, python: str, folder: Path) -> Setup:
        """The setup of GPT-OSS: vLLM's own code writes and reads its turns, without a template."""
        model = folder / self.name
        model.mkdir(exist_ok=True)
        subprocess.run([python, "-B", str(_GPT_OSS), str(model)], check=True)
        contents = {path.name: path.read_bytes() for path in model.iterdir()}
        parsers = ("--tool-call-parser", self.tool, "--reasoning-parser", self.reasoning)
        return Setup(self.name, contents, ("--enable-auto-tool-choice", *parsers), {}, "", {}, self.questions())

    def questions(self) -> tuple[conversations.Question, ...]:
        asked = conversations.questions(self.tool, self.reasoning)
        return tuple(each for each in asked if not isinstance(each.subject, Conversation))

    def judge(self, answers: dict[str, Any], before: Judgement | None = None) -> Judgement:
        reference = Reference("before", before.goldens, before.texts) if before else None
        return judging.judge_answers(
            self.questions(), answers, tokenizer="", style=Style(), reference=reference, is_published=True
        )


def _add_marks(tokenizer: dict[str, Any], config: dict[str, Any], text: str) -> None:
    """Adds the marks in ``text`` as single tokens. The model ends its turn with those of `_ENDS`."""
    tokens = tokenizer["added_tokens"]
    known = {each["content"] for each in tokens}
    for mark in dict.fromkeys(_OWN_MARKS.findall(text)):
        if mark not in known:
            tokens.append({**tokens[-1], "id": tokens[-1]["id"] + 1, "content": mark})
    ids = {each["content"]: each["id"] for each in tokens}
    config |= {"vocab_size": max(ids.values()) + 1, "eos_token_id": [ids[mark] for mark in _ENDS if mark in ids]}


def _spell_thoughts(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Splits the marks of reasoning: in Olmo's tokenizer, each consists of three tokens of the vocabulary."""
    model = tokenizer["model"]
    model["merges"] = ["< /", "\u0120 </", "t h", "i n", "in k", "th ink"]
    for merge in model["merges"]:
        model["vocab"][merge.replace(" ", "")] = len(model["vocab"])
    marks = [each for each in tokenizer["added_tokens"] if "think" not in each["content"]]
    moved = {each["id"]: len(model["vocab"]) + at for at, each in enumerate(marks)}
    tokenizer["added_tokens"] = [{**each, "id": moved[each["id"]]} for each in marks]
    config |= {"eos_token_id": [moved[each] for each in config["eos_token_id"]], "vocab_size": max(moved.values()) + 1}


@dataclass(frozen=True)
class Mutant:
    number: int
    path: str
    line: int
    what: str
    source: str

    @property
    def module(self) -> str:
        return ".".join(PurePosixPath(self.path[self.path.rindex("/vllm/") + 1 :]).with_suffix("").parts)

    @property
    def key(self) -> str:
        return " ".join(f"{self.module}:{self.line} {self.what}".split())


def equivalent() -> set[str]:
    """The keys of the mutants that no turn can show; their file has the reasons."""
    judged = yaml_file.load(JUDGED.read_text(encoding="utf-8"), JUDGED.name)
    return {" ".join(each["mutant"].split()) for each in judged if "because" in each}


def pairs_of(file: Path | None, tools: str) -> list[Pair]:
    own = [
        Pair(each.name, each.tool, each.reasoning, each.template(), each.response)
        for each in formats.FORMATS
        if not tools or each.tool in tools.split(",")
    ]
    if not tools or "openai" in tools.split(","):
        own += [Pair("gpt-oss", "openai", "openai_gptoss", "")]
    published = []
    for line in file.read_text(encoding="utf-8").splitlines() if file else ():
        tool, reasoning, template = (part.removeprefix("-") for part in line.split(maxsplit=2))
        text = Path(template).read_text(encoding="utf-8")
        published.append(Pair(f"{Path(template).stem}-{tool}-{reasoning}", tool, reasoning, text))
    return own + published


def read(
    python: str, folder: Path, marks: dict[str, str], work: list[tuple[Pair, list[Mutant]]], *, trace: bool
) -> None:
    """Runs the reader on pairs, each with its mutants. The answers become files in ``folder``."""
    setups = [pair.setup(python, folder, marks) for pair, _ in work]
    files = front_end.files_of_work(setups, PurePosixPath(folder), str(folder))
    content = json.loads(files[PurePosixPath(folder, "work.json")])
    for setup, (_, mutants) in zip(content["setups"], work, strict=True):
        setup |= {"mutants": [vars(each) | {"module": each.module} for each in mutants], "trace": trace}
    files[PurePosixPath(folder, "work.json")] = json.dumps(content).encode()
    for place, data in files.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_bytes(data)
    subprocess.run([python, "-B", str(_READER), str(folder)], check=True, stderr=subprocess.DEVNULL)


def answers_in(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"failed": "the front end did not start"}


def _is_token_count(node: ast.Assign | ast.AugAssign) -> bool:
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    return any(_TOKEN_COUNT.fullmatch(ast.unparse(each)) for each in (target, node.value))


def _ends(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the `continue` statements at the end of the body of a loop: they have no effect."""
    for name in ("body",) if isinstance(node, ast.For | ast.While) else ("body", "orelse"):
        for last in getattr(node, name, [])[-1:]:
            if isinstance(last, ast.Continue):
                yield last
            elif isinstance(last, ast.If | ast.With):
                yield from _ends(last)


class _Reads(ast.NodeVisitor):
    """The names that code for turns reads, and its texts, because `getattr` may read by text."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and _OTHER_FUNCTIONS.search(node.name):
            return
        if isinstance(node, ast.Call) and _OTHER_CALLS.fullmatch(ast.unparse(node.func)):
            return
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            self.names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.names.add(node.value)
        self.generic_visit(node)


@functools.cache
def _names_read(folder: Path) -> frozenset[str]:
    """The names that any of vLLM's parsers reads for a turn."""
    reads = _Reads()
    for place in ("parser", "tool_parsers", "reasoning"):
        for path in (each for each in (folder / place).rglob("*.py") if each.name != "metrics.py"):
            reads.visit(ast.parse(path.read_bytes()))
    return frozenset(reads.names)


class _Edits(ast.NodeVisitor):
    """The possible changes of a module: the replaced node, the new text, and a description. Changes without any effect
    on turns are left out: unread stores, `continue` at the end of a loop's body, and calls for metrics or logs."""

    def __init__(self, tree: ast.Module, lines: set[int], read: Collection[str]) -> None:
        self.lines = lines
        self.read = read
        self.last = {id(end) for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While) for end in _ends(loop)}
        self.in_function = False
        self.is_truth = False
        self.found: list[tuple[ast.expr | ast.stmt, str, str]] = []
        strings = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        self.marks = sorted(
            {each for each in strings if _MARK.search(each) and 1 < len(each) < 60 and "\n" not in each}
        )
        self.visit(tree)

    def add(self, node: ast.expr | ast.stmt, new: ast.AST | str, what: str) -> None:
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        self.found.append((node, text, what))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.arguments | ast.AnnAssign | ast.Raise):
            return
        if isinstance(node, ast.FunctionDef):
            if not _OTHER_FUNCTIONS.search(node.name):
                self._visit_function(node)
            return
        if isinstance(node, ast.ClassDef) and _OTHER_CLASSES.search(node.name):
            return
        if isinstance(node, ast.Call) and _OTHER_CALLS.fullmatch(ast.unparse(node.func)):
            return
        if isinstance(node, ast.keyword) and node.arg == "ensure_ascii":  # changes only the spelling of the same JSON
            return
        if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or "logger" in ast.unparse(node)):
            return
        is_mark = isinstance(node, ast.Constant) and node.value in self.marks and not self.in_function
        if isinstance(node, ast.Assign | ast.AugAssign) and (_is_token_count(node) or self._is_unread(node)):
            return
        if getattr(node, "lineno", 0) in self.lines or is_mark:
            self._edit(node)
        self.generic_visit(node)

    def _visit_function(self, node: ast.FunctionDef) -> None:
        """Visits only the body, as names of types change nothing. A mark in the body is used if its line is reached."""
        outer = self.in_function, self.is_truth
        self.in_function, self.is_truth = True, isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        for each in node.body:
            self.visit(each)
        self.in_function, self.is_truth = outer

    def _is_unread(self, node: ast.Assign | ast.AugAssign) -> bool:
        """True if the value is only stored, and no code for turns reads the name."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in targets]
        is_private = all(
            name.startswith("_") or isinstance(each, ast.Name) for name, each in zip(names, targets, strict=True)
        )
        calls = [
            each for each in ast.walk(node.value) if isinstance(each, ast.Call) and ast.unparse(each.func) != "bool"
        ]
        return (
            self.in_function and is_private and not calls and not any(each in self.read or not each for each in names)
        )

    def _edit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            flipped = ast.Compare(node.left, [_FLIPPED[type(node.ops[0])]()], node.comparators)
            self.add(node, flipped, "comparison flipped")
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            self.add(node, ast.BoolOp(other, node.values), "and/or")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.add(node, node.operand, "not dropped")
        elif isinstance(node, ast.Slice):
            for bound in filter(None, (node.lower, node.upper)):
                self.add(bound, ast.BinOp(bound, ast.Add(), ast.Constant(1)), "slice off by one")
        elif isinstance(node, ast.Constant):
            self._edit_constant(node)
        elif isinstance(node, ast.stmt):
            self._edit_statement(node)

    def _edit_statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Break | ast.Continue) and id(node) not in self.last:
            self.add(node, "pass", "statement dropped")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.add(node, "pass", "call dropped")
        elif isinstance(node, ast.Return) and node.value:
            value = ast.unparse(node.value)
            if value not in _EMPTY and not (self.is_truth and value == "False"):
                self.add(node, "return None", "result dropped")

    def _edit_constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, ast.Constant(not node.value), "constant")
        elif isinstance(node.value, int):
            self.add(node, ast.Constant(node.value + 1), "constant off by one")
        elif node.value in self.marks and len(self.marks) > 1:
            at = self.marks.index(node.value)
            self.add(node, ast.Constant(self.marks[at - 1]), "mark swapped")


def mutants_of(path: str, lines: set[int]) -> Iterator[Mutant]:
    source = Path(path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    read = _names_read(Path(path[: path.rindex("/vllm/")], "vllm"))
    for node, text, what in _Edits(ast.parse(source), lines, read).found:
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old = source[begin:end].decode()
        changed = (source[:begin] + text.encode() + source[end:]).decode()
        try:
            compile(changed, path, "exec")
        except SyntaxError:
            continue
        yield Mutant(0, path, node.lineno, f"{what}: {' '.join(old.split())[:60]} -> {text[:60]}", changed)


def spread(reached: dict[str, set[int]], count: int, chance: random.Random) -> list[Mutant]:
    """Returns at most ``count`` mutants, spread over the files as evenly as possible."""
    by_file = []
    for path in sorted(reached):
        found = list(mutants_of(path, reached[path]))
        chance.shuffle(found)
        by_file.append(found)
    chance.shuffle(by_file)
    rounds = (found[at] for at in range(max(map(len, by_file), default=0)) for found in by_file if at < len(found))
    return [replace(each, number=number) for number, each in zip(range(count), rounds, strict=False)]


def table(names: dict[str, dict[str, str]], pairs: list[Pair], judged: dict[str, Judgement | str]) -> Iterator[str]:
    for kind, key, point in (("tool_parsers", "tool", "tool calls"), ("reasoning", "reasoning", "reasoning")):
        for name in names[kind]:
            reasons = {each.name: _fault(judged[each.name], point) for each in pairs if getattr(each, key) == name}
            proven = [pair for pair, fault in reasons.items() if not fault]
            why = next((f"{pair}: {fault}" for pair, fault in reasons.items()), "no template is here")
            word = f"proven: {', '.join(proven)}" if proven else f"not proven: {' '.join(why.split())[:200]}"
            yield f"{kind:13} {name:24} {word}"


def _fault(judged: Judgement | str, point: str) -> str:
    """The reason why a pair does not prove a parser; empty if it does."""
    if isinstance(judged, str):
        return judged
    failed = [each for each in judged.findings if each.verdict == "fail"]
    of_point = [each for each in failed if (each.check == "reasoning") == (point == "reasoning")]
    unproven = [each for each in judged.findings if each.verdict == "unclear" and each.text.startswith(point)]
    return next((each.text for each in (*of_point, *unproven)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python")
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--formats", default="", help="tool parsers, with commas: only their own templates")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates", type=int, default=1, help="the most templates that read a mutant")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    asked = subprocess.run([given.python, "-c", _REGISTERED], capture_output=True, text=True, check=True)
    place, names = json.loads(asked.stdout.splitlines()[-1])
    tools = Path(place).parent.parent / "tool_parsers"
    marks = {name: (tools / f"{file}.py").read_text(encoding="utf-8") for name, file in names["tool_parsers"].items()}
    pairs = pairs_of(given.pairs, given.formats)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        read(given.python, folder / "whole", marks, [(pair, []) for pair in pairs], trace=True)
        judged: dict[str, Judgement | str] = {}
        reached: dict[str, dict[str, set[int]]] = {}
        for number, pair in enumerate(pairs):
            result = answers_in(folder / "whole" / f"answers-{number}.json")
            judged[pair.name] = pair.judge(result["answers"]) if "answers" in result else str(result["failed"])[-300:]
            for path, lines in result.get("lines", {}).items():
                if Path(path).name not in _OTHER_FILES:
                    reached.setdefault(path, {})[pair.name] = set(lines)
        sys.stdout.write("\n".join(table(names, pairs, judged)) + "\n")
        _try_mutants(given, folder / "mutants", marks, pairs, judged, reached)


def _try_mutants(
    given: argparse.Namespace,
    folder: Path,
    marks: dict[str, str],
    pairs: list[Pair],
    judged: dict[str, Judgement | str],
    reached: dict[str, dict[str, set[int]]],
) -> None:
    """Reads the mutants with the passing pairs, as an unproven pair notices nothing."""
    passed = [pair for pair in pairs if not isinstance(each := judged[pair.name], str) and each.verdict == "pass"]
    names = {pair.name for pair in passed}
    lines = {
        path: set().union(*(own for name, own in by_pair.items() if name in names)) for path, by_pair in reached.items()
    }
    chance = random.Random(given.seed)  # noqa: S311
    mutants = spread({path: own for path, own in lines.items() if own}, given.count, chance)
    users = {each.number: _users(each, passed, reached[each.path]) for each in mutants}
    seen: dict[int, Counter[str]] = {each.number: Counter() for each in mutants}
    tried: dict[int, list[str]] = {each.number: [] for each in mutants}
    for round_ in range(given.templates):
        chosen: dict[str, list[Mutant]] = {}
        for mutant in (each for each in mutants if users[each.number] and not seen[each.number]["beside"]):
            name = chance.choice(users[mutant.number])
            users[mutant.number].remove(name)
            tried[mutant.number].append(name)
            chosen.setdefault(name, []).append(mutant)
        work = [(pair, chosen[pair.name]) for pair in passed if pair.name in chosen]
        _read_mutants(given.python, folder / str(round_), marks, work, seen)
        sys.stdout.write(f"read with {counted(round_ + 1, 'template')}:\n" + "\n".join(_results(mutants, seen)) + "\n")
    for mutant in mutants:
        if not seen[mutant.number]["alone"]:
            how = "only changed" if seen[mutant.number]["beside"] else "survived"
            same = " (equivalent)" if how == "survived" and mutant.key in equivalent() else ""
            sys.stdout.write(f"{how}: {mutant.key}{same}\n  read with: {', '.join(tried[mutant.number])}\n")


def _users(mutant: Mutant, passed: list[Pair], reached: dict[str, set[int]]) -> list[str]:
    """The names of the pairs that read the line of a mutant. A mark outside of functions goes to the pair that reaches
    most lines of the file."""
    users = [pair.name for pair in passed if mutant.line in reached.get(pair.name, ())]
    return users or [max(passed, key=lambda pair: len(reached.get(pair.name, ()))).name]


def _read_mutants(
    python: str,
    folder: Path,
    marks: dict[str, str],
    work: list[tuple[Pair, list[Mutant]]],
    seen: dict[int, Counter[str]],
) -> None:
    """Reads mutants with pairs, and notes in ``seen`` who notices them."""
    read(python, folder, marks, work, trace=False)
    for number, (pair, own) in enumerate(work):
        before = pair.judge(answers_in(folder / f"answers-{number}.json")["answers"])
        for mutant in own:
            result = answers_in(folder / f"mutant-{mutant.number}-{number}.json")
            alone = "answers" not in result or pair.judge(result["answers"]).verdict != "pass"
            beside = alone or pair.judge(result["answers"], before).verdict != "pass"
            seen[mutant.number].update({"alone": alone, "beside": beside})


def _results(mutants: list[Mutant], seen: dict[int, Counter[str]]) -> Iterator[str]:
    kinds = Counter(each.what.partition(":")[0] for each in mutants)
    judged_same = equivalent()
    same = {each.number for each in mutants if each.key in judged_same and not seen[each.number]["beside"]}
    for how, words in (("alone", "by a first proof"), ("beside", "beside the number before")):
        noticed = [each for each in mutants if seen[each.number][how]]
        by_kind = Counter(each.what.partition(":")[0] for each in noticed)
        parts = ", ".join(f"{kind} {by_kind[kind]}/{count}" for kind, count in sorted(kinds.items()))
        yield f"noticed {words}: {len(noticed)} of {len(mutants)} ({parts})"
        telling = [each for each in noticed if each.number not in same]
        yield f"  without those that no turn can show: {len(telling)} of {len(mutants) - len(same)}"


if __name__ == "__main__":
    main()
