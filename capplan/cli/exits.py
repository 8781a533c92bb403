"""Exit codes that scripts rely on."""

DONE = 0
NOT_PASSED = 1
"""The verdict is anything but pass, and ``--check`` was given."""
BAD_INPUT = 2
FAILED = 3
"""Something failed while running: a disk, a worker, a notebook."""
INTERRUPTED = 130
"""As a shell reports a program ended by Ctrl-C (128 + SIGINT)."""
PIPE_CLOSED = 141
"""As a shell reports a program whose output was closed (128 + SIGPIPE)."""
TERMINATED = 143
"""As a shell reports a program ended by SIGTERM (128 + SIGTERM)."""


def checked(outcome: str | None, *, check: bool) -> int:
    """Return the exit code of a verdict: 0, or 1 if it counts and is not a pass.

    >>> checked("unknown", check=True), checked("fail", check=False)
    (1, 0)
    """
    return NOT_PASSED if check and outcome != "pass" else DONE
