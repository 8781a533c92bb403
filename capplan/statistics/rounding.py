"""Numbers printed to their own error."""

from __future__ import annotations

import math


def round_to(value: float, half_width: float) -> str:
    """Return a value as text, with the digits that its half-width supports.

    The half-width keeps one significant digit, two if that digit would be 1, and the value is cut
    at the same place; an unknown or zero half-width leaves four significant digits.
    Source: Particle Data Group, "Review of Particle Physics", 2022, section 5.3 (the rule that an
    error of 0.10 to 0.35 keeps two digits), simplified.

    >>> round_to(1.23456, 0.04), round_to(1.23456, 0.012), round_to(1234.5, 30)
    ('1.23', '1.235', '1230')
    >>> round_to(1.23456, float("nan")), round_to(float("inf"), 1.0), round_to(float("nan"), 1.0)
    ('1.235', 'inf', 'unknown')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if not math.isfinite(half_width) or half_width <= 0:
        return f"{value:.4g}"
    place = math.floor(math.log10(half_width))
    if half_width / 10**place < 2:  # noqa: PLR2004  (a leading 1 keeps a second digit)
        place -= 1
    return f"{round(value, -place):.{max(0, -place)}f}"
