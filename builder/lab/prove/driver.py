"""Asks vLLM's front end inside the image; `front_end` copies this file and the work there and runs it.

This file needs only the standard library and the image's own vLLM. It imports vLLM once, because the import takes most
of a start. Each setup (a model with its options) is a fork of that process. The driver talks to the front end over HTTP
on the loopback, like any client. Run as ``driver.py FOLDER`` with ``FOLDER/work.json``. The answers of each setup go to
``FOLDER/answers-N.json`` when it ends, and the state of the work to ``FOLDER/state.json``.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.metadata
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PORT = 8000
READ_SECONDS = 60
# Each piece is a request that reads all earlier pieces again.
MOST_CUTS = 5
# After this many unanswered questions in a row, the driver stops asking: each of them takes READ_SECONDS.
MOST_SILENT = 3
SINGLE_TOKENS = 6
# The last tokens of a prompt: the marks at the beginning of the model's turn, and a few more tokens.
PROMPT_END = 40
# About as long as the tokens of most tokenizers: with whole marks, and with marks that are spelled.
WORDS = (re.compile(r"(?s)<[^<>\s]+>|\s?\w{1,8}|\s+|."), re.compile(r"(?s)\s?[^\W_]{1,8}|\s+|."))
# The first character of a mark, and the rest: separately, the tokenizer does not see a mark.
SPELLED = re.compile(r"[<\[\]]|[^<\[\]]+")
# The marks around reasoning, as templates write them.
THOUGHT = re.compile(r"<[^<>\s]*(?i:think)[^<>\s]*>|\[/?THINK\]")


class RefusedError(Exception):
    """The front end answered with an error. ``fault`` is the exception of the template (`note_template_errors`)."""

    def __init__(self, reason: str, fault: Json | None = None) -> None:
        super().__init__(reason)
        self.answer: Json = {"refused": reason, **(fault or {})}


class NoSuchAddressError(Exception):
    """This release of vLLM does not have the address."""


class Client:
    def __init__(self, port: int, fault: Path | None = None, ends: frozenset[int] = frozenset()) -> None:
        self.port = port
        self.ends = ends
        self.fault = fault
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READ_SECONDS)
        self.rendered: dict[str, list[int]] = {}
        self.encoded: dict[str, list[int]] = {}

    def post(self, path: str, body: Json) -> Any:
        """Returns the JSON of the answer. Raises RefusedError for an error, OSError without an answer."""
        content = json.dumps(body).encode()
        if self.fault:
            self.fault.unlink(missing_ok=True)
        response, data = self._exchange(path, content)
        if response.status == http.client.NOT_FOUND and path.endswith("render"):
            raise NoSuchAddressError(path)
        if response.status != http.client.OK:
            noted = self.fault if self.fault and self.fault.exists() else None
            fault = json.loads(noted.read_text(encoding="utf-8")) if noted else {}
            raise RefusedError(_reason(response.status, data), fault)
        return json.loads(data)

    def _exchange(self, path: str, content: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
        method = "GET" if content is None else "POST"
        self.connection.request(method, path, content, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        return response, response.read()

    def is_up(self) -> bool:
        try:
            return self._exchange("/health")[0].status == http.client.OK
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return False

    def render(self, body: Json) -> list[int]:
        key = json.dumps(body, sort_keys=True)
        if key not in self.rendered:
            self.rendered[key] = self.post("/v1/chat/completions/render", body)["token_ids"]
        return self.rendered[key]

    def encode(self, text: str) -> list[int]:
        if text not in self.encoded:
            self.encoded[text] = self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        return self.encoded[text]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids, including special tokens."""
        text: str = self.post("/detokenize", {"tokens": ids})["prompt"] if ids else ""
        return text

    def parse(self, request: Json, prompt: list[int], ids: list[int]) -> Json:
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop"}
        body = {
            "generate_response": {"request_id": "prove", "choices": [choice], "prompt_token_ids": prompt},
            "prompt_token_ids": prompt,
            "chat_request": request,
        }
        return _message(self.post("/v1/chat/completions/derender", body)["choices"][0]["message"])

    def parse_streamed(
        self, request: Json, prompt: list[int], pieces: list[list[int]], ends: Collection[int] = ()
    ) -> Json:
        """Reads a stream. The output may also end with each of the pieces in ``ends``: the message then contains what
        the parser adds at such an end."""
        message, state = new_message(), None
        for at, piece in enumerate(pieces):
            if at in ends:
                message["ends"].append(self._parse_end(request, prompt, piece, state))
            answer = self._post_piece(request, prompt, piece, state, "stop" if at == len(pieces) - 1 else None)
            state = answer["stream_state"]
            _add_piece(message, answer)
        return message

    def _parse_end(self, request: Json, prompt: list[int], piece: list[int], state: Json | None) -> Json:
        end = new_message()
        try:
            _add_piece(end, self._post_piece(request, prompt, piece, state, "stop"))
        except RefusedError as error:
            return error.answer
        return end

    def _post_piece(
        self, request: Json, prompt: list[int], piece: list[int], state: Json | None, finish: str | None
    ) -> Json:
        choice = {"index": 0, "token_ids": piece, "finish_reason": finish}
        body = {
            "stream": True,
            "generate_chunk": {"request_id": "prove", "choices": [choice]},
            "stream_state": state,
            "prompt_token_ids": prompt,
            "chat_request": {**request, "stream": True},
        }
        answer: Json = self.post("/v1/chat/completions/derender", body)
        return answer


def _reason(status: int, data: bytes) -> str:
    with suppress(ValueError, TypeError, KeyError):
        answer = json.loads(data)
        detail = answer.get("error", answer)
        text = detail.get("message") if isinstance(detail, dict) else None
        return str(text or answer.get("detail") or f"status {status}")
    return f"status {status}"


def _message(message: Json) -> Json:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning") or message.get("reasoning_content") or "",
        "calls": [{"name": call["name"], "arguments": call["arguments"]} for call in calls],
    }


def new_message() -> Json:
    """The message of a stream: ``pieces`` lists the parts in each piece with their sizes in characters, ``ids`` the ids
    of calls, and ``ends`` what the parser adds where the output could end."""
    return {"content": "", "reasoning": "", "calls": [], "pieces": [], "ids": [], "ends": []}


def _add_piece(message: Json, answer: Json) -> None:
    for got in answer["chunk"]["choices"]:
        _add(message, got.get("delta") or {})


def _add(message: Json, delta: Json) -> None:
    content, reasoning = delta.get("content") or "", delta.get("reasoning") or delta.get("reasoning_content") or ""
    message["content"] += content
    message["reasoning"] += reasoning
    parts = [f"{name}{len(text)}" for name, text in (("reasoning ", reasoning), ("content ", content)) if text]
    for part in delta.get("tool_calls") or ():
        calls = message["calls"]
        while len(calls) <= part["index"]:
            calls.append({"name": "", "arguments": ""})
        message["ids"] += [part["id"]] if part.get("id") else []
        function = part.get("function") or {}
        calls[part["index"]]["name"] += function.get("name") or ""
        calls[part["index"]]["arguments"] += function.get("arguments") or ""
        begins = [key for key, given in (("id", part), ("type", part), ("name", function)) if given.get(key)]
        size = len(function.get("arguments") or "")
        parts += [" ".join(["call", str(part["index"]), *begins, str(size)])] if begins or size else []
    message["pieces"].append(", ".join(parts))


def split(ids: list[int], chance: random.Random) -> list[list[int]]:
    """Splits token ids into pieces as a server sends them: pieces of random sizes, and a run of single tokens."""
    cuts = {chance.randrange(1, len(ids)) for _ in range(MOST_CUTS)} if len(ids) > 1 else set()
    start = chance.randrange(len(ids))
    cuts |= {at for at in range(start, start + SINGLE_TOKENS) if 0 < at < len(ids)}
    edges = [0, *sorted(cuts), len(ids)]
    return [ids[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]  # noqa: RUF007


def answer_prompt(client: Client, wanted: Json) -> Json:
    ids = client.render(wanted["request"])
    return {"ids": ids, "text": client.decode(ids)}


def answer_turn(client: Client, wanted: Json) -> Json:
    """Parses a turn from the template as if the model had written it. ``before`` ends where the model begins, ``after``
    contains the turn, and ``other`` ends with a different turn. The common end of ``after`` and ``other`` ends a turn;
    the model does not write it."""
    before, after, other = (client.render(wanted[key]) for key in ("before", "after", "other"))
    start, end = _common(before, after), len(after) - _common(after[::-1], other[::-1])
    if before[start:] and client.decode(before[start - 1 : start]) == "<":
        start -= 1  # both marks have several tokens and the same first token
    ids = after[start:end]
    while ids and ids[-1] in client.ends:
        ids.pop()
    opened = client.decode(before[start:])
    thinks, reasoning = wanted.get("thinks", ""), wanted.get("reasoning", "")
    if opened.strip() or thinks or reasoning:
        ids = client.encode(_after_prompt(opened.strip() or thinks, client.decode(ids), reasoning))
    if not ids:
        raise RefusedError("the template writes nothing of the turn")
    if wanted.get("again") and (marks := THOUGHT.findall(client.decode(before[-PROMPT_END:]))):
        ids = [*client.encode(marks[-1]), *ids]
    text, ids = _otherwise(client, wanted, ids, after[end:])
    quoted, begun = (int(len(ids) * wanted.get(key, 0)) for key in ("quoted", "begun"))
    before, ids = [*ids[:quoted], *before, *ids[:begun]], ids[begun:]
    return {"text": text, **_parsed(client, {**wanted, "text": text}, before, ids)}


def _otherwise(client: Client, wanted: Json, ids: list[int], end: list[int]) -> tuple[str, list[int]]:
    """Cuts, rewrites or spells a turn, as wanted; ``end`` are the marks that end it."""
    if cut := wanted.get("cut"):
        spans = cut if isinstance(cut, list) else [[0, cut]]
        ids = [*ids, *end] if spans[-1][1] > 1 else ids
        ids = [each for begin, to in spans for each in ids[int(len(ids) * begin) : max(1, int(len(ids) * to))]]
    text = client.decode(ids)
    if rewrite := wanted.get("rewrite"):
        pattern, instead = rewrite
        text = re.sub(pattern, instead, text)
        ids = client.encode(text)
    if wanted.get("spelled"):
        ids = [each for part in SPELLED.findall(text) for each in client.encode(part)]
    return text, ids


def _after_prompt(opened: str, turn: str, reasoning: str) -> str:
    """Returns the text that the model writes after a prompt that ends with ``opened``, if the template begins the turn
    differently. Leaves out the common beginning, in whole marks and ignoring white space. If the prompt opens a
    reasoning block, the model closes it after its reasoning; the template may have left out the reasoning."""
    at = to = 0
    while to < len(turn) and at < len(opened):
        if opened[at].isspace() or turn[to].isspace():
            at, to = at + opened[at].isspace(), to + turn[to].isspace()
        elif opened[at] == turn[to]:
            at, to = at + 1, to + 1
            if opened[at - 1] in ">]" or not opened[at:].strip():
                opened, turn, at, to = opened[at:], turn[to:], 0, 0
        else:
            break
    marks, first = THOUGHT.findall(opened), THOUGHT.match(turn.lstrip())
    if marks and not _ends_thought(marks[-1]):
        end = marks[-1].replace("START", "END") if "START" in marks[-1] else f"{marks[-1][0]}/{marks[-1][1:]}"
    elif first and _ends_thought(first[0]):
        end = first[0]
    else:
        return turn
    thought = "" if reasoning.strip() in turn else reasoning
    return f"{thought}{'' if end in turn else end}{turn}"


def _ends_thought(mark: str) -> bool:
    return mark[1:].startswith("/") or "END" in mark


def _common(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _parsed(client: Client, wanted: Json, prompt: list[int], ids: list[int]) -> Json:
    chance = random.Random(wanted["seed"])  # noqa: S311
    try:
        whole = client.parse(wanted["before"], prompt, ids)
    except RefusedError as error:
        whole = error.answer
    pieces = {"chunks": split(ids, chance), "one piece": [ids]}
    streams = {kind: _streamed(client, wanted, prompt, each) for kind, each in pieces.items()}
    # Single tokens need a request each, but some parsers of vLLM misread only a stream of several tokens at once. If a
    # turn is cut or rewritten, any reading is right.
    alike = dict.fromkeys(("pieces", "ids", "ends"))
    is_misread = any({**each, **alike} != {**whole, **alike} for each in streams.values())
    if wanted.get("tokens") or (is_misread and not wanted.get("cut")):
        single = tokens(client, ids)
        ends = range(len(single) - 1) if wanted.get("ends") else ()
        streams["tokens"] = _streamed(client, wanted, prompt, single, ends)
    return {"whole": whole, "streamed": streams}


def tokens(client: Client, ids: list[int]) -> list[list[int]]:
    """Splits token ids into single tokens; into words if the tokenizer has one token for each byte."""
    text = client.decode(ids)
    for words in WORDS if len(ids) > len(text) / 2 else ():
        encoded = [client.encode(word) for word in words.findall(text)]
        if [each for word in encoded for each in word] == ids:
            return encoded
    return [[each] for each in ids]


def _streamed(
    client: Client, wanted: Json, prompt: list[int], pieces: list[list[int]], ends: Collection[int] = ()
) -> Json:
    try:
        message = client.parse_streamed(wanted["before"], prompt, pieces, ends)
    except RefusedError as error:
        return error.answer
    for part in (message, *message["ends"]):  # the other ids are random
        part["ids"] = [each for each in part.get("ids", ()) if each in wanted["text"]]
    return message


ANSWERS = {"prompt": answer_prompt, "turn": answer_turn}


def write(path: Path, content: Any) -> None:
    """Writes JSON into a file. Readers never see a partly written file."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def installed_version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def import_front_end() -> Any:
    """Imports vLLM's command line and its front end. Raises ImportError if this vLLM has no separate front end."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if platforms.current_platform.is_unspecified():
        # The image is for GPUs, and the container has none: `vllm bench` does the same.
        platforms.current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    main = importlib.import_module("vllm.entrypoints.cli.main").main
    importlib.import_module("vllm.entrypoints.cli.launch")
    for module in ("vllm.entrypoints.launchers.render.entry", "vllm.entrypoints.serve.render.serving"):
        # The modules moved between releases. A fork imports any module that is not imported here.
        with suppress(ImportError):
            importlib.import_module(module)
    return main


def note_template_errors(note: Path) -> None:
    """Writes each exception of a template to ``note``. vLLM's answer does not distinguish an intended refusal
    (``raise_exception`` raises a TemplateError) from an undefined name. Jinja passes all exceptions through
    `Environment.handle_exception`: https://jinja.palletsprojects.com/en/stable/api/#jinja2.Environment"""
    environment: Any = importlib.import_module("jinja2").Environment
    handle = environment.handle_exception

    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return handle(self, *arguments, **named)
        except Exception as error:
            write(note, {"error": type(error).__name__, "line": _template_line(error)})
            raise

    environment.handle_exception = noting


def _template_line(error: Exception) -> int:
    """Returns the line of the template that raised an exception, or 0."""
    line = getattr(error, "lineno", None) or 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in {"<template>", "<unknown>"}:
            line = number
    return line


def ends_of_turns(model: Path) -> frozenset[int]:
    """Returns the tokens that end a turn of a model: vLLM stops at them, and leaves them out of the text."""
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        with suppress(OSError, ValueError, AttributeError):
            given = json.loads((model / name).read_text(encoding="utf-8")).get("eos_token_id")
            ends.update(each for each in (given if isinstance(given, list) else [given]) if isinstance(each, int))
    return frozenset(ends)


def start(main: Any, setup: Json, port: int, log: Path, note: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(setup["env"])
        os.chdir(setup["cwd"])
        with suppress(ImportError):
            note_template_errors(note)
        sys.argv = ["vllm", "launch", "render", *setup["argv"], "--host", "127.0.0.1", "--port", str(port)]
        # argparse has written why it refuses the options; a traceback would only hide this.
        with suppress(SystemExit):
            main()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def wait(client: Client, process: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        if client.is_up():
            return True
        time.sleep(0.05)
    return False


def exit_code(process: int, seconds: float) -> int | None:
    """Returns the exit code of a front end, negative for a signal; None if it still runs after ``seconds``. Connections
    close shortly before the process ends."""
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() >= end:
            return None
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(ended[1])


def stop(process: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def peak(process: int) -> int:
    """Returns the peak memory of a process in bytes."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return 0


def ask(client: Client, process: int, setup: Json) -> Json:
    """Returns the answers to a setup's questions by name; ``broke_off`` is the reason if not all were asked."""
    answers: Json = {}
    silent = 0
    for question in setup["questions"]:
        name, is_silent = question["name"], False
        try:
            answers[name] = ANSWERS[question["kind"]](client, question)
        except NoSuchAddressError as error:
            answers[name] = {"missing": str(error)}
        except RefusedError as error:
            answers[name] = error.answer
        except (OSError, http.client.HTTPException, KeyError, TypeError, ValueError) as error:
            client.connection.close()
            answers[name] = {"failed": f"{type(error).__name__}: {error}"}
            is_silent = isinstance(error, TimeoutError)
            is_cut = isinstance(error, (ConnectionError, http.client.HTTPException))
            code = exit_code(process, 1.0 if is_cut else 0.0)
            if code is not None:
                return {"answers": answers, "broke_off": f"it ended with {code}", "was_killed": code == -signal.SIGKILL}
        silent = silent + 1 if is_silent else 0
        if silent == MOST_SILENT:
            return {"answers": answers, "broke_off": f"it left {silent} questions in a row without an answer"}
    return {"answers": answers}


def template(setup: Json) -> str | None:
    """Returns the text of the chat template that the setup names; None if the file cannot be read."""
    named: str = setup["template"]
    if not named or any(sign in named for sign in "{}\n"):
        return named
    with suppress(OSError, ValueError):
        return Path(setup["cwd"], named).read_text(encoding="utf-8")
    return None


def main(folder: Path) -> None:
    work = json.loads((folder / "work.json").read_text(encoding="utf-8"))

    version = installed_version()
    write(folder / "state.json", {"version": version})
    os.environ.update(work["env"])
    signal.alarm(work["start_seconds"])  # ends this process if the import hangs
    try:
        front_end = import_front_end()
    except (Exception, SystemExit) as error:  # noqa: BLE001
        write(folder / "state.json", {"version": version, "failure": f"{type(error).__name__}: {error}"})
        return
    signal.alarm(0)
    for number, setup in enumerate(work["setups"]):
        began = time.monotonic()
        port, log, note = PORT + number, folder / f"log-{number}", folder / f"template-error-{number}.json"
        process = start(front_end, setup, port, log, note)
        client = Client(port, note, ends_of_turns(Path(setup["argv"][0])))
        result: Json = {"template": template(setup)}
        try:
            if wait(client, process, work["start_seconds"]):
                result |= ask(client, process, setup)
            if ("answers" not in result or "broke_off" in result) and log.exists():
                result["log"] = log.read_text(encoding="utf-8", errors="replace")[-4000:]
            result["memory"] = peak(process)
        finally:
            stop(process)
        result["seconds"] = time.monotonic() - began
        write(folder / f"answers-{number}.json", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
