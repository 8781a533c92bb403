"""How far the work of this process is: one line on stderr with the time that is left.

Work names itself (:func:`work`), the inner inside the outer; a command shows it (:func:`shown`).
Nothing is written in the first ``QUIET_S`` seconds, nor where stderr is no terminal, so that logs
stay clean; if it is asked for there, a plain line comes every ``EVERY_S`` seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

QUIET_S = 5.0
EVERY_S = 10.0
REFRESH_S = 0.5
CLEAR = "\r\x1b[K"
"""Back to the start of the line, and erase it (ECMA-48, EL)."""


@dataclass(slots=True, eq=False)
class Work:
    """Work under way: ``done`` of ``total`` parts, or what ``reading`` returns, 0 to 1.

    ``guessed``: the total is an estimate, and one more part is expected if all of it is done.
    """

    name: str
    total: float = 1.0
    done: float = 0.0
    reading: Callable[[], float] | None = None
    guessed: bool = False

    def step(self, name: str = "") -> None:
        """Count one more part as done, and name the next if there is a name."""
        self.done += 1
        self.name = name or self.name
        if self.guessed:
            self.total = max(self.total, self.done + 1)


_under_way: list[Work] = []
"""What is under way, the outermost first."""


@contextlib.contextmanager
def work(
    name: str,
    *,
    total: float = 1.0,
    reading: Callable[[], float] | None = None,
    guessed: bool = False,
) -> Iterator[Work]:
    """Count what runs inside as one part of the work around it."""
    own = Work(name, total, reading=reading, guessed=guessed)
    _under_way.append(own)
    try:
        yield own
    finally:
        _under_way.remove(own)


def step() -> None:
    """Count one more part of the innermost work as done; nothing if none is under way."""
    if _under_way:
        _under_way[-1].step()


def fraction_of(parts: Sequence[Work]) -> float:
    """Return how much is done of work, the outermost first, 0 to 1.

    >>> fraction_of([Work("runs", total=4, done=1), Work("run", reading=lambda: 0.5)])
    0.375
    """
    inner = 0.0
    for one in reversed(parts):
        done = one.done + inner if one.reading is None else one.reading()
        inner = min(max(done / one.total if one.total > 0 else 0.0, 0.0), 1.0)
    return inner


def line(parts: Sequence[Work], elapsed_s: float) -> str:
    """Return the names of work, how much is done, and the time that is left at this pace.

    >>> line([Work("size", total=4, done=1)], 30.0)
    'size: 25 %, 1:30 left'
    """
    names = " › ".join(dict.fromkeys(one.name for one in parts if one.name))
    done = fraction_of(parts)
    if done <= 0:  # before the first part, or after the last
        return f"{names}: {_clock(elapsed_s)} so far"
    return f"{names}: {100 * done:.0f} %, {_clock(elapsed_s * (1 / done - 1))} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def shown(*, always: bool = False) -> Iterator[None]:
    """Show the work inside on stderr if it is a terminal, or ``always``."""
    on_terminal = sys.stderr.isatty()
    if not (on_terminal or always):
        yield
        return
    ended = threading.Event()
    every = REFRESH_S if on_terminal else EVERY_S
    thread = threading.Thread(target=_show, args=(ended, every, on_terminal), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(ended: threading.Event, every_s: float, on_terminal: bool) -> None:
    start = time.monotonic()
    written = False
    wait = QUIET_S
    while not ended.wait(wait):
        wait = every_s
        if parts := list(_under_way):
            text = line(parts, time.monotonic() - start)
            sys.stderr.write(f"{CLEAR}{text}" if on_terminal else f"{text}\n")
            sys.stderr.flush()
            written = True
    if written and on_terminal:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
