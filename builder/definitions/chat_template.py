"""Checks the syntax of chat templates in the same way as the server.

transformers compiles the templates of models and of `--chat-template` in the same environment
(`_compile_jinja_template` in
https://github.com/huggingface/transformers/blob/v4.57.1/src/transformers/utils/chat_template_utils.py): Jinja's
immutable sandbox with loop controls and the tag `generation`. The functions that transformers adds (`raise_exception`,
`strftime_now`) are ordinary names until a template is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.parser import Parser


class _Generation(Extension):
    """The tag around the model's own text, which training uses."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own form

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Reads the block, which is rendered unchanged."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context
def _unchanged(_context: object, value: object) -> object:
    """Returns the value. Because it requires a context, Jinja computes no output while it compiles."""
    return value


def fault(content: bytes) -> tuple[int, str] | None:
    """The line and the reason if ``content`` is not a valid chat template; otherwise None."""
    environment = ImmutableSandboxedEnvironment(
        autoescape=False,  # like transformers: a prompt is not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        # Nothing is computed here: a constant expression may take all time or memory.
        optimized=False,
        finalize=_unchanged,
    )
    try:
        environment.compile(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return content.count(b"\n", 0, error.start) + 1, "not UTF-8 text"
    except jinja2.TemplateSyntaxError as error:
        return error.lineno, str(error.message)
    except (SyntaxError, RecursionError, MemoryError) as error:
        # Python compiles the generated code, and limits the nesting of blocks.
        return 1, f"nested too deeply: {error}"
    return None
