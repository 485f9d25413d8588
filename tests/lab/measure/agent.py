"""A model that does the job of the probe `tools-long`, and faults that are planted into its answers."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.lab.measure.openai_server import Model

_STEP = re.compile(r"call the tool (\S+) once, with exactly these arguments: (.*?)\.?\s*$", re.DOTALL)


def step_of(body: dict[str, Any]) -> int:
    """The step that the conversation has come to, counted from 1."""
    return 1 + sum(1 for message in body["messages"] if message["role"] == "tool")


def obedient(body: dict[str, Any]) -> dict[str, Any]:
    """The right answer."""
    last = body["messages"][-1]["content"]
    text = json.loads(last)["next"] if body["messages"][-1]["role"] == "tool" else last
    due = _STEP.search(text)
    if not due or not body.get("tools"):
        return {"role": "assistant", "content": "DONE"}
    decoder = json.JSONDecoder()
    arguments, rest = {}, due[2]
    while rest:
        name, _, value = rest.partition(" = ")
        arguments[name], end = decoder.raw_decode(value)
        rest = value[end:].removeprefix(", ")
    return calling(due[1], json.dumps(arguments, ensure_ascii=False))


def calling(name: str, arguments: str, *, times: int = 1) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": f"call-{number}", "type": "function", "function": function} for number in range(times)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def at_step(step: int, fault: Model) -> Model:
    """A model that does as `obedient` does, but at one step answers as ``fault`` says."""
    return lambda body: fault(body) if step_of(body) == step and body.get("tools") else obedient(body)


def _changed(body: dict[str, Any], name: str = "", arguments: str = "", times: int = 1) -> dict[str, Any]:
    function = obedient(body)["tool_calls"][0]["function"]
    return calling(name or function["name"], arguments or function["arguments"], times=times)


def doubled(body: dict[str, Any]) -> dict[str, Any]:
    return _changed(body, times=2)


def missing(_body: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "I would call the tool now."}


def cut_off(body: dict[str, Any]) -> dict[str, Any]:
    return _changed(body, arguments='{"ticket": "T-0')


def raw(body: dict[str, Any]) -> dict[str, Any]:
    name = obedient(body)["tool_calls"][0]["function"]["name"]
    return {"role": "assistant", "content": f"<tool_call>\n<function={name}>\n</function>\n</tool_call>"}


def other_tool(body: dict[str, Any]) -> dict[str, Any]:
    names = {tool["function"]["name"] for tool in body["tools"]}
    return _changed(body, name=min(names - {obedient(body)["tool_calls"][0]["function"]["name"]}))


def text_for_number(body: dict[str, Any]) -> dict[str, Any]:
    arguments = json.loads(obedient(body)["tool_calls"][0]["function"]["arguments"])
    return _changed(body, arguments=json.dumps({**arguments, "count": str(arguments["count"])}))


def one_for_true(body: dict[str, Any]) -> dict[str, Any]:
    arguments = json.loads(obedient(body)["tool_calls"][0]["function"]["arguments"])
    return _changed(body, arguments=json.dumps({**arguments, "urgent": int(arguments["urgent"])}))
