"""Chat templates are compiled as the server compiles them: what it refuses is told by its line."""

from __future__ import annotations

import pytest

from builder.definitions import chat_template

TAKEN = """\
{%- for message in messages %}
  {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}
  {{- message.content | tojson }}
  {% generation %}{{ message.content }}{% endgeneration %}
  {%- if loop.last %}{% break %}{% endif %}
{%- endfor %}
{{ raise_exception('no') if not messages }}{{ strftime_now('%d %b %Y') }}
"""


def test_what_transformers_adds_to_jinja_is_taken() -> None:
    assert chat_template.fault(TAKEN.encode()) is None


@pytest.mark.parametrize(
    ("template", "line", "reason"),
    [
        ("a\n{% for m in messages %}{{ m }}", 2, "Unexpected end of template"),
        ("{{ a }\n", 1, "unexpected '}'"),
        ("\n\n{% fro m in messages %}", 3, "Encountered unknown tag 'fro'"),
        ("{{ m | to_json }}", 1, "No filter named 'to_json'"),
        ("{% generation %}x", 1, "Unexpected end of template"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, 1, "nested too deeply"),
    ],
)
def test_what_does_not_compile_is_told_by_line_and_reason(template: str, line: int, reason: str) -> None:
    fault = chat_template.fault(template.encode())
    assert fault is not None
    assert fault[0] == line
    assert reason in fault[1]


def test_bytes_that_are_no_text_are_told_by_their_line() -> None:
    assert chat_template.fault(b"a\nb\xff") == (2, "not UTF-8 text")


@pytest.mark.parametrize("huge", ["10 ** (10 ** 9)", "'a' * 10 ** 10", "'a' | center(10 ** 10)"])
def test_nothing_in_a_template_is_computed(huge: str) -> None:
    text = f"{{{{ {huge} }}}}{{% set x = {huge} %}}{{% if {huge} == x %}}{{{{ [{huge}] }}}}{{% endif %}}"
    assert chat_template.fault(text.encode()) is None
