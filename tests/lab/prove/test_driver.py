"""The program inside the image, asked here: a front end that breaks off is told, and not asked for ever."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import jinja2
import pytest

from builder.lab.prove import driver
from tests import processes
from tests.lab.prove import rendering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FrontEnd(http.server.BaseHTTPRequestHandler):
    """Renders a conversation as its first message, which may ask it to end or to say nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0] if "messages" in body else ""
        if text.startswith("exit"):
            os._exit(3)
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "hang":
            time.sleep(600)
        content = json.dumps({"token_ids": [1], "prompt": text}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


class Client(driver.Client):
    """Waits long for an answer, but not for one that never comes."""

    def _exchange(self, path: str, content: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection.timeout = 0.2 if content and b"hang" in content else processes.BUSY
        if self.connection.sock:
            self.connection.sock.settimeout(self.connection.timeout)
        return super()._exchange(path, content)


@pytest.fixture
def front_end() -> Iterator[tuple[driver.Client, int]]:
    """A client, and the process of a front end that it speaks to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = os.fork()
        if not process:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FrontEnd, bind_and_activate=False)
            server.socket.close()
            server.socket = listening
            threading.Thread(target=server.serve_forever).start()
            time.sleep(600)
            os._exit(0)
        client = Client(listening.getsockname()[1])
        yield client, process
        client.connection.close()
        driver.stop(process)


def ask(front_end: tuple[driver.Client, int], *texts: str) -> dict[str, Any]:
    questions = [
        {"name": f"{number} {text}", "kind": "prompt", "request": {"messages": [text, number]}}
        for number, text in enumerate(texts)
    ]
    result: dict[str, Any] = driver.ask(*front_end, {"questions": questions})
    return result


@pytest.mark.slow
def test_every_question_is_answered(front_end: tuple[driver.Client, int]) -> None:
    result = ask(front_end, "a", "b")
    assert list(result) == ["answers"]
    assert [each["ids"] for each in result["answers"].values()] == [[1], [1]]


@pytest.mark.slow
def test_one_without_an_answer_does_not_keep_the_next_from_it(front_end: tuple[driver.Client, int]) -> None:
    result = ask(front_end, "hang", "hang", "a", "hang", "b")
    assert list(result) == ["answers"]
    assert [set(each) for each in result["answers"].values()] == [
        {"failed"}, {"failed"}, {"ids", "text"}, {"failed"}, {"ids", "text"},
    ]  # fmt: skip


@pytest.mark.slow
def test_one_that_no_longer_answers_is_not_asked_on(front_end: tuple[driver.Client, int]) -> None:
    result = ask(front_end, "a", *["hang"] * 20)
    assert len(result["answers"]) == 1 + driver.MOST_SILENT
    assert result["broke_off"] == "it left 3 questions in a row without an answer"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code", "killed"), [("exit", "3", False), ("kill", "-9", True)])
def test_one_that_ends_is_told(front_end: tuple[driver.Client, int], how: str, code: str, killed: bool) -> None:
    result = ask(front_end, "a", how, "b")
    assert list(result["answers"]) == ["0 a", f"1 {how}"]
    assert result["broke_off"] == f"it ended with {code}"
    assert result["was_killed"] is killed


class Letters(driver.Client):
    """A front end whose tokens are letters, and whose parser gives back what it reads."""

    def render(self, body: dict[str, Any]) -> list[int]:
        return self.encode(body["text"])

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def parse(self, *given: Any, **_: Any) -> dict[str, Any]:
        _, prompt, ids = given
        return {"content": self.decode(ids), "prompt": self.decode(prompt)}

    def parse_streamed(self, *given: Any, **_: Any) -> dict[str, Any]:
        _, _, pieces, ends = given
        ids = ["functions.bell", "x9"]
        stream = {"pieces": [len(each) for each in pieces], "ids": ids, "ends": [{"at": at, "ids": ids} for at in ends]}
        return {"content": "|".join(map(self.decode, pieces)), **stream}


def read_letters(turn: str, prompt: str = "user: x\nmodel: ", **more: Any) -> dict[str, Any]:
    bodies = {"before": prompt, "after": f"user: x\nmodel: {turn}<end>", "other": "user: x\nmodel: #<end>"}
    wanted = {name: {"text": text} for name, text in bodies.items()}
    return driver.answer_turn(Letters(0), {**wanted, "seed": 1, **more})


def test_a_turn_is_read_whole_in_chunks_and_in_one_piece() -> None:
    answer = read_letters("Nine now")
    assert answer["text"] == answer["whole"]["content"] == answer["streamed"]["one piece"]["content"] == "Nine now"
    assert answer["streamed"]["chunks"]["content"].replace("|", "") == "Nine now"
    assert answer["streamed"]["tokens"]["content"] == "Nine| now"


def test_a_turn_ends_early_where_it_is_cut() -> None:
    assert [read_letters("<call>", cut=part)["text"] for part in (0.01, 0.5, 0.99, 1.0)] == [
        "<",
        "<ca",
        "<call",
        "<call>",
    ]


def test_spans_of_a_turn_are_read_one_after_the_other() -> None:
    assert read_letters("<call>", cut=[[0, 1], [0, 1]])["text"] == "<call><call>"
    assert read_letters("<call>", cut=[[0, 0.2], [0.9, 1]])["text"] == "<>"
    assert read_letters("<call>", cut=2.0)["text"] == "<call><end>"


def test_a_turn_is_rewritten_before_it_is_read() -> None:
    assert read_letters("<call> x </call>", rewrite=[r"\s*([<>])\s*", r"\1"])["text"] == "<call>x</call>"


def test_a_mark_is_spelled_by_the_tokens_of_its_letters() -> None:
    class Marks(Letters):
        """One token for the mark of a call."""

        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("<call>", "\x01"))

        def decode(self, ids: list[int]) -> str:
            return super().decode(ids).replace("\x01", "<call>")

    wanted = {name: {"text": f"m: {text}"} for name, text in (("before", ""), ("after", "<call>x."), ("other", "#."))}
    written = driver.answer_turn(Marks(0), {**wanted, "seed": 1, "tokens": True})
    spelled = driver.answer_turn(Marks(0), {**wanted, "seed": 1, "tokens": True, "spelled": True})
    assert written["text"] == spelled["text"] == "<call>x"
    assert written["whole"] == spelled["whole"]
    assert [each["streamed"]["one piece"]["pieces"] for each in (written, spelled)] == [[2], [7]]


def test_the_tokens_of_a_spelled_mark_are_its_words() -> None:
    tokens = driver.tokens(Letters(0), list(map(ord, "<tool_call> Nine")))
    assert ["".join(map(chr, each)) for each in tokens] == ["<tool_call>", " Nine"]

    class Marks(Letters):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("<tool_call>", "\x01"))

    tokens = driver.tokens(Marks(0), list(map(ord, "<tool_call> Nine")))
    assert ["".join(map(chr, each)) for each in tokens] == ["<", "tool", "_", "call", ">", " Nine"]


def test_an_output_may_end_with_each_of_its_tokens() -> None:
    streamed = read_letters("Nine o clock", tokens=True, ends=True, cut=1.0)["streamed"]
    assert streamed["tokens"]["ends"] == [{"at": 0, "ids": []}, {"at": 1, "ids": []}]
    assert streamed["chunks"]["ends"] == streamed["one piece"]["ends"] == []


def test_the_tokens_of_a_text_are_asked_for_once() -> None:
    asked: list[str] = []

    class Counting(driver.Client):
        def post(self, _: str, body: dict[str, Any]) -> Any:
            asked.append(body["prompt"])
            return {"tokens": [len(asked)]}

    client = Counting(0)
    assert [client.encode(text) for text in ("a", "b", "a")] == [[1], [2], [1]]
    assert asked == ["a", "b"]


def test_ids_that_the_model_writes_are_kept() -> None:
    assert read_letters("functions.bell now")["streamed"]["chunks"]["ids"] == ["functions.bell"]
    assert read_letters("bell now")["streamed"]["chunks"]["ids"] == []


def test_a_model_may_begin_with_the_mark_that_the_prompt_ends_with() -> None:
    prompt = "user: x\nmodel: <think>"
    bodies = {"before": prompt, "after": f"{prompt}why</think>now<end>", "other": f"{prompt}#<end>"}
    wanted = {name: {"text": text} for name, text in bodies.items()}
    read = [
        driver.answer_turn(Letters(0), {**wanted, "reasoning": "why", "seed": 1, "again": again})["text"]
        for again in (False, True)
    ]
    assert read == ["why</think>now", "<think>why</think>now"]
    assert read_letters("now", again=True)["text"] == "now"


def test_a_prompt_may_contain_the_beginning_of_the_turn() -> None:
    answer = read_letters("<think>why</think>", begun=0.5, cut=1.0)
    assert answer["whole"] == {"content": "y</think>", "prompt": "user: x\nmodel: <think>wh"}
    assert answer["streamed"]["one piece"]["content"] == "y</think>"


def test_a_prompt_may_quote_the_beginning_of_the_turn() -> None:
    answer = read_letters("<think>why</think>", quoted=0.4, cut=1.0)
    assert answer["whole"] == {"content": "<think>why</think>", "prompt": "<think>user: x\nmodel: "}


def test_a_stream_notes_what_each_of_its_pieces_had() -> None:
    message = driver.new_message()
    begun = {"index": 0, "id": "a", "type": "function", "function": {"name": "weather", "arguments": ""}}
    for delta in (
        {"reasoning": "why", "content": "no"},
        {},
        {"tool_calls": [begun, {"index": 0, "function": {"arguments": "{}"}}]},
    ):
        driver._add(message, delta)
    assert message.pop("pieces") == ["reasoning 3, content 2", "", "call 0 id type name 0, call 0 2"]
    calls = [{"name": "weather", "arguments": "{}"}]
    assert message == {"content": "no", "reasoning": "why", "calls": calls, "ids": ["a"], "ends": []}


def test_a_stream_goes_on_after_each_end_that_it_could_have() -> None:
    class Counting(driver.Client):
        """A front end that reads as many tokens as it got so far, and says whether they were all."""

        def post(self, _: str, body: dict[str, Any]) -> Any:
            (choice,) = body["generate_chunk"]["choices"]
            count = (body["stream_state"] or 0) + len(choice["token_ids"])
            if count == 3 and choice["finish_reason"]:
                raise driver.RefusedError("three")
            delta = {"content": f"{count}{'.' if choice['finish_reason'] else ''} "}
            return {"stream_state": count, "chunk": {"choices": [{"delta": delta}]}}

    message = Counting(0).parse_streamed({}, [], [[7], [7], [7], [7, 7]], range(3))
    assert message["content"] == "1 2 3 5. "
    assert [each.get("content", each.get("refused")) for each in message["ends"]] == ["1. ", "2. ", "three"]


def test_a_turn_whose_first_mark_begins_like_that_of_the_prompt_is_whole() -> None:
    answer = read_letters("<call>now", prompt="user: x\nmodel: <think>")
    assert answer["text"] == "</think><call>now"


@pytest.mark.parametrize(
    ("source", "error", "line"),
    [
        ("a\n{{ raise_exception('only one call at once') }}", "TemplateError", 2),
        ("a\nb\n{{ nested_arguments.x }}", "UndefinedError", 3),
        ("{{ 1 + 'a' }}", "TypeError", 1),
        ("{{ messages.append(1) }}", "SecurityError", 1),
        ("{% if %}", "TemplateSyntaxError", 1),
    ],
)
def test_the_kind_of_a_template_s_error_is_noted(tmp_path: Path, source: str, error: str, line: int) -> None:
    note = tmp_path / "note"
    handle = jinja2.Environment.handle_exception
    try:
        driver.note_template_errors(note)
        answer = rendering.prompt(source, {"messages": [], "add_generation_prompt": True})
    finally:
        jinja2.Environment.handle_exception = handle  # type: ignore[method-assign]
    assert answer["error"] == error
    assert json.loads(note.read_text(encoding="utf-8")) == {"error": error, "line": line}


@pytest.mark.slow
def test_what_was_noted_is_in_the_answer_to_that_request_alone(tmp_path: Path) -> None:
    note = tmp_path / "note"

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body["messages"] == ["breaks"]:
                driver.write(note, {"error": "UndefinedError", "line": 7})
            content = json.dumps({"error": {"message": "x is undefined"}}).encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Writes nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        client = driver.Client(server.server_address[1], note)
        questions = [
            {"name": text, "kind": "prompt", "request": {"messages": [text]}} for text in ("breaks", "refuses")
        ]
        answers = driver.ask(client, os.getpid(), {"questions": questions})["answers"]
        client.connection.close()
        server.shutdown()
    assert answers == {
        "breaks": {"refused": "x is undefined", "error": "UndefinedError", "line": 7},
        "refuses": {"refused": "x is undefined"},
    }
