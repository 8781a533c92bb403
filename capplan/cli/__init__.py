"""The command line. Scripts rely on its commands, exit codes, error form and JSON keys."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

from capplan import __version__, progress
from capplan.cli import (
    budget,
    fidelity,
    init,
    measure,
    memory,
    reference,
    report,
    simulate,
    size,
    stages,
    sweep,
    traffic,
)
from capplan.cli.output import BAD_INPUT, FAILED, INTERRUPTED, PIPE_CLOSED, TERMINATED
from capplan.cli.parsing import Parser, UsageError
from capplan.schema import DataError

NOTES = """\
SCENARIO is a YAML file or the name of a bundled scenario (see: capplan data list).
Exit codes: 0 done, 1 the verdict is anything but pass (with --check), 2 bad input,
3 something failed while running. Messages go to stderr as file: field: rule, got value.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    trace = False
    try:
        args = _parser().parse_args(argv)
        trace = args.traceback
        shown = progress.shown(always=args.progress)
        with _tidy_when_terminated(), shown, progress.work(args.command):
            code: int = args.run(args)
        sys.stdout.flush()
    except (UsageError, DataError) as err:
        return _end(BAD_INPUT, str(err), trace=trace)
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED
    except Terminated:
        return _end(TERMINATED, "terminated", trace=trace)
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted", trace=trace)
    except Exception as err:  # the edge: every failure is one line on stderr
        _forget_stdout()
        return _end(FAILED, _cause(err), trace=trace)
    return code


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: unfinished files are removed as after Ctrl-C."""


@contextlib.contextmanager
def _tidy_when_terminated() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM; only a main thread may listen to signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> Parser:
    parser = Parser(
        prog="capplan",
        description="Plan the capacity of an AI inference service.",
        epilog=NOTES,
    )
    parser.add_argument("--version", action="version", version=f"capplan {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="on failure, show where in the code it happened"
    )
    parser.add_argument(
        "--progress",
        action="store_true",
        help="write progress to stderr though it is no terminal (without: only on a terminal)",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for group in (
        init,
        memory,
        traffic,
        budget,
        simulate,
        measure,
        sweep,
        stages,
        size,
        fidelity,
        report,
        reference,
    ):
        group.add(commands)
    return parser


def _end(code: int, message: str, *, trace: bool) -> int:
    with contextlib.suppress(OSError):
        if trace:
            traceback.print_exc()
        sys.stderr.write(" ".join(message.split()) + "\n")
    return code


def _cause(err: Exception) -> str:
    if isinstance(err, OSError) and err.strerror:
        return f"{err.filename or 'output'}: {err.strerror}"
    first = next(iter(str(err).splitlines()), "")
    return first if getattr(err, "is_complete", False) else f"{type(err).__name__}: {first}"


def _forget_stdout() -> None:
    """Point a closed stdout at the null device, or the interpreter fails again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
