"""What the template must render, written once for test_template.py and in_image.py. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A conversation and the whole prompt it must become."""

    name: str
    messages: list[Json]
    expected: str
    tools: list[Json] | None = None
    options: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """A conversation that must be refused, with the whole message."""

    name: str
    messages: list[Json]
    error: str


def user(content: object) -> Json:
    return {"role": "user", "content": content}


def system(content: object) -> Json:
    return {"role": "system", "content": content}


def developer(content: object) -> Json:
    return {"role": "developer", "content": content}


def result(content: object) -> Json:
    return {"role": "tool", "tool_call_id": "call_0", "content": content}


def assistant(content: object, *calls: Json, **fields: object) -> Json:
    message: Json = {"role": "assistant", "content": content, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(name: str, arguments: object) -> Json:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {
    "name": "weather",
    "description": "The weather in a place: °C, é",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

TOOLS_TEXT = """\
# Tools

The <tools> block lists the functions you can call, one JSON object per line:

<tools>
{"type": "function", "function": {"name": "weather", "description": "The weather in a place: °C, é", \
"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
</tools>

Write a call like this, with every tag on its own line:

<tool_call>
<function=name_of_the_function>
<parameter=name_of_a_text_parameter>
Text as it is,
over as many lines as it needs.
</parameter>
<parameter=name_of_a_list_parameter>
["first", "second"]
</parameter>
</function>
</tool_call>

<IMPORTANT>
- Call only listed functions and give every required parameter; leave out optional ones you have no value for.
- Write text as it is, without quotes or escapes; write numbers, true, false, null, lists and objects as JSON.
- Finish thinking, and say anything the user should read, before the first call; write nothing after the last.
- Make calls that do not depend on each other in one reply, one <tool_call> block after the other.
- If no call is needed, just answer.
</IMPORTANT>"""

TURNS = [
    Case(
        "a question",
        [user("Hi")],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
        options={"add_generation_prompt": True},
    ),
    Case(
        "thinking switched off",
        [user("Hi")],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        options={"add_generation_prompt": True, "enable_thinking": False},
    ),
    Case(
        "thinking switched on",
        [user("Hi")],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
        options={"add_generation_prompt": True, "enable_thinking": True},
    ),
    Case(
        "no generation prompt",
        [system("Be brief."), user("Hi"), assistant("Hello.")],
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n",
    ),
]

INSTRUCTIONS = [
    Case(
        "several system messages open one system turn",
        [system("One."), system("Two."), user("Hi")],
        "<|im_start|>system\nOne.\n\nTwo.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
    ),
    Case(
        "a developer is a system",
        [developer("One."), user("Hi")],
        "<|im_start|>system\nOne.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
    ),
    Case(
        "system and developer open one system turn, blank ones left out",
        [system("One."), system(" \n"), developer(""), developer([{"type": "text", "text": "Two."}]), user("Hi")],
        "<|im_start|>system\nOne.\n\nTwo.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
    ),
    Case(
        "nothing but blank instructions make no turn",
        [system(""), user("Hi")],
        "<|im_start|>user\nHi<|im_end|>\n",
    ),
    Case(
        "a system message that is not first keeps its place",
        [user("Hi"), assistant("Hello."), system("From now on in French."), user("Bye")],
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>system\nFrom now on in French.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n",
    ),
    Case(
        "a developer message that is not first keeps its place",
        [system("One."), user("Hi"), developer("Two."), developer(" ")],
        "<|im_start|>system\nOne.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>system\nTwo.<|im_end|>\n",
    ),
]

TOOLS = [
    Case(
        "tools make a system turn",
        [user("Hi")],
        f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        tools=[{"type": "function", "function": WEATHER}],
    ),
    Case(
        "tools stand before the instructions",
        [system("Be brief."), user("Hi")],
        f"<|im_start|>system\n{TOOLS_TEXT}\n\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        tools=[{"type": "function", "function": WEATHER}],
    ),
    Case(
        "a bare tool is shown like a wrapped one",
        [user("Hi")],
        f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        tools=[WEATHER],
    ),
    Case(
        "a bare tool with a type, as in OpenAI's Responses API",
        [user("Hi")],
        f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        tools=[{"type": "function", **WEATHER}],
    ),
    Case("an empty list of tools", [user("Hi")], "<|im_start|>user\nHi<|im_end|>\n", tools=[]),
]

PARTS = [
    Case(
        "parts keep their order",
        [user([{"type": "text", "text": "Compare "}, {"type": "image"}, {"type": "video"}, "please"])],
        "<|im_start|>user\nCompare <|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|vision_end|>please<|im_end|>\n",
    ),
    Case(
        "images and videos under other names",
        [
            user([{"type": "image_url", "image_url": {"url": "x"}}, {"image": "x"}]),
            user([{"type": "video_url", "video_url": {"url": "x"}}, {"video": "x"}]),
        ],
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n",
    ),
    Case(
        "images and videos are numbered on request",
        [user([{"type": "image"}, {"type": "video"}]), user([{"type": "image"}])],
        "<|im_start|>user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>"
        "Video 1: <|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>user\nPicture 2: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n",
        options={"add_vision_id": True},
    ),
    Case(
        "no content, and none at all",
        [system(None), user(None), {"role": "user"}, user([]), assistant(None), result(None)],
        "<|im_start|>user\n<|im_end|>\n" * 3
        + "<|im_start|>assistant\n<|im_end|>\n"
        + "<|im_start|>user\n<tool_response>\n\n</tool_response><|im_end|>\n",
    ),
    Case(
        "text that is empty, a refusal, a reference to a tool",
        [
            user([{"type": "text", "text": None}]),
            assistant([{"type": "refusal", "refusal": "No."}]),
            result([{"type": "tool_reference", "name": "weather"}]),
        ],
        "<|im_start|>user\n<|im_end|>\n"
        "<|im_start|>assistant\nNo.<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nweather\n</tool_response><|im_end|>\n",
    ),
]

PARALLEL_CALLS = Case(
    "content before parallel calls, results in a row in one user turn",
    [
        user("Oslo and Rome?"),
        assistant("I look.\n", call("weather", {"city": "Oslo"}), call("weather", {"city": "Rome"})),
        result("  rain"),
        result([{"type": "text", "text": "sun\n"}]),
    ],
    """\
<|im_start|>user
Oslo and Rome?<|im_end|>
<|im_start|>assistant
I look.

<tool_call>
<function=weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
<tool_call>
<function=weather>
<parameter=city>
Rome
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
  rain
</tool_response>
<tool_response>
sun

</tool_response><|im_end|>
<|im_start|>assistant
<think>
""",
    options={"add_generation_prompt": True},
)

CALLS = [
    Case(
        "strings stand as they are, all else is JSON",
        [
            assistant(
                None,
                call(
                    "store",
                    {
                        "text": 'say "hé"\n  <b>&amp; \\n',
                        "digits": "42",
                        "empty": "",
                        "number": 1.5,
                        "yes": True,
                        "nothing": None,
                        "list": ["é", 1, False, None],
                        "object": {"a": {"b": "<c>"}},
                    },
                ),
            )
        ],
        """\
<|im_start|>assistant
<tool_call>
<function=store>
<parameter=text>
say "hé"
  <b>&amp; \\n
</parameter>
<parameter=digits>
42
</parameter>
<parameter=empty>

</parameter>
<parameter=number>
1.5
</parameter>
<parameter=yes>
true
</parameter>
<parameter=nothing>
null
</parameter>
<parameter=list>
["é", 1, false, null]
</parameter>
<parameter=object>
{"a": {"b": "<c>"}}
</parameter>
</function>
</tool_call><|im_end|>
""",
    ),
    Case(
        "arguments that are a JSON string",
        [
            assistant(
                None,
                call(
                    "store",
                    r'{"text": "a \"q\" \\ \/ \t| \u00e9 \ud83d\ude00 \\n", "list": ["x, {y\"}", [1]], "n":-1.5e3, '
                    r'"yes" : true , "nothing": null, "object": {"a": ":"}, "empty": ""}',
                ),
            )
        ],
        """\
<|im_start|>assistant
<tool_call>
<function=store>
<parameter=text>
a "q" \\ / \t| é 😀 \\n
</parameter>
<parameter=list>
["x, {y\\"}", [1]]
</parameter>
<parameter=n>
-1.5e3
</parameter>
<parameter=yes>
true
</parameter>
<parameter=nothing>
null
</parameter>
<parameter=object>
{"a": ":"}
</parameter>
<parameter=empty>

</parameter>
</function>
</tool_call><|im_end|>
""",
    ),
    Case(
        "no arguments",
        [assistant(None, call("now", {}), call("now", "{}"), call("now", ""), call("now", " "), call("now", None))],
        "<|im_start|>assistant\n"
        + "\n".join(["<tool_call>\n<function=now>\n</function>\n</tool_call>"] * 5)
        + "<|im_end|>\n",
    ),
    Case(
        "no calls",
        [{**assistant("Hi."), "tool_calls": None}, {**assistant("Hi."), "tool_calls": []}],
        "<|im_start|>assistant\nHi.<|im_end|>\n" * 2,
    ),
    Case(
        "arguments that are a list",
        [assistant(None, call("store", ["a"]))],
        '<|im_start|>assistant\n<tool_call>\n<function=store>\n["a"]\n</function>\n</tool_call><|im_end|>\n',
    ),
    Case(
        "a call without the function wrapper",
        [assistant(None, {"name": "weather", "arguments": {"city": "Oslo"}})],
        "<|im_start|>assistant\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n",
    ),
    Case(
        "an argument may be named like a method",
        [assistant(None, call("store", {"items": [1], "keys": "k"}))],
        "<|im_start|>assistant\n<tool_call>\n<function=store>\n<parameter=items>\n[1]\n</parameter>\n"
        "<parameter=keys>\nk\n</parameter>\n</function>\n</tool_call><|im_end|>\n",
    ),
    PARALLEL_CALLS,
    Case(
        "results of different rounds stay apart",
        [result("1"), assistant("", call("now", {})), result("2"), user("Thanks"), result("3")],
        "<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n",
    ),
    Case(
        "results that are objects, numbers or pictures",
        [result({"sky": "blue é"}), result(21.5), result([{"type": "image"}])],
        '<|im_start|>user\n<tool_response>\n{"sky": "blue é"}\n</tool_response>\n'
        "<tool_response>\n21.5\n</tool_response>\n"
        "<tool_response>\n<|vision_start|><|image_pad|><|vision_end|>\n</tool_response><|im_end|>\n",
    ),
]

ROUND = [
    user("First?"),
    assistant("One.", reasoning="old"),
    user("Second?"),
    assistant("", call("now", {}), reasoning="new"),
    result("12:00"),
    assistant("Noon.", reasoning="newer"),
]

NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"

THOUGHTS = [
    Case(
        "thoughts last until the next question",
        ROUND,
        "<|im_start|>user\nFirst?<|im_end|>\n"
        "<|im_start|>assistant\nOne.<|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnewer\n</think>\n\nNoon.<|im_end|>\n",
    ),
    Case(
        "thoughts are all kept on request",
        [user("First?"), assistant("One.", reasoning="old"), user("Second?")],
        "<|im_start|>user\nFirst?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nOne.<|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n",
        options={"preserve_thinking": True},
    ),
    Case(
        "a wrapped tool result is not the next question",
        [
            user("Time?"),
            assistant("I look.", reasoning="old"),
            user([{"type": "text", "text": "<tool_response>\n12:00\n</tool_response>"}]),
        ],
        "<|im_start|>user\nTime?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nI look.<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n",
    ),
    Case(
        "without any question all thoughts are kept",
        [system("Go on."), assistant("I look.", reasoning_content="\nold\n"), result("12:00")],
        "<|im_start|>system\nGo on.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nI look.<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n",
    ),
    Case(
        "thoughts inside the content are told apart",
        [
            assistant("<think>\nold\n</think>\n\nOne."),
            assistant("old\n</think>\n\nTwo."),
            assistant("</think>\n\nThree."),
        ],
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nOne.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nold\n</think>\n\nTwo.<|im_end|>\n"
        "<|im_start|>assistant\nThree.<|im_end|>\n",
    ),
    Case(
        "thoughts inside the content are dropped with the next question",
        [assistant("<think>\nold\n</think>\n\nOne."), user("Second?")],
        "<|im_start|>assistant\nOne.<|im_end|>\n<|im_start|>user\nSecond?<|im_end|>\n",
    ),
    Case(
        "an answer about the tags is left alone",
        [assistant("Close it with </think>."), assistant("Write:\n<think>\n…\n</think>\nDone."), user("Thanks")],
        "<|im_start|>assistant\nClose it with </think>.<|im_end|>\n"
        "<|im_start|>assistant\nWrite:\n<think>\n…\n</think>\nDone.<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n",
    ),
    Case(
        "a think block that is open before a call ends there",
        [
            assistant("<think>\nold", call("now", {})),
            assistant("<think>", call("now", {})),
            assistant(f"<think>\nold\n{NOW}"),
            assistant(f"<think>\nold\n{NOW}\n{NOW}"),
            assistant("I look.\n<think>\nold", call("now", {})),
            assistant(f"<think>\none\n</think>\n\nI look.\n<think>\ntwo {NOW}"),
            assistant("", call("now", {}), reasoning="<think>\nold"),
        ],
        f"<|im_start|>assistant\n<think>\nold\n</think>\n\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nold\n</think>\n\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nold\n</think>\n\n{NOW}\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\nI look.\n<think>\nold\n</think>\n\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\none\n</think>\n\nI look.\n<think>\ntwo\n</think>\n\n{NOW}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nold\n</think>\n\n{NOW}<|im_end|>\n",
    ),
    Case(
        "reasoning that is the whole answer and ends with a call ends before it",
        [assistant(None, reasoning=f"old\n{NOW}"), assistant("", reasoning=f"<think>\nold\n{NOW}")],
        f"<|im_start|>assistant\n<think>\nold\n</think>\n\n{NOW}<|im_end|>\n" * 2,
    ),
    Case(
        "a thought that ends before a call is dropped with the next question",
        [assistant("<think>\nold", call("now", {})), result("12:00"), user("Second?")],
        f"<|im_start|>assistant\n{NOW}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n",
    ),
    Case(
        "a call that a closed thought mentions stays in it",
        [
            assistant(f"<think>\nMaybe {NOW} here\n</think>\n\nNo call."),
            assistant("No call.", reasoning=f"Maybe {NOW}"),
            assistant(None, reasoning=f"Maybe {NOW} here"),
            assistant("The tag is <think>, and nothing follows."),
        ],
        f"<|im_start|>assistant\n<think>\nMaybe {NOW} here\n</think>\n\nNo call.<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nMaybe {NOW}\n</think>\n\nNo call.<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nMaybe {NOW} here\n</think>\n\n<|im_end|>\n"
        "<|im_start|>assistant\nThe tag is <think>, and nothing follows.<|im_end|>\n",
    ),
    Case(
        "with thinking switched off an answer under way keeps the empty block it began with",
        [user("First?"), assistant("One."), user("Second?"), assistant("", call("now", {})), result("12:00")],
        "<|im_start|>user\nFirst?<|im_end|>\n"
        "<|im_start|>assistant\nOne.<|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n",
        options={"enable_thinking": False},
    ),
]

CASES = [*TURNS, *INSTRUCTIONS, *TOOLS, *PARTS, *CALLS, *THOUGHTS]

# Conversations that vLLM prepares without changing what they say, in either content format.
TEXT_ONLY = [*TURNS, *INSTRUCTIONS, *TOOLS, *THOUGHTS, PARALLEL_CALLS]

REFUSALS = [
    Refusal("no messages", [], "There are no messages to answer."),
    Refusal(
        "an unknown role",
        [user("Hi"), {"role": "critic", "content": "Bad."}],
        "A message has the role critic; this model knows system, developer, user, assistant and tool.",
    ),
    Refusal(
        "an image among the instructions",
        [developer([{"type": "image"}]), user("Hi")],
        "A system or developer message holds media (image); this model takes it from users and tools only.",
    ),
    Refusal(
        "a video in a later instruction",
        [user("Hi"), system([{"type": "video"}])],
        "A system or developer message holds media (video); this model takes it from users and tools only.",
    ),
    Refusal(
        "a part that this model cannot take",
        [user([{"type": "audio"}])],
        "This model takes no content part of type audio.",
    ),
]

# Arguments that are no JSON object: shown as they came, since dropping them would rewrite what was said.
NOT_AN_OBJECT = [
    '{"a": 1',
    '{"a": "b"',
    '{"a": "b',
    '{"a": 1}{"b": 2}',
    '{"a": 1}{',
    '{"a": 1, 2}',
    '{"a": 1} and so on',
    'well: {"a": 1}',
    "1{}",
    "{'a': 1}",
    "{a: 1}",
    '{"a"}',
    '{"a":}',
    '{"a": [1}',
    r'{"path": "C:\Users\x"}',
    r'{"half": "\u12"}',
    r'{"half": "\u12\\34"}',
    '["a"]',
    '"a"',
    "null",
]

# One tool with a parameter of each type, and values that must come back from vLLM's parser as they went in.
STORE = {
    "type": "function",
    "function": {
        "name": "store",
        "description": "Stores values",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "integer": {"type": "integer"},
                "number": {"type": "number"},
                "boolean": {"type": "boolean"},
                "maybe": {"type": ["string", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "array": {"type": "array", "items": {"type": "object"}},
                "object": {"type": "object", "properties": {"n": {"type": "integer"}}},
            },
        },
    },
}

ROUND_TRIPS: list[Json] = [
    {},
    {"text": "plain"},
    {"text": ""},
    {"text": "true"},
    {"text": "42"},
    {"text": '"quoted"'},
    {"text": '{"a": [1, "b"]}'},
    {"text": "null"},
    {"text": "def f(x):\n    return x < 1 and x > 0  # \\n\n"},
    {"text": "\n\ntwo newlines on each end\n\n"},
    {"text": "  spaces on each end\t"},
    {"text": "<b>&amp;</b> <tool_call> </tool_call> <think> </think> <tool_response>"},
    {"text": "é 中文 😀 \u2028 \x07"},
    {"text": "C:\\Users\\x \\u0041 \\\\"},
    {"integer": -3, "number": 1.5},
    {"number": 2, "integer": 0},
    {"boolean": True},
    {"boolean": False, "text": "False"},
    {"maybe": None, "either": None},
    {"maybe": "text", "either": 7},
    {"array": []},
    {"array": [{"a": "x\ny", "b": [True, None, 1.5]}, {}]},
    {"object": {}},
    {"object": {"n": 1, "nested": {"q": 'say "hi"', "é": [[], {}]}}},
    {"text": "first", "integer": 1, "array": [{"a": 1}], "boolean": True, "object": {"n": 2}},
]
