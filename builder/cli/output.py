"""All output of the program.

Results go to standard output, everything else to standard error. Control characters in foreign text are shown, not
executed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from builder.base import redaction, words

if TYPE_CHECKING:
    from rich.console import Console

    from builder.base.errors import BuilderError
    from builder.base.events import Diagnosis
    from builder.evidence.run_record import Finding
    from builder.evidence.standing import ImageEvidence
    from builder.lab.upgrade_journal import InterruptedUpgrade
    from builder.lock.model import Status


# Text for the terminal. Text from files, labels, logs or servers may contain control characters. They could move the
# cursor, set the window's title, or reverse the order of letters. They are shown, never executed. All text passes
# `visible` on output; only the colours and bold letters of `styled` are kept.

_KEPT = "\n\t"
# Control and format characters (bidirectional marks, invisible joiners), halves of surrogate pairs, line separators.
_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# The codes that `styled` makes: eight colours, bold, and the reset of both.
_STYLE = r"(\x1b\[(?:[01]|3[0-7])m)"
# Colours and intensity, but no codes that hide text or make it blink (ECMA-48, 8.3.117).
_ONE_COLOUR = r"(?:[0-47]|2[2-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7]|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3})"
_COLOUR = rf"(\x1b\[(?:{_ONE_COLOUR}(?:;{_ONE_COLOUR})*)?m)"
_END = "\x1b[0m"


def visible(text: str) -> str:
    """``text`` with control characters as escapes, such as ``\\x1b``. Line breaks, tabs and the codes of `styled` are
    kept. Secrets are left out."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    return "".join(
        part if number % 2 or part.isprintable() else "".join(map(_shown, part))
        for number, part in enumerate(re.split(_STYLE, text))
    )


def on_one_line(text: str) -> str:
    """``text`` like `visible`, but line breaks and tabs are also escaped."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def styled(text: str, *, fg: str | None = None, bold: bool | None = None) -> str:
    """``text`` in one of eight colours, or bold."""
    return click.style(visible(text), fg=fg, bold=bold)


def log_with_colours(text: str) -> str:
    """Text from another program's log, for a terminal. It is like `visible`, but keeps colours, which end with the
    text. If a line was drawn several times, such as a progress bar, only its last state is shown."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    parts = re.split(_COLOUR, "\n".join(lines))
    shown = "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))
    return shown + _END if len(parts) > 1 else shown


def log_without_colours(text: str) -> str:
    """Text from another program's log, for a file: like `visible`, without colours."""
    if text.isprintable():
        return redaction.redacted(text)
    return visible(re.sub(_COLOUR, "", text.replace("\r\n", "\n").removesuffix("\r")))


def of_json(text: str) -> str:
    """Dumped JSON with all control characters escaped; JSON requires that only below U+0020. Secrets are left out."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    from json import dumps

    return re.sub(
        r"[^ -~\n\t]", lambda match: match[0] if _shown(match[0]) == match[0] else dumps(match[0])[1:-1], text
    )


def _shown(letter: str) -> str:
    if letter.isprintable() or letter in _KEPT:
        return letter
    import unicodedata

    return letter.encode("unicode_escape").decode() if unicodedata.category(letter) in _SHOWN else letter


# Colours for words about changes or states. The words and signs remain, for readers without colours.

_ADDED, _REMOVED, _CHANGED = "green", "red", "yellow"
_BY_WORD = {
    **dict.fromkeys(("added", "new", "came"), _ADDED),
    **dict.fromkeys(("removed", "gone", "went"), _REMOVED),
    **dict.fromkeys(("changed", "up", "down"), _CHANGED),
    **dict.fromkeys(("ok", "pass", "proven", "good", "current", "better"), "green"),
    **dict.fromkeys(("error", "fail", "failed", "bad", "missing", "moved", "worse"), "red"),
    **dict.fromkeys(("warning", "stale", "unclear"), "yellow"),
}
_BY_SIGN = {"+": _ADDED, "-": _REMOVED}


def word(text: str | None, shown: str = "", *, bold: bool | None = None) -> str:
    """A word for a change or a state in its colour, or ``shown`` in that colour. Other words are unchanged."""
    if not text:
        return ""
    shown = shown or text
    return styled(shown, fg=_BY_WORD.get(text), bold=bold) if bold or text in _BY_WORD else shown


def line(text: str) -> str:
    """A line of a unified diff in the colour of its sign."""
    colour = _BY_SIGN.get(text[:1])
    return styled(text, fg=colour) if colour else text


def moved(before: str, after: str) -> str:
    """`before → after`, for a moved pointer."""
    return f"{styled(before, fg=_REMOVED)} → {styled(after, fg=_ADDED)}"


# Lines are folded to the terminal's width between words, never within text that the user may copy.

UNLIMITED = 10_000
_PLAIN_TERMINAL = 80
# Text in backquotes is a command or a name, and is never folded.
_ALONE = r"^( *)`([^`]* [^`]*)`[.,;:]?$"
_WORD = r"(?:`[^`]*`|\S)+"


def width(stream: TextIO | None = None) -> int:
    """The columns of the terminal behind ``stream`` (standard output); UNLIMITED if a program reads it."""
    stream = stream or sys.stdout
    return terminal_columns(stream) if stream.isatty() else UNLIMITED


def terminal_columns(stream: TextIO) -> int:
    """Returns COLUMNS if set, or else the columns of the terminal behind ``stream``; 80 if there is no terminal."""
    if re.fullmatch("[1-9][0-9]{0,5}", columns := os.environ.get("COLUMNS", "")):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_TERMINAL
    except (OSError, AttributeError):  # the stream is closed
        return _PLAIN_TERMINAL


def fold(line: str, columns: int, hanging: int = 2) -> list[str]:
    """Folds ``line`` into lines of at most ``columns``. All lines after the first get an additional indent of
    ``hanging``. A wider word, such as a path or a digest, and a command in backquotes stay whole. A long command that
    does not fit gets its own line, without backquotes and punctuation, so that it can be copied."""
    if columns_of(line) <= columns:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    first, *rest = re.findall(_WORD, line) or [""]
    lines, full = [start + first], False
    for word in rest:
        if not full and columns_of(lines[-1]) + 1 + columns_of(word) <= columns:
            lines[-1] += f" {word}"
            continue
        room = columns - columns_of(word)
        lines.append(" " * max(min(len(start) + hanging, room), 0) + word)
        full = "`" in word and " " in word and room < columns // 2
    return [lines[0], *(re.sub(_ALONE, r"\1\2", line) for line in lines[1:])]


def columns_of(text: str) -> int:
    """Returns the columns of ``text`` without its colour codes."""
    return len(click.unstyle(text)) if "\x1b" in text else len(text)


# ``--quiet`` and ``--verbose``: the amount of output in addition to the result.

Verbosity = Literal["quiet", "normal", "verbose"]
_KEY = "builder.verbosity"


def level() -> Verbosity:
    """The verbosity that the user chose."""
    context = click.get_current_context(silent=True)
    chosen: Verbosity = context.meta.get(_KEY, "normal") if context else "normal"
    return chosen


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds both options, for commands that print while they work."""

    def keep(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta[_KEY] = parameter.name

    texts = {"quiet": "Print only the result and errors.", "verbose": "Also show the output of each step."}
    for name, text in reversed(texts.items()):
        option = click.option(f"--{name}", f"-{name[0]}", is_flag=True, expose_value=False, callback=keep, help=text)
        command = option(command)
    return command


# Printing. Results go to standard output, everything else to standard error, folded to the terminal's width. All output
# of the program passes these functions and `visible`, so foreign text never reaches the terminal unchanged.

STREAM = "standard output"
"""The file name in an OSError of a failed output."""


def print_result(text: str, hanging: int = 2, *, err: bool = False) -> None:
    """Prints lines of the result. Folded lines get an additional indent of ``hanging`` columns."""
    columns = width(sys.stderr if err else sys.stdout)
    for line in visible(text).split("\n"):
        for folded in fold(line, columns, hanging):
            print_line(folded, err=err)


def print_note(text: str) -> None:
    """Prints to standard error, so that standard output contains only the result."""
    print_result(text, err=True)


def print_line(text: str = "", *, err: bool = False) -> None:
    """Prints a line without folding, such as a row of a table."""
    _echo(visible(text), err=err, color=colour())


def print_document(text: str) -> None:
    """Prints a whole document. A terminal shows control characters as escapes; other output is unchanged."""
    _echo(visible(text) if sys.stdout.isatty() else text, nl=False)


def print_log(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints a part of another program's log, with its colours on a terminal."""
    stream = sys.stderr if err else sys.stdout
    in_colours = stream.isatty() and colour() is not False
    shown = log_with_colours(text) if in_colours else log_without_colours(text)
    _echo(shown, err=err, nl=nl)


def confirm(question: str, *, default: bool = False) -> bool:
    """Asks the user; True for yes."""
    return click.confirm(on_one_line(question), default=default)


def agreed(question: str, *, yes: bool, as_json: bool = False) -> bool:
    """True with ``--yes``, or if a user at a terminal agrees."""
    return yes or (not as_json and sys.stdin.isatty() and confirm(question))


def print_message(event: object) -> None:
    """Prints the text of a `Message`, unless ``--quiet`` is given. Ignores other events."""
    from builder.base.events import Message

    if isinstance(event, Message) and level() != "quiet":
        print_note(event.text)


def print_on_console(console: Console, text: str) -> None:
    """Prints above the live display on ``console``."""
    for line in visible(text).split("\n"):
        for folded in fold(line, console.width):
            console.print(folded, markup=False, no_wrap=True, overflow="ignore", crop=False)


def task_text(text: str) -> str:
    """``text`` as a task description in a live display, where `[red]` would otherwise be a colour."""
    from rich.markup import escape

    return escape(on_one_line(text))


def print_error(failure: BuilderError, label: str = "error:") -> None:
    """Prints an error with its hint; ``label`` precedes the message."""
    _print_error_lines(label, failure.message)
    if log := getattr(failure, "log", ""):
        print_note(f"the whole log: {log}")
    if failure.hint:
        _print_hint(failure.hint)


def print_usage_error(failure: click.ClickException) -> None:
    """Prints an error in the typed command."""
    message = failure.format_message().replace("\n\t", " ")  # click puts each choice on a separate line
    message = re.sub("is not a valid integer(?: range)?", "is not a whole number", message)
    message = re.sub("is not a valid float(?: range)?", "is not a number", message)
    _print_error_lines("error:", message)
    if isinstance(failure, click.UsageError) and failure.ctx:
        _print_hint(f"`{failure.ctx.command_path} --help` shows how to use the command")
    elif isinstance(failure, click.BadOptionUsage):  # click does not tell the command here
        _print_hint("`--help` in place of the option shows how to use the command")


def _print_hint(hint: str) -> None:
    print_note(f"{styled('what to do:', bold=True)} {hint}")


def _print_error_lines(label: str, message: str) -> None:
    first, *rest = message.splitlines() or ["no message"]
    for line in (f"{styled(label, fg='red', bold=True)} {first}", *(f"  {line}" for line in rest)):
        print_result(line, hanging=4, err=True)


# A name, the path of an attribute, the keys of its items (at most one level deeper), and a mark.
_JSON_KEY = r"(?:(\w+)=)?([\w.]+)(?:\(((?:[^()]|\([^()]*\))*)\))?([?~]?)"


def data(value: object, keys: str = "") -> Any:
    """``value`` as JSON data, like `records.plain`. ``keys`` selects attributes of a dataclass, or of each item of a
    sequence, in this order. ``size`` is an attribute; ``said=message`` renames one. ``gpu=subject.machine.gpu`` is a
    nested attribute, or null if a value on the path is null. ``note?`` is null if it is empty, ``seconds~`` has one
    decimal, ``runs(name file)`` selects these keys of each run."""
    from builder.base.records import plain

    if not keys or value is None or isinstance(value, str | int | float):
        return plain(value)
    if isinstance(value, Mapping):
        return {str(key): data(each, keys) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [data(each, keys) for each in value]
    chosen = {}
    for name, path, inner, mark in re.findall(_JSON_KEY, keys):
        shown: Any = value
        for part in path.split("."):
            shown = None if shown is None else getattr(shown, part)
        if mark == "~" and isinstance(shown, float):
            shown = round(shown, 1)
        chosen[name or path] = data(None if mark == "?" and not shown else shown, inner)
    return chosen


def print_json(content: object, keys: str = "", indent: int | None = 1) -> None:
    """Prints a command's result as JSON (see `data`), on one line if ``indent`` is None."""
    from json import dumps

    document = dumps({"schema_version": 1, **data(content, keys)}, indent=indent, ensure_ascii=False)
    _echo(of_json(document))


def _echo(text: str, *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    try:
        click.echo(text, err=err, nl=nl, color=color)
    except OSError as error:
        error.filename = STREAM
        raise


def colour() -> bool | None:
    """Returns click's ``color``. False if the user wants no colours (https://no-color.org) or the terminal is dumb;
    else None, which means colours only on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


# Plain tables that fit the terminal. rich could print them, too, but its import takes 49 ms, and a whole command may
# take only 150 ms.

GAP = "  "
# The last column is at least this wide, unless its text is narrower.
_NARROWEST = 16
_NOTHING = "-"


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Returns the lines of a table, the headings first. A last column that does not fit is folded between words. It
    goes below its row if one of its words does not fit, or if it gets much shorter there. It goes below every row if
    the other columns leave no room. If they do not fit either, long cells of the first column get their own lines."""
    rows = [[*map(on_one_line, cells), visible(last)] for *cells, last in rows]
    everything = (headings, *rows)
    widths = [max(columns_of(row[n]) for row in everything) for n in range(len(headings) - 1)]
    least = min(_NARROWEST, max(columns_of(row[-1]) for row in everything))
    if widths and _indent(widths) - len(GAP) > columns:
        widths[0] = max(len(headings[0]), columns - _indent(widths[1:]) - len(GAP) - least)
    is_below = bool(widths) and columns - _indent(widths) < least
    shown = []
    for row in everything:
        *cells, last = row
        if cells and columns_of(cells[0]) > widths[0]:
            shown.append(cells[0])
            cells[0] = ""
            if not any((*cells, last)):
                continue
        padded = (cell + " " * (wide - columns_of(cell)) for cell, wide in zip(cells, widths, strict=True))
        start = GAP.join([*padded, ""])
        if is_below:
            shown += _below(start, "" if row is headings else last, columns)
        else:
            shown += _row(start, last, columns)
    return shown


def _indent(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * len(widths)


def _row(start: str, last: str, columns: int) -> list[str]:
    indent = columns_of(start)
    room = columns - indent
    beside, below = _folded(last, room), _folded(last, columns - len(GAP))
    if any(columns_of(line) > room for line in beside) or len(beside) > 2 * len(below):
        return _below(start, last, columns)
    return [(start + beside[0]).rstrip(), *(" " * indent + line for line in beside[1:])]


def _below(start: str, last: str, columns: int) -> list[str]:
    below = _folded(last, columns - len(GAP)) if last not in {"", _NOTHING} else []
    return [*([start.rstrip()] if start.strip() or not below else []), *(GAP + line for line in below)]


def _folded(text: str, columns: int) -> list[str]:
    return [folded for line in text.split("\n") for folded in fold(line, columns, hanging=0)]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table as wide as the terminal."""
    for number, line in enumerate(lines(headings, rows, width())):
        print_line(styled(line, bold=True) if number == 0 else line)


def print_facts(facts: Sequence[Sequence[str]], indent: str = "", widest: Sequence[str] = ("", "")) -> None:
    """Prints names and values in columns that are at least as wide as the texts ``widest``."""
    for line in lines(widest, facts, width() - len(indent))[1:]:
        print_line(indent + line)


def print_finding(finding: Diagnosis) -> None:
    """Prints the result of a check: verdict, subject, finding, and remedy."""
    text = finding.message + (f"\n→ {finding.remedy}" if finding.remedy else "")
    # The widest text of each column, so that all findings are aligned.
    print_facts([(word(finding.verdict), f"{finding.subject}:", text)], widest=("warning", "certificates:", ""))


# The standing of images and the verdict of findings as words. Colours repeat the meaning of a word.


def mark(status: Status) -> str:
    """The mark of an image or a pairing as shown to the user. images.lock and `--json` use `untested` for a missing
    mark, but `untested` could be mistaken for a missing proof."""
    return "unmarked" if status == "untested" else status


def beside_model(evidence: ImageEvidence | None, model: str) -> str:
    """The standing of an image with one of its models, if it differs from the standing that is shown for the image."""
    own = evidence.standing_with(model) if evidence else None
    return word(own) if evidence and own != evidence.standing else ""


def finding_word(finding: Finding) -> str:
    """The verdict of one finding. A finding that passed is a limit of a published template, or a note on what the
    figures of a benchmark do not include."""
    if finding.verdict != "pass":
        return finding.verdict
    return "note" if finding.check in {"tokens", "pp"} else "limit"


def interrupted_upgrade(interrupted: InterruptedUpgrade) -> dict[str, Any]:
    """An interrupted upgrade as JSON data: its stage, and the command that continues it."""
    keys = (
        "subject=model stage=upgrade.stage? before=upgrade.before? candidate=upgrade.candidate? "
        "started=upgrade.started? problem?"
    )
    return {**data(interrupted, keys), "goes_on_with": f"builder upgrade {words.shell_word(interrupted.text)}"}
