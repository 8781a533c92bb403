"""How far the work of this process is: one bar on stderr with the time that is left.

Work names itself (:func:`work`), the inner inside the outer; a command shows it (:func:`shown`) as
one bar of tqdm, since an inner part alone says nothing of the time that is left. Nothing is written
in the first ``QUIET_S`` seconds, nor where stderr is no terminal, so that logs stay clean; if it is
asked for there, a plain line comes every ``EVERY_S`` seconds.
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
LINE = "{desc}: {percentage:.0f} %, {elapsed} so far, {remaining} left"
BAR = "{desc}: {percentage:.0f} % |{bar}| {elapsed} so far, {remaining} left"
"""Forms of tqdm."""


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


@contextlib.contextmanager
def shown(*, always: bool = False) -> Iterator[None]:
    """Show the work inside on stderr if it is a terminal, or ``always``."""
    on_terminal = sys.stderr.isatty()
    if not (on_terminal or always):
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_draw if on_terminal else _write, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _draw(ended: threading.Event) -> None:
    """Keep one bar on a terminal; it is gone at the end."""
    from tqdm import tqdm

    options = {"delay": QUIET_S, "mininterval": 0.0, "miniters": 0, "smoothing": 0.0}
    with tqdm(total=1.0, leave=False, dynamic_ncols=True, bar_format=BAR, **options) as bar:
        while not ended.wait(REFRESH_S):
            bar.set_description_str(_names(), refresh=False)
            bar.update(max(fraction_of(_under_way) - bar.n, 0.0))


def _write(ended: threading.Event) -> None:
    """Write a line from time to time."""
    from tqdm import tqdm

    start_s, done = time.monotonic(), 0.0
    while not ended.wait(EVERY_S):
        elapsed_s = time.monotonic() - start_s
        done = max(done, fraction_of(_under_way))
        line = tqdm.format_meter(done, 1.0, elapsed_s, prefix=_names(), bar_format=LINE)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _names() -> str:
    return " › ".join(dict.fromkeys(one.name for one in _under_way if one.name))
