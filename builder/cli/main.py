"""The command line as a whole: options before the command, and every error turned into text and an exit code."""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli import output
from builder.cli.command_table import Commands
from builder.cli.context import Context
from builder.errors import BUG, INTERRUPTED, BuilderError

if TYPE_CHECKING:
    from types import FrameType, TracebackType


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from builder.commands import version

        output.print_result(f"builder {version.run()}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The project is the folder with dockerfiles/ and images.lock, here or above.",
)
@click.option("--project", type=click.Path(path_type=Path), metavar="FOLDER", help="Work on the project in FOLDER.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the commit, and exit.",
)
@click.pass_context
def cli(ctx: click.Context, project: Path | None) -> None:
    """Numbered vLLM images: build, pin, list what serves which model, roll back."""
    ctx.obj = Context(project or Path())
    ctx.color = output.colour()


def run(arguments: list[str]) -> int:
    """Runs one command and returns the process's exit code. A bug ends the process itself, with a report and code 3."""
    sys.excepthook = _report_bug
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not so under nohup
        signal.signal(signal.SIGHUP, _hang_up)
    try:
        code = cli.main(args=arguments, prog_name="builder", standalone_mode=False)
    except BuilderError as error:
        output.print_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        # An exception in a thread or a temporary folder while the process ends is no bug then.
        sys.excepthook = _report_nothing
        from builder.cli import interruption

        output.print_note(interruption.sentence(arguments, error))
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        output.print_line(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        output.print_usage_error(error)
        return 2
    except (OSError, MemoryError, RuntimeError) as error:
        if (failed := _report_system_failure(error)) is None:
            raise
        return failed
    return code if isinstance(code, int) else 0


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Makes SIGTERM unwind like ^C, so that what a build has begun is undone."""
    raise KeyboardInterrupt


def _hang_up(_signal: int, _frame: FrameType | None) -> None:
    """Makes SIGHUP unwind like ^C. The terminal is closed: text for it is dropped, since writing it would fail."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)
    raise KeyboardInterrupt


def _report_system_failure(error: BaseException) -> int | None:
    """Prints an error of the system, if that can be printed, and returns its exit code; None for a bug."""
    from builder.cli import system_failure

    failure = system_failure.translate(error)
    if failure is None:
        return None
    with suppress(OSError):
        output.print_error(failure)
    return failure.exit_code


def _report_nothing(_kind: type[BaseException], _error: BaseException, _trace: TracebackType | None) -> None:
    pass


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from builder.cli import bug_report

    # What could not be printed, for one, comes from the system.
    code = _report_system_failure(error)
    with suppress(OSError):
        if code is None:
            bug_report.report(kind, error, trace)
        sys.stdout.flush()
    os._exit(code or BUG)
