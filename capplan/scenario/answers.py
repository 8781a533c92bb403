"""How a measured server ends requests: what its answer, or the lack of one, means to the caller."""

from __future__ import annotations

from typing import ClassVar

from capplan.scenario.ending import Ending
from capplan.scenario.part import Part

BUSY = frozenset({408, 425, 429, 503, 529})
"""HTTP statuses that refuse for now. Source: RFC 9110, "HTTP Semantics", 2022, sections 15.5.9 and
15.6.4; RFC 8470, 2018, section 5.2; RFC 6585, 2012, section 4. 529: Anthropic's API, "Errors"."""
FIRST_SERVER_ERROR = 500


class Answers(Part):
    """The endings that a client can tell apart. A server does not say which of its layers refused.

    The reason in the log carries the status behind a colon, for example ``refused:503``.
    """

    refused: ClassVar = Ending("refused", 503)
    bad_request: ClassVar = Ending("bad_request", 400, final=True)
    server_error: ClassVar = Ending("server_error", 500)
    unreachable: ClassVar = Ending("unreachable", layer="network")
    """No connection."""
    cut_off: ClassVar = Ending("cut_off", layer="network")
    """The connection ended before the answer did."""
    unreadable: ClassVar = Ending("unreadable")
    """An answer that breaks the protocol, or one without a token."""


def ending_of(status: int) -> Ending:
    """Return the ending that an HTTP status means.

    >>> [ending_of(status).reason for status in (429, 413, 500)]
    ['refused', 'bad_request', 'server_error']
    """
    if status in BUSY:
        return Answers.refused
    return Answers.server_error if status >= FIRST_SERVER_ERROR else Answers.bad_request
