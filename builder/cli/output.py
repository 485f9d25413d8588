"""This page prints everything that the program shows.

Results go to standard output, everything else to standard error. Control characters in foreign text are shown and never
obeyed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from builder.base import redaction

if TYPE_CHECKING:
    from rich.console import Console

    from builder.base.errors import BuilderError
    from builder.base.events import Diagnosis
    from builder.evidence.run_record import Finding
    from builder.evidence.standing import ImageEvidence
    from builder.lab.upgrade_journal import InterruptedUpgrade
    from builder.lock.model import Status


# Text for the terminal. What comes from a file, a label, a log or a server may hold control characters: they would
# move the cursor, set the window's title, or turn the order of the letters round. They are shown and never obeyed.
# Every text passes `visible` at the edge, in `output`; only the colours and the bold letters of `styled` pass.

_KEPT = "\n\t"
# Control and format characters (bidirectional marks, invisible joiners), halves of surrogate pairs, line separators.
_SHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# What `styled` makes: one of eight colours, bold letters, and the end of both.
_STYLE = r"(\x1b\[(?:[01]|3[0-7])m)"
# Colours and intensity, and nothing that hides text or makes it blink (ECMA-48, 8.3.117).
_ONE_COLOUR = r"(?:[0-47]|2[2-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7]|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3})"
_COLOUR = rf"(\x1b\[(?:{_ONE_COLOUR}(?:;{_ONE_COLOUR})*)?m)"
_END = "\x1b[0m"


def visible(text: str) -> str:
    """``text`` with its control characters as escapes, such as ``\\x1b``; its lines and tabs stay, and what
    `styled` makes. Secrets are left out."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    return "".join(
        part if number % 2 or part.isprintable() else "".join(map(_shown, part))
        for number, part in enumerate(re.split(_STYLE, text))
    )


def on_one_line(text: str) -> str:
    """``text`` as `visible` shows it, line breaks and tabs made visible, too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def styled(text: str, *, fg: str | None = None, bold: bool | None = None) -> str:
    """``text`` in one of eight colours, or bold."""
    return click.style(visible(text), fg=fg, bold=bold)


def log_with_colours(text: str) -> str:
    """Text that another program wrote into its log, for a terminal: as `visible` shows it, but its colours stay, to the
    end of the text at most. Of a line that was drawn several times, such as a progress bar, the last state is shown."""
    text = redaction.redacted(text)
    if text.isprintable():
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    parts = re.split(_COLOUR, "\n".join(lines))
    shown = "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))
    return shown + _END if len(parts) > 1 else shown


def log_without_colours(text: str) -> str:
    """Text that another program wrote into its log, for a file: as `visible` shows it, without its colours."""
    if text.isprintable():
        return redaction.redacted(text)
    return visible(re.sub(_COLOUR, "", text.replace("\r\n", "\n").removesuffix("\r")))


def of_json(text: str) -> str:
    """JSON as it was dumped, with the control characters in its strings escaped: JSON itself wants that only of those
    below U+0020. Secrets are left out."""
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


# Colours for words that describe a change or a state. The words and signs stay, for readers without colours.

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
    """A word for a change or a state in its colour, or ``shown`` in that colour; any other word unchanged."""
    if not text:
        return ""
    shown = shown or text
    return styled(shown, fg=_BY_WORD.get(text), bold=bold) if bold or text in _BY_WORD else shown


def line(text: str) -> str:
    """A line of a unified diff in the colour of its sign."""
    colour = _BY_SIGN.get(text[:1])
    return styled(text, fg=colour) if colour else text


def moved(before: str, after: str) -> str:
    """`before → after`, where a pointer went from one to the other."""
    return f"{styled(before, fg=_REMOVED)} → {styled(after, fg=_ADDED)}"


# Lines folded to fit the terminal: between words, and never within anything that the user may want to copy.

UNLIMITED = 10_000
_PLAIN_TERMINAL = 80
# Text in backquotes is a command or a name, which is never folded.
_ALONE = r"^( *)`([^`]* [^`]*)`[.,;:]?$"
_WORD = r"(?:`[^`]*`|\S)+"


def width(stream: TextIO | None = None) -> int:
    """The columns of the terminal behind ``stream`` (standard output); UNLIMITED where a program reads it."""
    stream = stream or sys.stdout
    return terminal_columns(stream) if stream.isatty() else UNLIMITED


def terminal_columns(stream: TextIO) -> int:
    """Returns what COLUMNS says, or else the columns of the terminal behind ``stream``; 80 where there is none."""
    if re.fullmatch("[1-9][0-9]{0,5}", columns := os.environ.get("COLUMNS", "")):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_TERMINAL
    except (OSError, AttributeError):  # closed
        return _PLAIN_TERMINAL


def fold(line: str, columns: int, hanging: int = 2) -> list[str]:
    """Folds ``line`` into lines of at most ``columns``; those after the first are indented by ``hanging`` more. A word
    that is wider, such as a path or a digest, stays whole, and so does a command in backquotes. A long command that
    would not fit gets a line of its own, without backquotes and punctuation, so that it can be copied."""
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
    """Returns the columns that ``text`` takes, its colour codes aside."""
    return len(click.unstyle(text)) if "\x1b" in text else len(text)


# ``--quiet`` and ``--verbose``: the amount of output beside the result.

Verbosity = Literal["quiet", "normal", "verbose"]
_KEY = "builder.verbosity"


def level() -> Verbosity:
    """The verbosity that the user chose."""
    context = click.get_current_context(silent=True)
    chosen: Verbosity = context.meta.get(_KEY, "normal") if context else "normal"
    return chosen


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the two options, for commands that print something while they work."""

    def keep(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta[_KEY] = parameter.name

    texts = {"quiet": "Print only the result and errors.", "verbose": "Also show the output of each step."}
    for name, text in reversed(texts.items()):
        option = click.option(f"--{name}", f"-{name[0]}", is_flag=True, expose_value=False, callback=keep, help=text)
        command = option(command)
    return command


# Printing: results to standard output, everything else to standard error, folded to the width of the terminal. All
# that this program prints goes through here, and with it through `terminal_text`: nothing that others wrote reaches
# the terminal as it is.

STREAM = "standard output"
"""What an OSError names that came from printing."""


def print_result(text: str, hanging: int = 2, *, err: bool = False) -> None:
    """Prints one or several lines of the result; folded lines are indented by ``hanging`` more columns."""
    columns = width(sys.stderr if err else sys.stdout)
    for line in visible(text).split("\n"):
        for folded in fold(line, columns, hanging):
            print_line(folded, err=err)


def print_note(text: str) -> None:
    """Prints to standard error, so that standard output has nothing but the result."""
    print_result(text, err=True)


def print_line(text: str = "", *, err: bool = False) -> None:
    """Prints a line without folding it, such as a row of a table."""
    _echo(visible(text), err=err, color=colour())


def print_document(text: str) -> None:
    """Prints a whole document: unchanged for a program or a file, with visible control characters on a terminal."""
    _echo(visible(text) if sys.stdout.isatty() else text, nl=False)


def print_log(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints a part of the log of another program, with its colours on a terminal."""
    stream = sys.stderr if err else sys.stdout
    in_colours = stream.isatty() and colour() is not False
    shown = log_with_colours(text) if in_colours else log_without_colours(text)
    _echo(shown, err=err, nl=nl)


def confirm(question: str, *, default: bool = False) -> bool:
    """Asks the user; True for yes."""
    return click.confirm(on_one_line(question), default=default)


def agreed(question: str, *, yes: bool, as_json: bool = False) -> bool:
    """True with ``--yes``, or where there is a user to ask, who agrees."""
    return yes or (not as_json and sys.stdin.isatty() and confirm(question))


def print_message(event: object) -> None:
    """Prints the text of a `Message`, unless ``--quiet`` is given; ignores other events."""
    from builder.base.events import Message

    if isinstance(event, Message) and level() != "quiet":
        print_note(event.text)


def print_on_console(console: Console, text: str) -> None:
    """Prints above the live display on ``console``."""
    for line in visible(text).split("\n"):
        for folded in fold(line, console.width):
            console.print(folded, markup=False, no_wrap=True, overflow="ignore", crop=False)


def task_text(text: str) -> str:
    """``text`` for the description of a task in a live display, which would read `[red]` in it as a colour."""
    from rich.markup import escape

    return escape(on_one_line(text))


def print_error(failure: BuilderError, label: str = "error:") -> None:
    """Prints an error with its hint; ``label`` stands before its message."""
    _print_error_lines(label, failure.message)
    if log := getattr(failure, "log", ""):
        print_note(f"the whole log: {log}")
    if failure.hint:
        _print_hint(failure.hint)


def print_usage_error(failure: click.ClickException) -> None:
    """Prints a mistake in the command as typed."""
    message = failure.format_message().replace("\n\t", " ")  # click puts each choice on a line of its own
    message = re.sub("is not a valid integer(?: range)?", "is not a whole number", message)
    message = re.sub("is not a valid float(?: range)?", "is not a number", message)
    _print_error_lines("error:", message)
    if isinstance(failure, click.UsageError) and failure.ctx:
        _print_hint(f"`{failure.ctx.command_path} --help` shows how to use the command")


def _print_hint(hint: str) -> None:
    print_note(f"{styled('what to do:', bold=True)} {hint}")


def _print_error_lines(label: str, message: str) -> None:
    first, *rest = message.splitlines() or ["no message"]
    for line in (f"{styled(label, fg='red', bold=True)} {first}", *(f"  {line}" for line in rest)):
        print_result(line, hanging=4, err=True)


# A name, the path of an attribute, the keys of its items (which may have items, too), and a mark.
_JSON_KEY = r"(?:(\w+)=)?([\w.]+)(?:\(((?:[^()]|\([^()]*\))*)\))?([?~]?)"


def data(value: object, keys: str = "") -> Any:
    """``value`` for JSON, as `records.plain` has it. ``keys`` chooses what is shown of a dataclass, or of each in a
    sequence, in this order: ``size`` is an attribute, ``said=message`` one under another name,
    ``gpu=subject.machine.gpu`` one further inside, or null if a value on that path is null. ``note?`` is null if it is
    empty, ``seconds~`` has one decimal, ``runs(name file)`` has these keys of each run."""
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
    """Prints a command's result as JSON, as `data` makes it, on one line if ``indent`` is None."""
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
    """Returns the ``color`` of click: False if the user wants none (https://no-color.org) or the terminal calls itself
    dumb, else None: on a terminal only."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


# Plain tables that fit the terminal. rich would do it too, at 49 ms of import for a command that may take 150.

GAP = "  "
# The last column is not made narrower than this unless its text is.
_NARROWEST = 16
_NOTHING = "-"


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Returns the lines of a table, the headings first. A last column that does not fit is folded between words. It is
    put below its row if one of its words does not fit or if it gets much shorter that way; below every row if the other
    columns leave it no room. If even those do not fit, long cells of the first column get a line of their own."""
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
    """Prints names and values in columns, which are at least as wide as the texts ``widest``."""
    for line in lines(widest, facts, width() - len(indent))[1:]:
        print_line(indent + line)


def print_finding(finding: Diagnosis) -> None:
    """Prints the result of a check: its verdict, its subject, the finding, and what to do."""
    text = finding.message + (f"\n→ {finding.remedy}" if finding.remedy else "")
    # The widest text of each column, so that all findings are aligned.
    print_facts([(word(finding.verdict), f"{finding.subject}:", text)], widest=("warning", "certificates:", ""))


# The standing of images and the verdict of findings in one word, which is coloured beside: the word alone says it.


def mark(status: Status) -> str:
    """The mark of an image or a pairing as it is shown: images.lock and `--json` call one that is missing `untested`,
    which says nothing of its proof."""
    return "unmarked" if status == "untested" else status


def beside_model(evidence: ImageEvidence | None, model: str) -> str:
    """The standing of an image with one of its models, where it is not the one that is shown of the image."""
    own = evidence.standing_with(model) if evidence else None
    return word(own) if evidence and own != evidence.standing else ""


def finding_word(finding: Finding) -> str:
    """The verdict of one finding. One that passes is a limit of a template that others publish, or a note on what the
    figures of a benchmark leave out."""
    if finding.verdict != "pass":
        return finding.verdict
    return "note" if finding.check in {"tokens", "pp"} else "limit"


def interrupted_upgrade(interrupted: InterruptedUpgrade) -> dict[str, Any]:
    """An interrupted upgrade as JSON: its stage, and the command that continues it."""
    keys = (
        "subject=model stage=upgrade.stage? before=upgrade.before? candidate=upgrade.candidate? "
        "started=upgrade.started? problem?"
    )
    return {**data(interrupted, keys), "goes_on_with": f"builder upgrade {interrupted.text}"}
