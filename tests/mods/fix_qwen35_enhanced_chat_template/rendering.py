"""Renders the template as transformers does, with nothing but Jinja."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from .cases import Json

MOD = Path(__file__).parents[3] / "mods" / "fix-qwen3.5-enhanced-chat-template"
TEMPLATE = MOD / "qwen3.5-enhanced.jinja"


def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - as transformers does it


def environment(**settings: bool) -> jinja2.Environment:
    """transformers/utils/chat_template_utils.py, _cached_compile_jinja_template (5.19.0)."""
    jinja = ImmutableSandboxedEnvironment(**settings, extensions=["jinja2.ext.loopcontrols"])
    jinja.filters["tojson"] = tojson
    jinja.globals["raise_exception"] = raise_exception
    jinja.globals["strftime_now"] = strftime_now
    return jinja


def compile_template(**settings: bool) -> jinja2.Template:
    return environment(**settings).from_string(TEMPLATE.read_text(encoding="utf-8"))


COMPILED = compile_template(trim_blocks=True, lstrip_blocks=True)


def render(messages: list[Json], tools: list[Json] | None = None, **options: Any) -> str:
    return COMPILED.render(messages=messages, tools=tools, documents=None, **options)
