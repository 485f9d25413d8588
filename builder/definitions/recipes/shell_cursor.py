"""A place in the text of a command: the tokens that were read up to there, and the constructs that are open."""

from __future__ import annotations

from dataclasses import dataclass, field

from builder.definitions.recipes.placeholders import CommandProblem, Literal, Piece, Placeholder
from builder.definitions.recipes.shell import ShellContext, Token, TokenKind


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
            if isinstance(piece, Literal) and piece.source:
                self.sources |= dict.fromkeys(range(len(self.items), len(self.items) + len(piece.text)), piece.source)
                self.items += [(char, piece.offset) for char in piece.text]
            elif isinstance(piece, Literal):
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
