"""Numbers of things, in sentences."""

from __future__ import annotations


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return a number of things; ``plural`` where it is not the noun with an s.

    >>> counted(1, "replica"), counted(1200, "request"), counted(0, "queue")
    ('1 replica', '1,200 requests', '0 queues')
    >>> counted(2, "entry", "entries"), counted(1.0, "turn")
    ('2 entries', '1 turn')
    """
    told = f"{number:,.15g}"
    return f"{told} {noun}" if number == 1 else f"{told} {plural or noun + 's'}"


def does(number: float, one: str, several: str) -> str:
    """Return the verb's form for a number of things.

    >>> does(1, "was", "were"), does(0, "was", "were")
    ('was', 'were')
    """
    return one if number == 1 else several
