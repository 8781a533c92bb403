"""Whether somebody can move a slider."""

from __future__ import annotations

import os


def has_reader() -> bool:
    """Return whether this process is a kernel with a person in front of it.

    A notebook front end lets the kernel ask its user for input (``allow_stdin``); papermill and
    nbconvert, which run a notebook headless, do not. Voilà does not either, but says that it is
    there by its ``VOILA_`` variables.
    """
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    in_voila = any(name.startswith("VOILA_") for name in os.environ)
    return in_voila or bool(getattr(kernel, "_allow_stdin", False))
