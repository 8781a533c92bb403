"""The phase of the planned load at each moment, by which figures are grouped.

============ =====================================================================================
shape        phases
============ =====================================================================================
replay       ``recorded``
steady       ``steady``
step         ``level 1``, ``level 2`` and so on, ``ramp`` between them
ramp         ``ramp``, then ``steady``
spike        ``base``, ``burst``
wave         ``crest`` above the mean, ``trough`` below
calendar     ``busy hours`` at the mean rate of a day or above, else ``quiet hours``
closed       ``ramp`` while users join, then ``steady``
sequence     ``part 1: `` and so on, before the phase of the part; ``after the plan``
sum          the phases of its parts joined by `` + ``, ``steady`` ones left out
============ =====================================================================================

Within a burst of ``traffic.perturbations`` the phase is ``burst``, whatever the shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.scenario.shapes import (
    DAYS_OF_A_WEEK,
    HOURS_OF_A_DAY,
    Calendar,
    ClosedLoop,
    Ramp,
    Replay,
    Sequence,
    Shape,
    Spike,
    Steady,
    Step,
    Sum,
    Wave,
)
from capplan.scenario.traffic import Bursts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from capplan.scenario.traffic import Traffic

    Floats = NDArray[np.float64]
    Labels = NDArray[np.object_]

HOUR_S = 3600.0
STEADY = "steady"


def load_phases(traffic: Traffic, time_s: Floats) -> Labels:
    """Return the phase of the load at each time.

    >>> import numpy as np
    >>> from capplan.scenario.traffic import Traffic
    >>> spike = Spike(base_rps=1.0, peak_rps=5.0, first_s=10.0, burst_s=5.0, every_s=50.0)
    >>> load_phases(Traffic(shape=spike), np.array([0.0, 10.0, 15.0])).tolist()
    ['base', 'burst', 'base']
    """
    import numpy as np

    labels = _phases(traffic.shape, np.asarray(time_s, dtype=np.float64))
    for burst in traffic.perturbations:
        if isinstance(burst, Bursts):
            labels[_in_burst(burst, time_s)] = "burst"
    return labels


def _phases(shape: Shape, time_s: Floats) -> Labels:  # noqa: PLR0911 (the one place for phases)
    match shape:
        case Replay():
            return _all("recorded", time_s)
        case Steady():
            return _all(STEADY, time_s)
        case Step():
            return _levels(shape, time_s)
        case Ramp():
            return _either(time_s < shape.seconds(), "ramp", STEADY)
        case ClosedLoop():
            return _either(time_s < shape.ramp_s, "ramp", STEADY)
        case Spike():
            return _either(_in_burst(shape, time_s), "burst", "base")
        case Wave():
            return _either(time_s % shape.period_s < shape.period_s / 2, "crest", "trough")
        case Calendar():
            return _either(_busy(shape, time_s), "busy hours", "quiet hours")
        case Sequence():
            return _parts(shape, time_s)
        case Sum():
            return _joined(shape, time_s)


def _all(label: str, time_s: Floats) -> Labels:
    import numpy as np

    return np.full(len(time_s), label, dtype=object)


def _either(where: NDArray[np.bool_], yes: str, no: str) -> Labels:
    import numpy as np

    return np.where(where, yes, no).astype(object)


def _in_burst(burst: Spike | Bursts, time_s: Floats) -> NDArray[np.bool_]:
    import numpy as np

    since = np.mod(time_s - burst.first_s, burst.every_s)
    return (time_s >= burst.first_s) & (since < burst.burst_s)


def _levels(shape: Step, time_s: Floats) -> Labels:
    import numpy as np

    level, since = np.divmod(time_s, shape.hold_s + shape.ramp_s)
    names = [f"level {int(min(n, shape.steps - 1)) + 1}" for n in level]
    ramp = (since >= shape.hold_s) & (level < shape.steps - 1)
    return np.where(ramp, "ramp", names).astype(object)


def _busy(shape: Calendar, time_s: Floats) -> NDArray[np.bool_]:
    """Return whether the rate is at least the mean over a day of factor 1."""
    import numpy as np

    since_midnight = time_s / HOUR_S + shape.start_hour
    first = np.floor(since_midnight)
    part = since_midnight - first
    rate = hourly_factor(shape, first) * (1 - part) + hourly_factor(shape, first + 1) * part
    return rate >= 1.0


def hourly_factor(shape: Calendar, hour: Floats) -> Floats:
    """Return the factor on the mean rate at full hours, counted from the first midnight."""
    import numpy as np

    day, of_day = np.divmod(hour.astype(np.int64), HOURS_OF_A_DAY)
    factor = np.asarray(shape.weekdays)[(shape.start_weekday + day) % DAYS_OF_A_WEEK]
    factor = np.where(np.isin(day, shape.holidays), shape.holiday_factor, factor)
    pattern = np.asarray(shape.hours) / np.mean(shape.hours)
    return np.asarray(factor * pattern[of_day])


def _parts(shape: Sequence, time_s: Floats) -> Labels:
    labels, start_s = _all("after the plan", time_s), 0.0
    for number, part in enumerate(shape.parts, 1):
        inside = (time_s >= start_s) & (time_s < start_s + part.duration_s)
        phases = _phases(part.shape, time_s[inside] - start_s)
        labels[inside] = [f"part {number}: {phase}" for phase in phases]
        start_s += part.duration_s
    return labels


def _joined(shape: Sum, time_s: Floats) -> Labels:
    import numpy as np

    labels = [_phases(part, time_s) for part in shape.parts]
    joined = [
        " + ".join(p for p in phases if p != STEADY) or STEADY
        for phases in zip(*labels, strict=True)
    ]
    return np.array(joined, dtype=object)
