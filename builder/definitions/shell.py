"""This page parses a command as bash would, without running it.

Placeholders come first, then the command as words, the cursor, lookahead, the parser and substitution.
The value of a placeholder is always text: it cannot end a quote or start a command.
"""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# Placeholders such as ``{key}`` in the commands of recipes, by the rules of Python's ``str.format``. Only plain keys
# are accepted: ``{a.b}`` and ``{a[0]}`` would reach into objects, ``{}`` and ``{0}`` name nothing. Keys may contain
# hyphens. ``{{`` and ``}}`` are literal braces.

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_FIELD = re.compile(r"\{(?P<key>[A-Za-z_][A-Za-z0-9_-]*)(?:!(?P<conversion>[rsa]))?(?::(?P<spec>[^{}]*))?\}")

_CONVERSIONS: dict[str, Callable[[object], str]] = {"r": repr, "s": str, "a": ascii}

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Placeholder:
    """A placeholder ``{key}`` at ``offset`` in its template; ``spec`` follows a colon, as in ``{share:.2f}``."""

    key: str
    written: str
    offset: int
    conversion: str = ""
    spec: str = ""


@dataclass(frozen=True)
class LiteralPiece:
    """Literal text from ``offset`` on, its doubled braces already single; or the text of a value, which stands at the
    offset of its placeholder ``source``."""

    text: str
    offset: int
    source: Placeholder | None = None


@dataclass(frozen=True)
class CommandProblem:
    """A problem with the text ``written`` at ``offset`` in a command."""

    written: str
    offset: int
    message: str


Piece = LiteralPiece | Placeholder


def parse_placeholders(template: str) -> tuple[tuple[Piece, ...], tuple[CommandProblem, ...]]:
    """Parses a template into its pieces, in order, and its problems."""
    pieces: list[Piece] = []
    wrong = [CommandProblem("\0", at, "a NUL character") for at, char in enumerate(template) if char == "\0"]
    end = 0
    for match in _TOKEN.finditer(template):
        if match.start() > end:
            pieces.append(LiteralPiece(template[end : match.start()], end))
        end = match.end()
        written = match[0]
        if written in {"{{", "}}"}:
            pieces.append(LiteralPiece(written[0], match.start()))
            continue
        field = _FIELD.fullmatch(written)
        if field:
            conversion, spec = field["conversion"] or "", field["spec"] or ""
            pieces.append(Placeholder(field["key"], written, match.start(), conversion, spec))
        else:
            wrong.append(CommandProblem(written, match.start(), _why(written)))
    if end < len(template):
        pieces.append(LiteralPiece(template[end:], end))
    return tuple(pieces), tuple(wrong)


def _why(written: str) -> str:
    inner = written.strip("{}")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*\s*[.\[].*", inner, re.DOTALL):
        return f"`{_short(written)}`: a placeholder is a plain key, without `.` or `[…]`"
    if len(written) > 1 and re.fullmatch(r"\s*\d*\s*", inner):
        return f"`{_short(written)}`: a placeholder names a key, such as {{port}}"
    return f"`{_short(written)}` is no placeholder; braces that are meant as such are doubled: {{{{ and }}}}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def filled(pieces: tuple[Piece, ...], values: Mapping[str, Scalar]) -> tuple[Piece, ...]:
    """``pieces`` with the text of its value in place of each placeholder that ``values`` has a fitting one for."""
    return tuple(_literal(piece, values) if isinstance(piece, Placeholder) else piece for piece in pieces)


def _literal(piece: Placeholder, values: Mapping[str, Scalar]) -> Piece:
    try:
        return LiteralPiece(text_of(piece, values[piece.key]), piece.offset, piece)
    except (KeyError, ValueError):
        return piece


def text_of(placeholder: Placeholder, value: Scalar) -> str:
    """The text that replaces a placeholder: what ``str.format`` makes of the value, ``True`` and ``None`` included.

    Raises ValueError where the value does not take the placeholder's format.
    """
    if value is None:
        value = str(value)
    if placeholder.conversion:
        value = _CONVERSIONS[placeholder.conversion](value)
    elif placeholder.spec and isinstance(value, str):
        value = _number(value)
    return format(value, placeholder.spec)


def _number(text: str) -> str | int | float:
    """The number that ``text`` spells, or else ``text``: values from the command line are text, and formats such as
    ``.2f`` need a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def keys(pieces: tuple[Piece, ...]) -> tuple[str, ...]:
    """The keys of a template, each once, in order."""
    return tuple(dict.fromkeys(piece.key for piece in pieces if isinstance(piece, Placeholder)))


# A command as bash parses it: its words, and whether running it takes a shell at all.


class ShellContext(Enum):
    """The quoting context of a piece of a command. OPAQUE is everything that this module does not parse: command
    substitutions, here-documents and the like."""

    PLAIN = "plain"
    SINGLE = "in single quotes"
    DOUBLE = "in double quotes"
    OPAQUE = "inside another shell construct"
    COMMENT = "in a comment"


class TokenKind(Enum):
    """The kind of a token. TEXT belongs to a word; MARK is a quote or a backslash, which the shell removes; GAP,
    NEWLINE and OPERATOR end a word. HERE is the text of a here-document, which is no part of a command."""

    TEXT = "text"
    MARK = "mark"
    GAP = "gap"
    NEWLINE = "newline"
    OPERATOR = "operator"
    COMMENT = "comment"
    HERE = "here-document"


@dataclass(frozen=True)
class Token:
    """A piece of a command: text as written (``raw``), or a placeholder. ``expands`` if the shell would expand it."""

    kind: TokenKind
    context: ShellContext
    raw: str
    placeholder: Placeholder | None = None
    expands: bool = False


Word = tuple[Token, ...]


@dataclass(frozen=True)
class SimpleCommand:
    """The words of one command, and the number of tokens up to their end: the place for further arguments."""

    words: tuple[Word, ...]
    end: int


# What is followed by a file, a descriptor or a text, and not by an argument.
_REDIRECTIONS = frozenset({"<", ">", "<<", "<<<"})
# Reserved words and builtins of the shell: https://www.gnu.org/software/bash/manual/bash.html#Shell-Builtin-Commands
_SHELL_WORD = re.compile(
    r"!|\.|:|\[\[|\{|alias|builtin|case|cd|command|coproc|declare|eval|exec|export|for|function|if|let|local|read"
    r"|readonly|select|set|shift|shopt|source|time|times|trap|type|ulimit|umask|unset|until|wait|while"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True)
class ParsedCommand:
    """A command as bash parses it, and its problems."""

    tokens: tuple[Token, ...]
    wrong: tuple[CommandProblem, ...]

    @property
    def commands(self) -> tuple[tuple[Word, ...], ...]:
        """The words of each command, without those that redirect its input or output."""
        return tuple(command.words for command in self.simple_commands)

    @functools.cached_property
    def simple_commands(self) -> tuple[SimpleCommand, ...]:
        """Each command; a newline or an operator ends one."""
        reader = _CommandReader()
        end_of_text = Token(TokenKind.NEWLINE, ShellContext.PLAIN, "\n")
        for at, token in enumerate((*self.tokens, end_of_text)):
            reader.take(at, token, self.tokens[at + 1 : at + 2])
        return tuple(reader.commands)

    @property
    def needs_shell(self) -> bool:
        """True if it is a shell script, rather than the words of a single command."""
        commands = self.commands
        if any(token.expands or token.kind is TokenKind.OPERATOR for token in self.tokens) or len(commands) > 1:
            return True
        first = "".join(token.raw for token in commands[0][0]) if commands else ""
        return bool(_SHELL_WORD.fullmatch(first) or _ASSIGNMENT.match(first))


@dataclass
class _CommandReader:
    """One pass over the tokens. ``redirects`` is true where the next word is the target of a redirection."""

    commands: list[SimpleCommand] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    word: list[Token] = field(default_factory=list)
    end: int = 0
    redirects: bool = False
    operator_before: str = ""

    def take(self, at: int, token: Token, following: tuple[Token, ...]) -> None:
        if token.kind in {TokenKind.TEXT, TokenKind.MARK}:
            # A backslash at the end of a line joins the lines and is no part of a word.
            if token.raw != "\\\n":
                self.word.append(token)
                self.operator_before = ""
            return
        begins_redirection = token.kind is TokenKind.OPERATOR and token.raw in _REDIRECTIONS
        # In `2>log`, the number is a descriptor.
        if not (begins_redirection and self.word and all(part.raw.isdecimal() for part in self.word)):
            self._end_word(at)
        self.word = []
        if begins_redirection or self._is_part_of_redirection(token, following):
            self.redirects = True
        elif token.kind in {TokenKind.NEWLINE, TokenKind.OPERATOR}:
            self._end_command()
        self.operator_before = token.raw if token.kind is TokenKind.OPERATOR else ""

    def _is_part_of_redirection(self, token: Token, following: tuple[Token, ...]) -> bool:
        """True for the second character of ``>&`` and ``>|``, and the first of ``&>``."""
        if token.kind is not TokenKind.OPERATOR:
            return False
        before_redirection = bool(following) and (following[0].kind, following[0].raw) == (TokenKind.OPERATOR, ">")
        return (token.raw in {"&", "|"} and self.operator_before in {"<", ">"}) or (
            token.raw == "&" and before_redirection
        )

    def _end_word(self, at: int) -> None:
        if not self.word:
            return
        if self.redirects:
            self.redirects = False
        else:
            self.words.append(tuple(self.word))
            self.end = at

    def _end_command(self) -> None:
        if self.words:
            self.commands.append(SimpleCommand(tuple(self.words), self.end))
        self.words, self.redirects = [], False


# A place in the text of a command: the tokens that were read up to there, and the constructs that are open.


@dataclass
class ShellCursor:
    """One pass over the text. ``stack`` holds the open constructs: quotes, substitutions, and ``opaque``, which never
    ends; ``sources`` the placeholders whose values the items are, by index."""

    pieces: tuple[Piece, ...]
    items: list[tuple[str | Placeholder, int]] = field(default_factory=list)
    sources: dict[int, Placeholder] = field(default_factory=dict)
    at: int = 0
    stack: list[tuple[str, int]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    wrong: list[CommandProblem] = field(default_factory=list)

    def __post_init__(self) -> None:
        for piece in self.pieces:
            if isinstance(piece, LiteralPiece) and piece.source:
                self.sources |= dict.fromkeys(range(len(self.items), len(self.items) + len(piece.text)), piece.source)
                self.items += [(char, piece.offset) for char in piece.text]
            elif isinstance(piece, LiteralPiece):
                self.items += [(char, piece.offset + index) for index, char in enumerate(piece.text)]
            else:
                self.items.append((piece, piece.offset))
        # Placeholders become a character that no pattern here matches.
        self.text = "".join(item if isinstance(item, str) else "\0" for item, _ in self.items)

    @property
    def top(self) -> str:
        """The opening of the innermost construct; empty outside of all."""
        return self.stack[-1][0] if self.stack else ""

    @property
    def context(self) -> ShellContext:
        """The way in which bash reads a character here."""
        if any(opened not in {"'", '"'} for opened, _ in self.stack):
            return ShellContext.OPAQUE
        return {"'": ShellContext.SINGLE, '"': ShellContext.DOUBLE, "": ShellContext.PLAIN}[self.top]

    def report(self, at: int, written: str, message: str) -> None:
        """Reports what is wrong with the item at that index: where it is written, or else its value is used."""
        source, offset = self.sources.get(at), self.items[at][1]
        if source:
            self.wrong.append(CommandProblem(source.written, offset, f"in the value of {{{source.key}}}: {message}"))
        else:
            self.wrong.append(CommandProblem(written, offset, message))

    def put(self, kind: TokenKind, length: int = 1, *, expands: bool = False) -> None:
        """Takes the next items as tokens of that kind."""
        context = ShellContext.COMMENT if kind is TokenKind.COMMENT else self.context
        raw = ""
        for item, _ in self.items[self.at : self.at + length]:
            if isinstance(item, Placeholder):
                self.tokens.append(Token(kind, context, item.written, item))
            else:
                raw += item
        if raw:
            self.tokens.append(Token(kind, context, raw, expands=expands))
        self.at += length

    def open(self, opened: str, length: int, *, expands: bool) -> None:
        """Takes the opening of a construct, of that length."""
        at = self.at
        self.put(TokenKind.MARK if opened in {"'", '"'} else TokenKind.TEXT, length, expands=expands)
        self.stack.append((opened, at))

    def close(self) -> None:
        """Takes the character that closes the innermost construct."""
        opened, _ = self.stack.pop()
        self.put(TokenKind.MARK if opened in {"'", '"'} else TokenKind.TEXT)

    def at_word_start(self) -> bool:
        """True if a word may begin here."""
        return self.at == 0 or self.text[self.at - 1] in " \t\n|&;()<>"


# Constructs of the shell that are told by what follows them: brace expansions, here-documents, commented options.

_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\\$`\n]+)\"|\\?([A-Za-z0-9_.:@%+-]+))(?=[\s;|&)<>]|\Z)")
_COMMENT_LINE = re.compile(r"[ \t]*#[^\n]*(\n|\Z)")
OPTION_LINE = re.compile(r"[ \t]*-")
_END_OF_WORD = " \t\n|&;<>()"


@dataclass(frozen=True)
class HereDocument:
    """A here-document that ends with the line ``delimiter``, before which tabs may stand where it ``strips_tabs``."""

    delimiter: str
    strips_tabs: bool

    def end(self, text: str, start: int) -> int:
        """The offset behind the document whose text begins at ``start``."""
        tabs = "\t*" if self.strips_tabs else ""
        last = re.compile(rf"^{tabs}{re.escape(self.delimiter)}(?:\n|\Z)", re.MULTILINE).search(text, start)
        return last.end() if last else len(text)


def here_document(text: str, at: int) -> HereDocument | None:
    """The here-document that the ``<<`` at that offset announces; None where only bash can tell how it ends."""
    match = _HERE.match(text, at)
    return HereDocument(match[2] or match[3] or match[4], bool(match[1])) if match else None


def is_brace_expansion(text: str, at: int) -> bool:
    """True if bash may make several words of the ``{`` at that offset: an unquoted ``,`` or ``..`` follows in its word.
    https://www.gnu.org/software/bash/manual/bash.html#Brace-Expansion"""
    at, quote = at + 1, ""
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "," or text.startswith("..", at):
            return True
        elif char in _END_OF_WORD:
            return False
        at += 1
    return False


def behind_commented_options(text: str, at: int) -> int:
    """The offset behind options that are commented out between continued lines, as their authors intend; bash would end
    the command there."""
    end = at
    while match := _COMMENT_LINE.match(text, end):
        end = match.end()
        if match[1] == "":
            break
    return end if end > at and OPTION_LINE.match(text, end) else at


# Parsing a command as bash would, without running it. Each placeholder in the command is one unit: its value can
# neither end a quote nor start a command. The text of a value that was put in its place is read like the rest.
# https://www.gnu.org/software/bash/manual/bash.html#Quoting has the rules.

_OPERATORS = frozenset("|&;<>()")
_GLOBS = frozenset("*?[")
_AFTER_DOLLAR = re.compile(r"[A-Za-z0-9_@*#?$!-]")
_CLOSING = {"(": ")", "`": "`", "{": "}", "$'": "'"}
_SUBSTITUTION = re.compile(r"\$\(|`")


def scan(pieces: tuple[Piece, ...]) -> ParsedCommand:
    """Parses the pieces of a command."""
    return _Reader(pieces).read()


@dataclass
class _Reader(ShellCursor):
    """The rules of bash. ``cut_off`` holds the indexes of options that no backslash joins to their command;
    ``documents`` the here-documents whose texts are to come."""

    documents: list[HereDocument] = field(default_factory=list)
    cut_off: list[int] = field(default_factory=list)

    def read(self) -> ParsedCommand:
        # The `)` of a case's pattern would end the substitution around it.
        if re.search(r"\besac\b", self.text) and _SUBSTITUTION.search(self.text):
            self.stack.append(("opaque", 0))
        while self.at < len(self.items):
            self._step()
        for opened, at in self.stack:
            if opened in {"'", '"'}:
                self.report(at, opened, f"the quote {opened} that opens here is never closed")
        if self.cut_off:
            first, *others = self.cut_off
            more = f"; further lines like it: {len(others)}" if others else ""
            self.report(first, "-", f"the line before this option lacks the backslash at its end{more}")
        return ParsedCommand(tuple(self.tokens), tuple(self.wrong))

    def _step(self) -> None:
        item, _ = self.items[self.at]
        source = item if isinstance(item, Placeholder) else self.sources.get(self.at)
        if source and self.sources.get(self.at - 1) != source:
            self._require_apart(source)
        if isinstance(item, Placeholder):
            self.put(TokenKind.TEXT)
        elif self.top == "'":
            self.close() if item == "'" else self.put(TokenKind.TEXT)
        elif self.top == '"':
            self._in_double(item)
        elif self.top in {"opaque", "`", "{", "$'"}:
            self._in_opaque(item)
        else:
            self._in_plain(item)

    def _require_apart(self, item: Placeholder) -> None:
        """Reports a placeholder after a backslash or a `$`: they change its value's first character despite quoting."""
        before = self.text[self.at - 1 : self.at]
        if self.context is not ShellContext.SINGLE and before in {"\\", "$"} and before:
            message = f"`{before}` right before `{item.written}` would change the value"
            if before == "$":
                message += f"; a variable of the shell is written ${{{item.written}}}"
            self.wrong.append(CommandProblem(item.written, item.offset, message))

    def _in_double(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char == '"':
            self.close()
        elif char == "\\" and following in {"$", "`", '"', "\\", "\n"}:
            self._escape(following)
        elif char == "`":
            self.open("`", 1, expands=True)
        elif char == "$":
            self._dollar(following)
        else:
            self.put(TokenKind.TEXT)

    def _in_opaque(self, char: str) -> None:
        if char == _CLOSING.get(self.top):
            self.close()
        elif char == "\\":
            self.put(TokenKind.TEXT)
            if self.at < len(self.items):
                self.put(TokenKind.TEXT)
        elif self.top == "{" and char in "'\"`$":
            # Only bash can tell where such an expansion ends.
            self.open("opaque", 1, expands=True)
        else:
            self.put(TokenKind.TEXT)

    def _in_plain(self, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char in "'\"":
            self.open(char, 1, expands=False)
        elif char == "\\":
            self._backslash(following)
        elif char == "\n":
            self._newline()
        elif char in " \t":
            self.put(TokenKind.GAP)
        elif char == "#" and self.at_word_start():
            end = self.text.find("\n", self.at)
            self._comment((end if end >= 0 else len(self.text)) - self.at)
        elif char == "$":
            self._dollar(following)
        elif char == "`":
            self.open("`", 1, expands=True)
        elif char in _OPERATORS:
            self._operator(char, following)
        else:
            tilde = char == "~" and (self.at_word_start() or self.text[self.at - 1] in "=:")
            brace = char == "{" and is_brace_expansion(self.text, self.at)
            self.put(TokenKind.TEXT, expands=char in _GLOBS or tilde or brace)

    def _comment(self, length: int) -> None:
        for _ in range(length):
            self.put(TokenKind.COMMENT)

    def _backslash(self, following: str) -> None:
        rest = self.text[self.at + 1 :]
        if not rest.strip():
            # The last line ends with a backslash, like those above it: there is no next line to join.
            self.at += 1
        elif following == "\n":
            self._escape(following)
            self.at = behind_commented_options(self.text, self.at)
        elif re.match(r"[ \t]+(\n|\Z)", rest):
            message = "blanks follow the backslash: only as the last character of its line does it continue the command"
            self.report(self.at, "\\", message)
            self.put(TokenKind.GAP)
        else:
            self._escape(following)

    def _newline(self) -> None:
        self.put(TokenKind.NEWLINE)
        if self.context is ShellContext.PLAIN and self.documents:
            self._here_documents()
        if self.context is not ShellContext.PLAIN or not OPTION_LINE.match(self.text, self.at):
            return
        if any(token.kind in {TokenKind.TEXT, TokenKind.MARK} for token in self.tokens):
            rest = self.text[self.at :]
            self.cut_off.append(self.at + len(rest) - len(rest.lstrip(" \t")))

    def _escape(self, following: str) -> None:
        if following == "\n":
            self.put(TokenKind.MARK, 2)
            return
        self.put(TokenKind.MARK)
        if following != "\0":
            self.put(TokenKind.TEXT)

    def _dollar(self, following: str) -> None:
        if following == "(":
            self.open("(", 2, expands=True)
        elif following == "{":
            self.open("{", 2, expands=True)
        elif following == "'" and self.top != '"':
            self.open("$'", 2, expands=True)
        elif following == "[":
            self.open("opaque", 2, expands=True)
        else:
            self.put(TokenKind.TEXT, expands=bool(_AFTER_DOLLAR.match(following)) or following == '"')

    def _operator(self, char: str, following: str) -> None:
        if char == ")" and self.top == "(":
            self.close()
        elif char == "(" and self.top == "(":
            self.open("(", 1, expands=True)
        elif char == "<" and following == "<" and self.text[self.at + 2 : self.at + 3] != "<":
            self._here_operator()
        elif char + following == "((":
            # Arithmetic: only bash can tell where it ends.
            self.open("opaque", 2, expands=True)
        else:
            here = char == "<" and following == "<"
            self.put(TokenKind.OPERATOR, 3 if here else 1)

    def _here_operator(self) -> None:
        document = None if self.stack else here_document(self.text, self.at)
        if document is None:
            # Only bash can tell where it ends.
            self.open("opaque", 2, expands=True)
            return
        self.documents.append(document)
        self.put(TokenKind.OPERATOR, 2)

    def _here_documents(self) -> None:
        """Reads the texts of the here-documents that the line before began."""
        for document in self.documents:
            stop = document.end(self.text, self.at)
            self.stack.append(("here", self.at))
            while self.at < stop:
                self.put(TokenKind.HERE)
            self.stack.pop()
        self.documents.clear()


# Substitution of a command's placeholders; no value is ever taken for anything but text.

# Programs that take a command as text, or evaluate text: a value substituted there would be executed.
_TAKES_A_COMMAND = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "eval", "su", "ssh", "xargs", "watch", "script"}
    | {"trap", "alias", "let", "declare", "typeset", "[["}
)
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r'([$`"\\])')


@dataclass(frozen=True)
class TypedValues:
    """The values of placeholders by key that come from the command line: each is one argument, whatever it holds.
    Values of the recipe are text of the command and stand in it already."""

    values: Mapping[str, str]

    def text(self, piece: Placeholder) -> str:
        return text_of(piece, self.values[piece.key])


def words(parsed: ParsedCommand, values: TypedValues) -> tuple[str, ...]:
    """The words of all commands, as arguments."""
    return tuple(text for command in parsed.commands for word in command for text in _arguments(word, values))


def _arguments(word: Word, values: TypedValues) -> tuple[str, ...]:
    texts = (values.text(t.placeholder) if t.placeholder else t.raw for t in word if t.kind is TokenKind.TEXT)
    text = "".join(texts)
    # As in the shell, an unquoted word with nothing in it is no argument.
    return (text,) if text or any(token.kind is TokenKind.MARK for token in word) else ()


def script(parsed: ParsedCommand, values: TypedValues, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs the script as written, with each value quoted for its context. ``extra`` replaces
    its ``"$@"``, or else follows its ``vllm serve``. Raises UsageError where there is none."""
    # By identity: equal tokens may belong to different words.
    alone = {id(word[0]) for command in parsed.commands for word in command if len(word) == 1}
    pieces = [_quoted(token, values, alone=id(token) in alone) for token in parsed.tokens]
    if any(
        (token.raw, following.raw, token.context) == ("$", "@", ShellContext.DOUBLE)
        for token, following in pairwise(parsed.tokens)
    ):
        return ("bash", "-c", "".join(pieces).strip("\n"), "bash", *extra)
    tail = f" {shlex.join(extra)}"
    for end in reversed(_places(parsed)) if extra else ():
        pieces.insert(end, tail)
    return ("bash", "-c", "".join(pieces).strip("\n"))


def _places(parsed: ParsedCommand) -> tuple[int, ...]:
    """The places for further arguments: behind each `vllm serve`, or behind the only command."""
    serving = [command.end for command in parsed.simple_commands if _serves(command.words)]
    if not serving and len(parsed.simple_commands) == 1:
        serving = [parsed.simple_commands[0].end]
    if not serving:
        raise UsageError(
            "the recipe's command is a script without a `vllm serve` of its own: there is no place for more arguments",
            hint='write "$@" in the command where they belong',
        )
    return tuple(serving)


def _serves(command: tuple[Word, ...]) -> bool:
    names = [_base_name(word) for word in command]
    return ("vllm", "serve") in pairwise(names) or any(name.startswith("vllm.entrypoints") for name in names)


def _quoted(token: Token, values: TypedValues, *, alone: bool) -> str:
    piece = token.placeholder
    if piece is None or token.context is ShellContext.COMMENT:
        return token.raw
    text = values.text(piece)
    if token.context is ShellContext.PLAIN:
        return "" if alone and not text else shlex.quote(text)
    if token.context is ShellContext.SINGLE:
        return text.replace("'", "'\\''")
    # A value in an opaque context is harmless here: `unquotable` reports those that are not.
    return _SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\1", text)


def unquotable(parsed: ParsedCommand, values: TypedValues) -> Iterator[CommandProblem]:
    """The placeholders whose values the shell would interpret, in contexts where no quoting prevents it."""
    nested = any(_takes_a_command(word) for command in parsed.commands for word in command)
    for token in parsed.tokens:
        piece = token.placeholder
        opaque = token.context is ShellContext.OPAQUE
        if piece and (nested or opaque) and token.context is not ShellContext.COMMENT:
            if _HARMLESS.fullmatch(values.text(piece)):
                continue
            where = "`$(…)`, backquotes or a here-document" if opaque else "a command that evaluates it once more"
            message = f"the value of {{{piece.key}}} stands in {where}, where it cannot be quoted"
            yield CommandProblem(piece.written, piece.offset, message)


def _takes_a_command(word: Word) -> bool:
    return _base_name(word) in _TAKES_A_COMMAND


def _base_name(word: Word) -> str:
    return "".join(token.raw for token in word if token.kind is TokenKind.TEXT).rpartition("/")[2]
