# ruff: noqa: SLF001
"""Reads turns back with vLLM's own parsers, original and mutated: `parser_mutants` runs this in a Python with vLLM.

`driver` asks the same front end as in a proof, but in the same process instead of over HTTP. Each mutant is a fork of
this process, so a mutant takes only about a second. Run as ``parser_reader.py FOLDER``.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])
driver: Any = importlib.import_module("driver")

PARSERS = ("vllm.parser", "vllm.tool_parsers", "vllm.reasoning")
REACHED = "__reached__"
LONGEST_SECONDS = 60
# This many changed turns decide the verdict on a mutant.
ENOUGH = 5


class Client(driver.Client):  # type: ignore[misc]
    """Calls the front end without HTTP. One parser reads the whole stream, as in a server."""

    def __init__(self, app: Any, ends: frozenset[int]) -> None:
        super().__init__(0, None, ends)
        self.app = app
        self.derenderer = app.state.online_derenderer

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("derender"):
            protocol = importlib.import_module("vllm.entrypoints.scale_out.token_in_token_out.protocol")
            request = protocol.DerenderChatRequest(**body)
            try:
                choices = self.derenderer._derender_chat(
                    request.generate_response, request.chat_request, request.prompt_token_ids
                )
            except Exception as error:
                raise driver.RefusedError(str(error)) from error
            return {"choices": [{"message": each.message.model_dump()} for each in choices]}
        testclient = importlib.import_module("starlette.testclient")
        answer = testclient.TestClient(self.app).post(path, json=body)
        if answer.status_code != 200:
            raise driver.RefusedError(driver._reason(answer.status_code, answer.content))
        return answer.json()

    # The application would use threads for this, which a fork does not have.
    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.derenderer.renderer.get_tokenizer().encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.derenderer.renderer.get_tokenizer().decode(ids)
        return text

    def parse_streamed(
        self, request: dict[str, Any], prompt: list[int], pieces: list[list[int]], ends: Collection[int] = ()
    ) -> dict[str, Any]:
        chat = importlib.import_module("vllm.renderers.online_derenderer").ChatCompletionRequest(
            **{**request, "stream": True}
        )
        message: dict[str, Any] = driver.new_message()
        try:
            for delta in self._deltas(chat, prompt, pieces):
                driver._add(message, delta)
        except Exception as error:
            raise driver.RefusedError("derender failed") from error
        message["ends"] = [self._end(chat, prompt, pieces[: at + 1]) for at in ends]
        return message

    def _end(self, chat: Any, prompt: list[int], pieces: list[list[int]]) -> dict[str, Any]:
        """What the parser adds at the end of an output of ``pieces``."""
        end: dict[str, Any] = driver.new_message()
        try:
            *_, last = self._deltas(chat, prompt, pieces)
        except Exception:  # noqa: BLE001
            return {"refused": "derender failed"}
        driver._add(end, last)
        return end

    def _deltas(self, chat: Any, prompt: list[int], pieces: list[list[int]]) -> Iterator[dict[str, Any]]:
        """Yields the deltas of an output of ``pieces``."""
        module = importlib.import_module("vllm.renderers.online_derenderer")
        tokenizer = self.derenderer.renderer.get_tokenizer()
        parser = self.derenderer.parser(
            tokenizer,
            chat.tools,
            chat_template_kwargs=self.derenderer._resolve_chat_template_kwargs(chat),
            model_config=self.derenderer.model_config,
        )
        skip, spaces = module._decode_params(tokenizer, chat, preserve_special=True)
        state = module._seed_stream_state(tokenizer, prompt, skip_special_tokens=skip)
        for at, piece in enumerate(pieces):
            text, state = self.derenderer._detokenize_delta(
                tokenizer, piece, state, skip_special_tokens=skip, spaces_between_special_tokens=spaces
            )
            delta = parser.parse_delta(text, piece, chat, prompt_token_ids=prompt, finished=at == len(pieces) - 1)
            yield delta.model_dump() if delta else {}


def build_app(setup: dict[str, Any]) -> Any:
    """Returns the application of `vllm launch render` without serving it."""
    entry: Any = importlib.import_module("vllm.entrypoints.launchers.render.entry")
    taken = []

    async def take(app: Any, **_: Any) -> None:
        taken.append(app)
        raise KeyboardInterrupt

    entry.serve_http = take
    entry.setup_server = lambda *_, **__: ("", type("Socket", (), {"close": lambda _: None})())
    sys.argv = ["vllm", "launch", "render", *setup["argv"]]
    launch: Any = importlib.import_module("vllm.entrypoints.cli.launch")
    for module in (launch, entry):
        if hasattr(module, "uvloop"):
            module.uvloop.run = asyncio.run
    try:
        importlib.import_module("vllm.entrypoints.cli.main").main()
    except (KeyboardInterrupt, SystemExit):
        if not taken:
            raise
    return taken[0]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a different source text."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, fullname: str, *_: Any) -> Any:
        return (
            importlib.util.spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None
        )

    def create_module(self, spec: Any) -> None:
        """As other modules are."""

    def exec_module(self, module: Any) -> None:
        exec(compile(self.source, self.path, "exec"), module.__dict__)  # noqa: S102


def compose(client: Client, setup: dict[str, Any]) -> None:
    """Imports the parsers again, and composes the parser of the front end."""
    for name in [name for name in sys.modules if name.startswith(PARSERS)]:
        del sys.modules[name]
    manager = importlib.import_module("vllm.parser").ParserManager
    argv = setup["argv"]
    named = {
        key: argv[argv.index(key) + 1] if key in argv else "" for key in ("--tool-call-parser", "--reasoning-parser")
    }
    client.derenderer.parser = manager.get_parser(
        tool_parser_name=named["--tool-call-parser"] or None,
        reasoning_parser_name=named["--reasoning-parser"],
        enable_auto_tools=bool(named["--tool-call-parser"]),
        model_name=client.derenderer.model_config.model,
        is_harmony=client.derenderer.use_harmony,
        tokenizer=client.derenderer.renderer.tokenizer,
    )


def in_fork(function: Any, result: Path, seconds: int) -> None:
    """Runs a function in a fork for at most ``seconds`` of the processor, and writes its answer into a file. On a busy
    machine, the time of the clock would end forks that are only slow."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(seconds * 20)
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        driver.write(result, function())
    except BaseException:  # noqa: BLE001
        driver.write(result, {"failed": traceback.format_exc()[-2000:]})
    finally:
        os._exit(0)


def read_all(
    client: Client,
    prepared: dict[str, Any],
    setup: dict[str, Any],
    mutant: dict[str, Any] | None = None,
    before: dict[str, Any] | None = None,
) -> Any:
    """Returns the answers to all turns. After enough changed answers of a mutant, the rest is copied from
    ``before``."""
    if mutant:
        sys.meta_path.insert(0, Finder(mutant["module"], mutant["path"], mutant["source"]))
    compose(client, setup)
    answers: dict[str, Any] = {}
    changed = 0
    for name, given in prepared.items():
        if "refused" in given or (before and changed == ENOUGH):
            answers[name] = given if "refused" in given else (before or {})[name]
            continue
        answers[name] = {
            "text": given["text"],
            **driver._parsed(client, given["wanted"], given["prompt"], given["ids"]),
        }
        changed += bool(before) and answers[name] != (before or {}).get(name)
    return {"answers": answers}


class Marker(ast.NodeTransformer):
    """Makes each statement of a function note its lines before it runs. Compound statements note only their head."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._mark(node)
        return node

    def _mark(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            marked: list[ast.stmt] = []
            for each in getattr(node, name, ()):
                within = [inner.lineno for inner in ast.walk(each) if isinstance(inner, ast.stmt) and inner is not each]
                is_simple = not hasattr(each, "body")
                end = each.end_lineno + 1 if is_simple else max(each.lineno + 1, min(within))
                call = ast.parse(f"{REACHED}({each.lineno}, {end})").body[0]
                self._mark(each)
                marked += [ast.copy_location(call, each), each]
            if marked:
                setattr(node, name, marked)
        for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self._mark(each)


class Noting(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the parsers so that they note the lines that they reach, by file."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}

    def find_spec(self, fullname: str, path: Any, _: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname.startswith(PARSERS) else None
        if spec:
            spec.loader = self
        return spec

    def create_module(self, spec: Any) -> None:
        """As other modules are."""

    def exec_module(self, module: Any) -> None:
        place = module.__spec__.origin
        lines = self.lines.setdefault(place, set())
        vars(module)[REACHED] = lambda begin, end: lines.update(range(begin, end))
        tree = ast.fix_missing_locations(Marker().visit(ast.parse(Path(place).read_bytes())))
        exec(compile(tree, place, "exec"), vars(module))  # noqa: S102


def prepare(client: Client, setup: dict[str, Any]) -> dict[str, Any]:
    """Returns what `driver` would have parsed, by turn."""
    parse, prepared = driver._parsed, {}
    try:
        driver._parsed = lambda _, wanted, prompt, ids: {"wanted": wanted, "prompt": prompt, "ids": ids}
        for question in setup["questions"]:
            try:
                prepared[question["name"]] = driver.answer_turn(client, question)
            except driver.RefusedError as error:
                prepared[question["name"]] = error.answer
    finally:
        driver._parsed = parse
    return prepared


def of_setup(folder: Path, number: int, setup: dict[str, Any]) -> None:
    """Writes the answers of the original parsers, the lines that they reach, and the answers of each mutant."""
    client = Client(build_app(setup), driver.ends_of_turns(Path(setup["argv"][0])))
    prepared = prepare(client, setup)

    def whole() -> Any:
        if not setup["trace"]:
            return read_all(client, prepared, setup)
        noting = Noting()
        sys.meta_path.insert(0, noting)
        result = read_all(client, prepared, setup)
        return {**result, "lines": {path: sorted(each) for path, each in noting.lines.items() if each}}

    in_fork(whole, folder / f"answers-{number}.json", 20 * LONGEST_SECONDS)
    before = json.loads((folder / f"answers-{number}.json").read_text(encoding="utf-8")).get("answers")
    for mutant in setup["mutants"]:
        began = time.monotonic()
        result = folder / f"mutant-{mutant['number']}-{number}.json"
        in_fork(lambda mutant=mutant: read_all(client, prepared, setup, mutant, before), result, LONGEST_SECONDS)
        if not result.exists():
            driver.write(result, {"failed": f"no answer after {time.monotonic() - began:.0f} seconds"})


def main(folder: Path) -> None:
    work = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    os.environ.update(work["env"], TOKENIZERS_PARALLELISM="false")
    driver.import_front_end()
    running = 0
    for number, setup in enumerate(work["setups"]):
        if running == len(os.sched_getaffinity(0)):
            os.wait()
            running -= 1
        if os.fork():
            running += 1
            continue
        try:
            log = os.open(folder / f"log-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(setup["env"])
            of_setup(folder, number, setup)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
