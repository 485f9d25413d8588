"""The texts that images rate: prompts of many kinds and depths, composed from a seed, and the owner's sessions.

A mixed prompt changes its kind every `LENGTH` tokens, so one long prompt contains every kind at every depth.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import files, yaml_file
from builder.base.errors import UsageError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass
from builder.lab.measure import outcome, served_model

if TYPE_CHECKING:
    from builder.lab.measure.served_model import ServedModel

LENGTH = 128
"""The tokens of one text. A text is a part of a prompt, of one kind, and one measurement."""
DEPTHS = (1024, 8192, 32768)
COPYING, ARITHMETIC, TOOLS, SESSIONS = "copying", "arithmetic", "tools", "sessions"
VERSION = "1"
_TEXTS = Path(__file__).with_name("texts.yaml")
_SLOT = re.compile(r"«(\D+?)(\d*)»")
_FEWEST = 8  # texts of each kind at each depth: a band needs at least this many
_NEEDLES = 6
_ANSWER = 1  # tokens: a completion needs at least one, in the same context as the prompt
_SECONDS = 120.0
_LARGEST_SESSION = 16 << 20
Messages: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class ForcedText:
    """The tokens of a prompt from ``start`` to ``end``, of one ``kind``, between the previous depth and ``depth``."""

    kind: str
    depth: int
    start: int
    end: int


@dataclass(frozen=True)
class ForcedPrompt:
    """A prompt as token ids, and the texts in it."""

    tokens: tuple[int, ...]
    texts: tuple[ForcedText, ...]


@dataclass(frozen=True)
class ForcedPrompts:
    """All prompts of a comparison. ``digests`` are of a server's tokens, by kind: servers with different digests read
    different tokens. ``left_out`` lists the prompts that could not be made."""

    prompts: tuple[ForcedPrompt, ...]
    digests: Mapping[str, str]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextPlan:
    """The prompts to make: from ``seed``, up to ``deepest`` tokens (0: the whole context), and ``times`` as many as
    usual. The owner's ``sessions`` are saved requests; only servers on this machine get them."""

    seed: int = 0
    deepest: int = 0
    times: int = 1
    sessions: tuple[Messages, ...] = ()

    def depths(self, context: int) -> tuple[int, ...]:
        """The depths that fit into a context, and the end of the context if it is well beyond the last depth."""
        most = min(context, self.deepest or context)
        fitting = [depth for depth in DEPTHS if depth <= most]
        return tuple(fitting) if fitting and most < 1.5 * fitting[-1] else (*fitting, most)


@functools.cache
def _data() -> Mapping[str, Any]:
    loaded: dict[str, Any] = yaml_file.load(_TEXTS.read_text(encoding="utf-8"), _TEXTS.name)
    return loaded


def texts_digest() -> str:
    """The digest of the texts. Compare figures only if their texts have the same digest."""
    return outcome.outcome_digest([VERSION, LENGTH, _data()])


def kinds() -> tuple[str, ...]:
    """The kinds of a mixed prompt: all except `TOOLS`."""
    return (*(kind for kind in _data()["kinds"] if kind != TOOLS), ARITHMETIC, COPYING)


def compose_prompts(served: ServedModel, plan: TextPlan) -> ForcedPrompts:
    """The prompts of a plan in the tokens of a server. Raises NoAnswerError if the server does not return tokens."""
    numbers = random.Random(plan.seed)  # noqa: S311 (the same texts wherever they are composed)
    depths = plan.depths(served.context)
    most = min(depths[-1], served.context - _ANSWER)
    digests: dict[str, str] = {}
    left_out = []
    spans = zip(depths, (0, *depths), strict=False)
    lengths = [depth for depth, before in spans for _ in range(_count(depth - before) * plan.times)]
    mixed = _mixed(served, numbers, lengths, digests)
    prompts = [_prompt(tokens, kinds_of, depths) for tokens, kinds_of in mixed]
    try:
        whole, tokens = _tool_session(served, numbers, most)
        digests[TOOLS] = outcome.outcome_digest([whole, tokens])
        prompts.append(_prompt(tokens, [TOOLS] * (len(tokens) // LENGTH), depths))
    except NoAnswerError as error:
        left_out.append(f"{TOOLS} left out: the server cannot render tool calls: {str(error)[:200]}")
    for number, request in enumerate(plan.sessions, 1):
        try:
            tokens = _rendered(served, request)
        except NoAnswerError as error:
            left_out.append(f"session {number} left out: {str(error)[:200]}")
            continue
        digests[f"{SESSIONS} {number}"] = outcome.outcome_digest(tokens)
        cut = tokens[:most]
        if len(cut) >= LENGTH:
            prompts.append(_prompt(cut, [SESSIONS] * (len(cut) // LENGTH), depths))
        else:
            left_out.append(f"session {number} left out: it has fewer than {LENGTH} tokens")
    return ForcedPrompts(tuple(prompts), digests, tuple(left_out))


def _count(tokens: int) -> int:
    """The number of prompts for enough texts of each kind, if a prompt has this many tokens at a depth."""
    return -(-_FEWEST * len(kinds()) // max(tokens // LENGTH, 1))


def _prompt(tokens: Sequence[int], kinds_of: Sequence[str], depths: Sequence[int]) -> ForcedPrompt:
    texts = []
    for number, kind in enumerate(kinds_of):
        start = number * LENGTH
        depth = next(depth for depth in depths if start + LENGTH <= max(depth, LENGTH))
        texts.append(ForcedText(kind, depth, max(start, 1), start + LENGTH))  # the first token is not rated
    return ForcedPrompt(tuple(tokens), tuple(texts))


def _mixed(
    served: ServedModel, numbers: random.Random, lengths: Sequence[int], digests: dict[str, str]
) -> Iterator[tuple[list[int], list[str]]]:
    """Yields the tokens of each mixed prompt with the kind of each text. The first text is of the kind `COPYING`; later
    ones of this kind repeat parts of it."""
    order = [kind for kind in kinds() if kind != COPYING]
    needed = sum(length // LENGTH for length in lengths) // len(kinds()) + 2
    streams: dict[str, Iterator[list[int]]] = {}
    for kind in order:
        stream = _stream(served, functools.partial(_piece, kind, numbers), needed * LENGTH)
        digests[kind] = outcome.outcome_digest(stream)
        streams[kind] = iter([stream[place : place + LENGTH] for place in range(0, len(stream), LENGTH)])
    every = [_beginning(served)]
    turn: list[str] = []
    for length in lengths:
        needles = [_filled("The code of the «thing» from «city» is «N»«n». ", numbers) for _ in range(_NEEDLES)]
        count = min(length, served.context - _ANSWER) // LENGTH
        recalled = _stream(served, functools.partial(numbers.choice, needles), (count + 1) * LENGTH)
        told = [*every[0], *_tokens(served, "".join(needles))][:LENGTH]
        every += [told, recalled]
        told += recalled[: LENGTH - len(told)]
        tokens, kinds_of = told, [COPYING]
        while len(kinds_of) < count:
            if not turn:
                turn = [*order, COPYING]
                numbers.shuffle(turn)
            kind, place = turn.pop(), len(kinds_of) * LENGTH
            tokens += recalled[place : place + LENGTH] if kind == COPYING else next(streams[kind])
            kinds_of.append(kind)
        yield tokens, kinds_of
    digests[COPYING] = outcome.outcome_digest(every)


def _beginning(served: ServedModel) -> list[int]:
    """The tokens that the tokenizer puts before a text. Without these tokens, some models rate badly."""
    whole, plain = _ids(served, {"prompt": "a"}), _tokens(served, "a")
    return whole[: len(whole) - len(plain)] if whole[len(whole) - len(plain) :] == plain else []


def _stream(served: ServedModel, piece: Callable[[], str], needed: int) -> list[int]:
    """At least ``needed`` tokens from consecutive pieces."""
    tokens: list[int] = []
    while len(tokens) < needed:
        text = ""
        while len(text) < 3 * (needed - len(tokens)) + 200:
            text += piece()
        tokens += _tokens(served, text)
    return tokens


def _piece(kind: str, numbers: random.Random) -> str:
    return _sum(numbers) if kind == ARITHMETIC else _filled(numbers.choice(_data()["kinds"][kind]), numbers)


def _filled(text: str, numbers: random.Random) -> str:
    drawn: dict[str, str] = {}

    def value(slot: re.Match[str]) -> str:
        if slot[0] not in drawn:
            drawn[slot[0]] = _drawn(slot[1], numbers)
        return drawn[slot[0]]

    return _SLOT.sub(value, text)


_RANGES = {"d": (1, 9), "n": (2, 99), "N": (100, 9999)}


def _drawn(name: str, numbers: random.Random) -> str:
    if name in _RANGES:
        return str(numbers.randint(*_RANGES[name]))
    if name == "x":
        return f"{numbers.uniform(0, 100):.1f}"
    if name == "hex":
        return f"{numbers.randrange(16**6):06x}"
    return str(numbers.choice(_data()["words"][name]))


def _sum(numbers: random.Random) -> str:
    first, second, third = (numbers.randint(2, 999) for _ in range(3))
    return numbers.choice(
        (
            f"{first} + {second} = {first + second}\n",
            f"{first + second} - {second} = {first}\n",
            f"{first} * {second} = {first * second}\n",
            f"({first} + {second}) * {third} = {(first + second) * third}\n",
            f"{first * second} / {first} = {second}\n",
            f"{first} mod {third} = {first % third}\n",
        )
    )


def _tool_session(served: ServedModel, numbers: random.Random, most: int) -> tuple[list[int], list[int]]:
    """Two sessions with tool calls, in the template of the model: a short one that ends with the beginning of an
    answer, and one of at most ``most`` tokens."""
    pieces = _data()["kinds"][TOOLS]
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Does what {name} says.",
                "parameters": {"type": "object", "properties": {key: {} for key in json.loads(_filled(call, numbers))}},
            },
        }
        for name, call, *_ in pieces
    ]
    messages = [each for piece in pieces for each in _exchange(piece, numbers, 0)]
    whole = _rendered(served, {"messages": messages[:-1], "tools": tools}, begins_answer=True)
    messages = []
    tokens: list[int] = []
    rounds = 2
    while True:
        while len(messages) < 4 * rounds:
            messages += _exchange(numbers.choice(pieces), numbers, len(messages))
        longer = _rendered(served, {"messages": messages, "tools": tools})
        if len(longer) >= most or len(longer) <= len(tokens):
            return whole, longer[:most]
        tokens = longer
        rounds = max(rounds + 1, min(rounds * 4, rounds * most // len(tokens) + 1))


def _exchange(piece: Sequence[str], numbers: random.Random, place: int) -> list[Messages]:
    """A question, a tool call, its result and the answer."""
    name, call, result, question, answer = _filled("\0".join(piece), numbers).split("\0")
    number = f"call_{place:05d}"  # some templates require at least nine characters
    called = {"id": number, "type": "function", "function": {"name": name, "arguments": call}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": number, "content": result},
        {"role": "assistant", "content": answer},
    ]


def _rendered(served: ServedModel, request: Messages, *, begins_answer: bool = False) -> list[int]:
    taken = {key: request[key] for key in ("messages", "tools", "chat_template_kwargs") if request.get(key)}
    return _ids(served, {**taken, "add_generation_prompt": begins_answer})


def _tokens(served: ServedModel, text: str) -> list[int]:
    return _ids(served, {"prompt": text, "add_special_tokens": False})


def _ids(served: ServedModel, body: dict[str, Any]) -> list[int]:
    answer = served_model.post(served, f"{served.root}/tokenize", body, _SECONDS)
    tokens = answer.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise NoAnswerError("the server does not return the tokens of a text")
    return tokens


# The owner's sessions: unchanged requests to /v1/chat/completions, one per JSON file or one per line.


def read_sessions(folder: Path) -> tuple[Messages, ...]:
    """The requests in the files of a folder. Raises UsageError if a file contains no request or the folder is empty."""
    requests: list[Messages] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in {".json", ".jsonl"}:
            continue
        try:
            text = files.read_plain_file(path, _LARGEST_SESSION).decode()
            # Only a line feed ends a line: a text in JSON may contain other line ends, such as U+2028.
            parts = text.split("\n") if path.suffix == ".jsonl" else [text]
            requests += [_session(json.loads(part)) for part in parts if part.strip()]
        except (OSError, ValueError, TypeError) as error:
            hint = "each .json file, and each line of a .jsonl file, is a request to /v1/chat/completions"
            raise UsageError(f"{path} contains no saved request: {error}", hint=hint) from None
    if not requests:
        message = f"{folder} contains no saved requests"
        raise UsageError(message, hint="save requests to /v1/chat/completions there, as .json or .jsonl")
    return tuple(requests)


def _session(data: Any) -> Messages:
    request = data.get("body", data) if isinstance(data, dict) else None  # in OpenAI's batches, `body` is the request
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list) or not request["messages"]:
        raise ValueError("it has no `messages`")
    return request
