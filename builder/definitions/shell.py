"""Parses the command of a recipe as bash would, without running it.

A command is a template: first its placeholders are parsed, then its words, and at the end the values are filled in.
The value of a placeholder is always text: it cannot end a quote or start a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby, pairwise
from string import Formatter
from typing import Literal, NamedTuple

from builder.base.errors import UsageError
from builder.base.values import dataclass, replace

# Placeholders follow the rules of Python's ``str.format``, and name plain keys only: ``{a.b}`` and ``{a[0]}`` would
# reach into objects, ``{}`` and ``{0}`` name nothing. Keys may contain hyphens. ``{{`` and ``}}`` are literal braces.

_FIELD = re.compile(r"\{(?P<key>[A-Za-z_][A-Za-z0-9_-]*)(?:!(?P<conversion>[rsa]))?(?::(?P<spec>[^{}]*))?\}")

Scalar = str | int | float | bool | None

LONGEST_ARGUMENT = 128 << 10
"""The maximum length of an argument in Linux (MAX_ARG_STRLEN), and thus of a shell command."""
_WIDEST = 1000  # characters that a format such as `{port:>8}` may make of a value


@dataclass(frozen=True)
class Placeholder:
    """A placeholder ``{key}`` at ``offset`` in its template; ``spec`` follows a colon, as in ``{share:.2f}``."""

    key: str
    written: str
    offset: int
    conversion: str = ""
    spec: str = ""


class Unit(NamedTuple):
    """A character of a command or a placeholder, with its offset. In a value, the offset is the offset of its
    placeholder ``source``."""

    item: str | Placeholder
    offset: int
    source: Placeholder | None = None


class CommandProblem(NamedTuple):
    written: str
    offset: int
    message: str


def parse_placeholders(template: str) -> tuple[tuple[Unit, ...], tuple[CommandProblem, ...]]:
    """Parses a template into its units and its problems. Doubled braces become single braces."""
    units: list[Unit] = []
    wrong = [
        CommandProblem("\0", at, "the command contains a NUL character; remove it")
        for at, char in enumerate(template)
        if char == "\0"
    ]
    for match in re.finditer(r"\{\{|\}\}|\{[^{}]*\}|[\s\S]", template):
        written, at = match[0], match.start()
        if written in {"{{", "}}"} or (len(written) == 1 and written not in "{}"):
            units.append(Unit(written[0], at))
        elif named := _FIELD.fullmatch(written):
            units.append(Unit(Placeholder(written=written, offset=at, **named.groupdict("")), at))
        else:
            shown = written if len(written) <= 40 else f"{written[:39]}…"
            message = "only a plain key can be in braces, such as {port}; double all other braces: {{ and }}"
            wrong.append(CommandProblem(written, at, f"`{shown}`: {message}"))
    return tuple(units), tuple(wrong)


IN_BRACES = re.compile(r"\{[^}\n]*+\}?")
"""A text in braces in a value of version 2; or, without a closing brace, the rest of the line, which is no
placeholder."""
SPANS = re.compile(r"\{\{|\}\}|\{[^{}\n]*+\}")
"""Doubled braces in a template of version 2, and the innermost texts in braces: JSON may surround a placeholder."""


def parse_plain_placeholders(
    template: str, keys: Collection[str]
) -> tuple[tuple[Unit, ...], tuple[CommandProblem, ...]]:
    """Parses a template of a recipe of version 2 into its units and its problems: ``{key}`` is a placeholder if
    ``keys`` contains it; other text in braces is unchanged. If the template has ``{{``, doubled braces become single
    braces. Without it, ``}}`` is the end of nested JSON."""
    units: list[Unit] = []
    wrong = [
        CommandProblem("\0", at, "the command contains a NUL character; remove it")
        for at, char in enumerate(template)
        if char == "\0"
    ]
    is_doubled = "{{" in template
    for match in re.finditer(rf"{SPANS.pattern}|[\s\S]", template):
        written, key, at = match[0], match[0].strip("{}"), match.start()
        if key and len(written) > 1 and key in keys:
            units.append(Unit(Placeholder(key, written, at), at))
        elif written in {"{{", "}}"} and is_doubled:
            units.append(Unit(written[0], at))
        else:
            units += (Unit(char, offset) for offset, char in enumerate(written, at))
    return tuple(units), tuple(wrong)


def placeholders(units: Iterable[Unit]) -> tuple[Placeholder, ...]:
    return tuple(unit.item for unit in units if isinstance(unit.item, Placeholder))


def keys(units: Iterable[Unit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(placeholder.key for placeholder in placeholders(units)))


def filled(units: Iterable[Unit], values: Mapping[str, Scalar]) -> Iterator[Unit]:
    """``units`` with each placeholder replaced by the text of its value, if ``values`` has a suitable one."""
    for unit in units:
        if isinstance(unit.item, Placeholder):
            with suppress(KeyError, ValueError):
                text = text_of(unit.item, values[unit.item.key])
                yield from (Unit(char, unit.offset, unit.item) for char in text)
                continue
        yield unit


def text_of_units(units: Iterable[Unit]) -> str:
    """The text of a command. Each placeholder is one NUL character, which no pattern matches."""
    return "".join(unit.item if isinstance(unit.item, str) else "\0" for unit in units)


def text_of(placeholder: Placeholder, value: Scalar) -> str:
    """The text that replaces a placeholder: what ``str.format`` makes of the value, ``True`` and ``None`` included.
    Raises ValueError where the value does not take the placeholder's format."""
    if value is None:
        value = str(value)
    if any(len(number) > 4 or int(number) > _WIDEST for number in re.findall("[0-9]+", placeholder.spec)):
        raise ValueError(f"a format can ask for at most {_WIDEST} characters")
    if placeholder.conversion:
        value = Formatter().convert_field(value, placeholder.conversion)
    elif placeholder.spec and isinstance(value, str):
        # Values from the command line are text, and formats such as `.2f` take a number.
        for number in (int, float):
            with suppress(ValueError):
                value = number(value)
                break
    return format(value, placeholder.spec)


# The quoting around a piece of a command. Opaque is everything that is not parsed here: command substitutions,
# here-documents and the like.
ShellContext = Literal["plain", "single", "double", "opaque", "comment"]

# Text belongs to a word; a mark is a quote or a backslash, which the shell removes. The others end a word: a gap is
# white space, a comment or the text of a here-document.
TokenKind = Literal["text", "mark", "gap", "newline", "operator"]


@dataclass(frozen=True)
class Token:
    """A piece of a command: text as written (``raw``), or a placeholder. ``expands``: the shell would expand it."""

    kind: TokenKind
    context: ShellContext
    raw: str
    placeholder: Placeholder | None = None
    expands: bool = False


Word = tuple[Token, ...]

# Reserved words and builtins of the shell: https://www.gnu.org/software/bash/manual/bash.html#Shell-Builtin-Commands
_SHELL_WORD = re.compile(
    r"!|\.|:|\[\[|\{|alias|builtin|case|cd|command|coproc|declare|eval|exec|export|for|function|if|let|local|read"
    r"|readonly|select|set|shift|shopt|source|time|times|trap|type|ulimit|umask|unset|until|wait|while"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True)
class ParsedCommand:
    """A command as bash parses it, and its problems. ``commands`` has the words of each simple command in it, without
    redirections, and ``ends`` the number of tokens up to the end of each: the place for further arguments."""

    tokens: tuple[Token, ...]
    wrong: tuple[CommandProblem, ...]
    commands: tuple[tuple[Word, ...], ...]
    ends: tuple[int, ...]

    @property
    def needs_shell(self) -> bool:
        """True if the command is a shell script, not only the words of a single command."""
        if len(self.commands) > 1 or any(token.expands or token.kind == "operator" for token in self.tokens):
            return True
        first = "".join(token.raw for words in self.commands for token in words[0])
        return bool(_SHELL_WORD.fullmatch(first) or _ASSIGNMENT.match(first))


# Constructs that are recognised by the following text: a here-document, and options that are commented out between
# continued lines. Their authors intend to continue the command; bash would end it there.
_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\\$`\n]+)\"|\\?([A-Za-z0-9_.:@%+-]+))(?=[\s;|&)<>]|\Z)")
_COMMENTED_OPTIONS = re.compile(r"(?:[ \t]*#[^\n]*\n)+(?=[ \t]*-)")
# A `{` that bash may expand to several words: an unquoted `,` or `..` follows in its word.
# https://www.gnu.org/software/bash/manual/bash.html#Brace-Expansion
_BRACE_EXPANSION = re.compile(
    r"""\{(?:\\[\s\S]|'[^']*'|"(?:\\[\s\S]|[^"\\])*"|(?!\.\.)[^\\'", \t\n|&;<>()]){0,500}(?:,|\.\.)"""
)
_OPTION_LINE = re.compile(r"[ \t]*(?=-)")
_ONLY_BLANKS, _BLANKS_TO_END = re.compile(r"\s*\Z"), re.compile(r"[ \t]+(?:\n|\Z)")
# An escaped blank that begins a word, and then an option. `>` in YAML makes such text of lines that end in a backslash.
_BLANK_BEFORE_OPTION = re.compile(r"[ \t](?=-)|[ \t]+(?=--)")
_DEEPEST = 100  # nested constructs
_SUBSTITUTION = re.compile(r"\$\(|`")
_AFTER_DOLLAR = re.compile(r'[A-Za-z0-9_@*#?$!"-]')
_AFTER_DOLLAR_OPENS = {"(": "(", "{": "{", "'": "$'", "[": "opaque"}
_CLOSING = {"'": "'", '"': '"', "(": ")", "`": "`", "{": "}", "$'": "'"}
_QUOTES: dict[str, ShellContext] = {"'": "single", '"': "double"}


def scan(units: Iterable[Unit]) -> ParsedCommand:
    """Parses a command. A placeholder is one unit; a value that replaces one is read like the rest."""
    return _Reader(tuple(units)).read()


class _Reader:
    """One pass over a text by the rules of https://www.gnu.org/software/bash/manual/bash.html#Quoting. ``stack`` holds
    the open constructs with their places: quotes, substitutions, and ``opaque``, which never ends, since only bash can
    tell where. ``documents`` match the last lines of here-documents whose texts are to come; ``cut_off`` has the places
    of options that no backslash joins to their command. ``in_list`` is true in the list of a variable (``ARGS=(…)``),
    which may have many lines."""

    def __init__(self, units: tuple[Unit, ...]) -> None:
        self.units = units
        self.text = text_of_units(units)
        self.at = 0
        self.stack: list[tuple[str, int]] = []
        self.tokens: list[Token] = []
        self.wrong: list[CommandProblem] = []
        self.documents: list[re.Pattern[str]] = []
        self.cut_off: list[int] = []
        self.in_list = False

    def read(self) -> ParsedCommand:
        # The `)` of a case pattern would end the enclosing substitution.
        if re.search(r"\besac\b", self.text) and _SUBSTITUTION.search(self.text):
            self.stack.append(("opaque", 0))
        while self.at < len(self.units):
            self._step()
        for opened, at in self.stack:
            if opened in _QUOTES and self._top != "opaque":  # only bash knows where that ends
                self._report(at, opened, f"the quote {opened} that opens here is never closed")
        if self.cut_off:
            first, *others = self.cut_off
            more = f"; similar lines: {len(others)}" if others else ""
            self._report(first, "-", f"the line before this option lacks the backslash at its end{more}")
        return ParsedCommand(tuple(self.tokens), tuple(self.wrong), *_commands(self.tokens))

    def _step(self) -> None:
        unit, _, source = self.units[self.at]
        begun = unit if isinstance(unit, Placeholder) else source
        if begun and self.units[self.at - 1].source != begun:
            self._require_apart(begun)
        following = self.text[self.at + 1 : self.at + 2]
        if isinstance(unit, Placeholder):
            self._put("text")
        elif unit == _CLOSING.get(self._top):
            opened, _ = self.stack.pop()
            self._put("mark" if opened in _QUOTES else "text")
        elif self._top == "'":
            self._put("text")
        elif self._top == '"':
            self._in_double(unit, following)
        elif self._top in {"", "("}:
            self._in_plain(unit, following)
        else:
            self._in_opaque(unit)

    @property
    def _top(self) -> str:
        """The opening of the innermost construct; empty outside all constructs."""
        return self.stack[-1][0] if self.stack else ""

    @property
    def _context(self) -> ShellContext:
        if any(opened not in _QUOTES for opened, _ in self.stack):
            return "opaque"
        return _QUOTES.get(self._top, "plain")

    def _report(self, at: int, written: str, message: str) -> None:
        """Reports what is wrong at a place: where it is written, or else where its value is used."""
        _, offset, source = self.units[at]
        if source:
            written, message = source.written, f"in the value of {{{source.key}}}: {message}"
        self.wrong.append(CommandProblem(written, offset, message))

    def _require_apart(self, value: Placeholder) -> None:
        """Reports a value after a backslash or a `$`: they change its first character despite quoting."""
        before = self.text[self.at - 1 : self.at]
        if self._context != "single" and before in {"\\", "$"}:
            message = f"`{before}` right before `{value.written}` would change the value"
            if before == "$":
                message += f"; a variable of the shell is written ${{{value.written}}}"
            self.wrong.append(CommandProblem(value.written, value.offset, message))

    def _put(
        self, kind: TokenKind, length: int = 1, *, expands: bool = False, context: ShellContext | None = None
    ) -> None:
        """Takes the next unit, or the next characters, as a token."""
        unit = self.units[self.at].item
        placeholder = unit if isinstance(unit, Placeholder) else None
        raw = placeholder.written if placeholder else self.text[self.at : self.at + length]
        self.tokens.append(Token(kind, context or self._context, raw, placeholder, expands=expands))
        self.at += length

    def _leave_out(self, end: int, context: ShellContext) -> None:
        """Skips everything up to ``end``, which is not part of a command."""
        while self.at < end:
            self._put("gap", context=context)

    def _open(self, opened: str, length: int = 1) -> None:
        """Takes the opening of a construct."""
        at = self.at
        self._put("mark" if opened in _QUOTES else "text", length, expands=opened not in _QUOTES)
        if len(self.stack) == _DEEPEST:
            self._report(at, opened, f"more than {_DEEPEST} quotes and substitutions are nested here")
            self.at, self.stack = len(self.units), []
            return
        self.stack.append((opened, at))

    def _in_double(self, char: str, following: str) -> None:
        if char == "\\" and following in {"$", "`", '"', "\\", "\n"}:
            self._escape(following)
        elif char == "`":
            self._open("`")
        elif char == "$":
            self._dollar(following)
        else:
            self._put("text")

    def _in_opaque(self, char: str) -> None:
        if char == "\\":
            for _ in self.units[self.at : self.at + 2]:
                self._put("text")
        elif self._top == "{" and self.text.startswith("${", self.at):
            self._open("{", 2)
        elif self._top == "{" and char in "'\"`$":
            self._open("opaque")
        else:
            self._put("text")

    def _in_plain(self, char: str, following: str) -> None:
        at_word_start = self.at == 0 or self.text[self.at - 1] in " \t\n|&;()<>"
        if char in "'\"`":
            self._open(char)
        elif char == "\\":
            self._backslash(following, at_word_start=at_word_start)
        elif char == "\n":
            self._newline()
        elif char in " \t":
            self._put("gap")
        elif char == "#" and at_word_start:
            end = self.text.find("\n", self.at)
            self._leave_out(end if end >= 0 else len(self.text), "comment")
        elif char == "$":
            self._dollar(following)
        elif char in "|&;<>()":
            self._operator(char, following)
        else:
            tilde = char == "~" and (at_word_start or self.text[self.at - 1] in "=:")
            brace = char == "{" and _BRACE_EXPANSION.match(self.text, self.at)
            self._put("text", expands=char in "*?[" or tilde or bool(brace))

    def _backslash(self, following: str, *, at_word_start: bool) -> None:
        if _ONLY_BLANKS.match(self.text, self.at + 1):
            # The last line ends with a backslash, like the lines above it, but there is no next line.
            self.at += 1
        elif following != "\n" and _BLANKS_TO_END.match(self.text, self.at + 1):
            ends = "it continues the command only if it is the last character of its line"
            self._report(self.at, "\\", f"spaces follow the backslash; {ends}")
            self._put("gap")
        elif at_word_start and _BLANK_BEFORE_OPTION.match(self.text, self.at + 1):
            message = "this backslash makes the blank after it a part of the option; remove the backslash"
            self._report(self.at, "\\", f"{message}, or write `command: |` in place of `command: >`")
            self._put("gap")
        else:
            self._escape(following)
            if following == "\n" and (commented := _COMMENTED_OPTIONS.match(self.text, self.at)):
                self.at = commented.end()

    def _escape(self, following: str) -> None:
        if following == "\n":
            self._put("mark", 2)
            return
        self._put("mark")
        if following != "\0":
            self._put("text")

    def _newline(self) -> None:
        self._put("gap" if self.in_list else "newline")
        if self._context != "plain":
            return
        for last_line in self.documents:
            last = last_line.search(self.text, self.at)
            self._leave_out(last.end() if last else len(self.text), "opaque")
        self.documents.clear()
        option = _OPTION_LINE.match(self.text, self.at)
        if option and not self.in_list and any(token.kind in {"text", "mark"} for token in self.tokens):
            self.cut_off.append(option.end())

    def _dollar(self, following: str) -> None:
        opened = _AFTER_DOLLAR_OPENS.get(following)
        if opened and (opened, self._top) != ("$'", '"'):
            self._open(opened, 2)
        else:
            self._put("text", expands=bool(_AFTER_DOLLAR.match(following)))

    def _operator(self, char: str, following: str) -> None:
        if char == "(" and self._top == "(":
            self._open("(")
        elif self.text.startswith("<<<", self.at):
            self._put("operator", 3)
        elif char + following == "<<" and not self.stack and (here := _HERE.match(self.text, self.at)):
            delimiter = re.escape(here[2] or here[3] or here[4])
            tabs = "\t*" if here[1] else ""
            self.documents.append(re.compile(rf"^{tabs}{delimiter}(?:\n|\Z)", re.MULTILINE))
            self._put("operator", 2)
        elif char + following in {"<<", "(("}:
            self._open("opaque", 2)
        else:
            if char in "()":
                self.in_list = char == "(" and self.text[self.at - 1 : self.at] == "="
            self._put("operator")


def _commands(tokens: list[Token]) -> tuple[tuple[tuple[Word, ...], ...], tuple[int, ...]]:
    """The words of each simple command, without redirections, and the number of tokens up to their ends."""
    commands: list[tuple[Word, ...]] = []
    ends: list[int] = []
    words: list[Word] = []
    word: list[Token] = []
    end, is_target, before = 0, False, ""
    for at, token in enumerate((*tokens, Token("newline", "plain", "\n"))):
        if token.kind in {"text", "mark"}:
            # A backslash at the end of a line joins the lines, and is not part of a word.
            if token.raw != "\\\n":
                word.append(token)
                before = ""
            continue
        operator = token.raw if token.kind == "operator" else ""
        redirects = operator in {"<", ">", "<<", "<<<"}
        # In `2>log`, the number is a descriptor, and `log` the target of the redirection.
        if word and not (redirects and all(part.raw.isdecimal() for part in word)):
            if not is_target:
                words.append(tuple(word))
                end = at
            is_target = False
        word = []
        begins_other = operator == "&" and [(t.kind, t.raw) for t in tokens[at + 1 : at + 2]] == [(token.kind, ">")]
        if redirects or begins_other or (operator in {"&", "|"} and before in {"<", ">"}):  # `&>`, `>&`, `>|`
            is_target = True
        elif operator or token.kind == "newline":
            if words:
                commands.append(tuple(words))
                ends.append(end)
            words, is_target = [], False
        before = operator
    return tuple(commands), tuple(ends)


# Values from the command line replace their placeholders last: each is one argument, whatever it contains. Values of
# the recipe are already part of the command's text.

# Programs that run or evaluate text: a value in that text would be executed.
_TAKES_A_COMMAND = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "eval", "su", "ssh", "xargs", "watch", "script"}
    | {"trap", "alias", "let", "declare", "typeset", "[["}
)
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


def words(parsed: ParsedCommand, values: Mapping[str, str]) -> tuple[str, ...]:
    texts = []
    for word in (word for command in parsed.commands for word in command):
        parts = [token for token in word if token.kind == "text"]
        text = "".join(text_of(t.placeholder, values[t.placeholder.key]) if t.placeholder else t.raw for t in parts)
        # As in the shell, an empty unquoted word is not an argument.
        if text or len(parts) < len(word):
            texts.append(text)
    return tuple(texts)


def script(parsed: ParsedCommand, values: Mapping[str, str], extra: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs the script as written, with each value quoted for its context. ``extra`` replaces
    its ``"$@"``, or else follows its ``vllm serve``. Raises UsageError if there is none."""
    if extra and not takes_arguments(parsed):
        message = "the recipe's command is a script without `vllm serve`, so builder cannot add further arguments"
        raise UsageError(message, hint='write "$@" in the command where the arguments belong')
    # By identity: equal tokens may belong to different words.
    alone = {id(word[0]) for command in parsed.commands for word in command if len(word) == 1}
    pieces = [_quoted(token, values, alone=id(token) in alone) for token in parsed.tokens]
    if _has_own_place(parsed):
        return ("bash", "-c", "".join(pieces).strip("\n"), "bash", *extra)
    for end in reversed(_places(parsed)) if extra else ():
        pieces.insert(end, f" {shlex.join(extra)}")
    return ("bash", "-c", "".join(pieces).strip("\n"))


def takes_arguments(parsed: ParsedCommand) -> bool:
    """True if `script` knows where further arguments belong."""
    return _has_own_place(parsed) or bool(_places(parsed))


def _has_own_place(parsed: ParsedCommand) -> bool:
    return any((a.raw, b.raw, a.context) == ("$", "@", "double") for a, b in pairwise(parsed.tokens))


def _places(parsed: ParsedCommand) -> tuple[int, ...]:
    """The positions for more arguments: after each `vllm serve`, or after the only command."""
    return _serving_ends(parsed) or (parsed.ends if len(parsed.ends) == 1 else ())


def _serving_ends(parsed: ParsedCommand) -> tuple[int, ...]:
    return tuple(end for command, end in zip(parsed.commands, parsed.ends, strict=True) if _serves(command))


def with_argument(template: str, keys: Collection[str], argument: str) -> str:
    """The ``template`` of a recipe of version 2 with ``argument`` after each `vllm serve`, or else after the last
    command: a pipe or a comment may follow. A template with problems gets it at its end."""
    parsed = scan(parse_plain_placeholders(template, keys)[0])
    if parsed.wrong or not parsed.ends:
        return f"{template} {argument}"
    doubled = str.maketrans({"{": "{{", "}": "}}"} if "{{" in template else {})
    pieces = [token.raw if token.placeholder else token.raw.translate(doubled) for token in parsed.tokens]
    for end in reversed(_serving_ends(parsed) or parsed.ends[-1:]):
        pieces.insert(end, f" {argument}")
    return "".join(pieces)


_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def starts_shell(parsed: ParsedCommand) -> bool:
    """True if the only command is a shell, such as ``bash -c '…'`` or ``bash serve.sh``."""
    return len(parsed.commands) == 1 and _program(parsed.commands[0][0]) in _SHELLS


def within_shell(parsed: ParsedCommand, values: Mapping[str, str]) -> tuple[int, ParsedCommand] | None:
    """The script of a command that only starts another shell for it, such as ``bash -c '…'``, and its place among the
    words of the command; None for any other command."""
    if starts_shell(parsed):
        for at, (flag, text) in enumerate(pairwise(words(parsed, values)), 1):
            if re.fullmatch("-[a-z]*c", flag):
                return at, scan(Unit(char, 0) for char in text)
    return None


def script_within(
    arguments: tuple[str, ...], within: tuple[int, ParsedCommand], extra: tuple[str, ...]
) -> tuple[str, ...]:
    """``arguments``, which start a shell for a script, with ``extra`` in that script. Raises what `script` does."""
    at, inner = within
    text, *added = script(inner, {}, extra)[2:]
    return (*arguments[:at], text, *(arguments[at + 1 :] or added[:1]), *added[1:])


def server_alone(parsed: ParsedCommand) -> ParsedCommand:
    """The one command of a script that starts vLLM, with the variables that the script sets: other programs have
    options of the same names. The whole script if no command does, or several do."""
    places = [at for at, command in enumerate(parsed.commands) if _serves(command)]
    if len(places) != 1:
        return parsed
    before, server = parsed.commands[: places[0]], parsed.commands[places[0]]
    return replace(parsed, commands=(tuple(each for word in server for each in _expanded(word, before)),))


_VARIABLE = re.compile(r"""("?)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})\1""", re.ASCII)


def _expanded(word: Word, before: tuple[tuple[Word, ...], ...]) -> list[Word]:
    """The words that bash makes of a variable, from its assignments in the commands ``before``: of a list
    (``ARGS=(--port 9000)``), or of text, which is split unless the ``word`` is quoted. The ``word`` itself if it is no
    variable, or if its value contains what only the shell knows."""
    named = _VARIABLE.fullmatch(_raw(word))
    if named is None:
        return [word]
    expanded: list[Word] = []
    for command, following in zip(before, (*before[1:], ()), strict=False):
        for assigning in command:
            sets = re.match(rf"{named[2] or named[3]}(\+?)=", _raw(assigning))
            if sets is None:
                continue
            value = assigning[sets.end() :]
            is_list = not value and assigning is command[-1] and following and _raw(following[0]).startswith("-")
            added = [*following] if is_list else [value] if named[1] else _split(value)
            if any(token.expands for each in added for token in each):
                return [word]
            expanded = [*expanded, *added] if sets[1] else added
    return expanded or [word]


def _split(value: Word) -> list[Word]:
    """The words of ``value`` between its blanks, without its quotes."""
    text = (token for token in value if token.kind == "text")
    return [tuple(tokens) for is_blank, tokens in groupby(text, lambda token: token.raw.isspace()) if not is_blank]


def _raw(word: Word) -> str:
    return "".join(token.raw for token in word)


def _serves(command: tuple[Word, ...]) -> bool:
    names = [_program(word) for word in command]
    return ("vllm", "serve") in pairwise(names) or any(name.startswith("vllm.entrypoints") for name in names)


def _program(word: Word) -> str:
    """The name of a program, without its folders."""
    return "".join(token.raw for token in word if token.kind == "text").rpartition("/")[2]


def _quoted(token: Token, values: Mapping[str, str], *, alone: bool) -> str:
    piece = token.placeholder
    if piece is None or token.context == "comment":
        return token.raw
    text = text_of(piece, values[piece.key])
    if token.context == "plain":
        return "" if alone and not text else shlex.quote(text)
    if token.context == "single":
        return text.replace("'", "'\\''")
    # A value in an opaque context is safe here: `unquotable` reports the unsafe ones.
    return re.sub(r'([$`"\\])', r"\\\1", text)


def unquotable(parsed: ParsedCommand, values: Mapping[str, str]) -> Iterator[CommandProblem]:
    """The placeholders whose values the shell would interpret, in contexts where no quoting prevents it."""
    evaluates = any(_program(word) in _TAKES_A_COMMAND for command in parsed.commands for word in command)
    for token in parsed.tokens:
        piece, opaque = token.placeholder, token.context == "opaque"
        is_read = opaque or (evaluates and token.context != "comment")
        if piece and is_read and not _HARMLESS.fullmatch(text_of(piece, values[piece.key])):
            where = "`$(…)`, backquotes or a here-document" if opaque else "a script with `eval`, `bash -c` or `[[`"
            message = f"the value of {{{piece.key}}} is used in {where}, where it cannot be quoted"
            remedy = "use only letters, digits and _@%+=:,./- in the value"
            yield CommandProblem(piece.written, piece.offset, f"{message}: {remedy}")
