"""The shape of the load: the planned rate over time, or users that send when answered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from capplan.scenario.part import (
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Part,
    PositiveSeconds,
    Rate,
    Seconds,
)
from capplan.scenario.times import Time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Labels = NDArray[np.object_]

HOUR_S = 3600.0
HOURS_OF_A_DAY, DAYS_OF_A_WEEK = 24, 7
STEADY = "steady"


def _all(label: str, time_s: Floats) -> Labels:
    import numpy as np

    return np.full(len(time_s), label, dtype=object)


def _either(where: NDArray[np.bool_], yes: str, no: str | list[str]) -> Labels:
    import numpy as np

    return np.where(where, yes, no).astype(object)


class UserWave(Part):
    """Users who come and go over a period: ``users`` × (1 + amplitude × sin(2π t / period)).

    User number n, from 0, is there while that is more than n. Who leaves gets the answer under way;
    the next request waits for the return. Amplitude and period as those of the shape ``wave``.
    """

    amplitude_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    period_s: PositiveSeconds = 86_400.0

    def there_s(self, user: int, users: int, time_s: float) -> float:
        """Return when a user is there next, from a time on, s; that time if it is there then.

        >>> wave = UserWave(amplitude_fraction=1.0, period_s=40.0)
        >>> [round(wave.there_s(15, 10, t), 2) for t in (0, 5, 20)], wave.there_s(0, 10, 29)
        ([3.33, 5, 43.33], 29)
        """
        level = (user / users - 1) / self.amplitude_fraction
        if level < -1:
            return time_s
        rise_s = math.asin(min(level, 1.0)) * self.period_s / (2 * math.pi)
        since_s = (time_s - rise_s) % self.period_s
        there = since_s < self.period_s / 2 - 2 * rise_s
        return time_s if there else time_s + self.period_s - since_s


class ClosedLoop(Part):
    """Users that send, wait for the end of the answer, think, and send again.

    Their rate depends on the answers: a slow service gets fewer requests. A user has one class (by
    its ``share``) and one tenant. Users start evenly over ``ramp_s``. A refused, failed or timed
    out request ends the wait as an answer does.

    With ``session_requests`` a session ends after each request with probability
    1 / ``session_requests``; the next starts after ``between_sessions`` (None = ``think``).
    """

    kind: Literal["closed"] = "closed"
    users: Count
    think: Time
    ramp_s: Seconds = 0.0
    session_requests: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean requests of a session; None = one session per user."""
    between_sessions: Time | None = None
    wave: UserWave | None = None
    """None = all ``users`` are there from their start to the end."""

    @property
    def most_users(self) -> int:
        """Return the most users at once."""
        more = 0.0 if self.wave is None else self.wave.amplitude_fraction
        return math.ceil(self.users * (1 + more) - 1e-9)

    def there_s(self, user: int, time_s: float) -> float:
        """Return when a user is there next, from a time on, s."""
        return time_s if self.wave is None else self.wave.there_s(user, self.users, time_s)

    def _broken(self) -> Iterator[str]:
        if self.between_sessions is not None and self.session_requests is None:
            yield "between_sessions needs session_requests"

    @property
    def mean_think_s(self) -> float:
        """Return the mean time between an answer and the user's next request, s.

        >>> from capplan.scenario.times import FixedTime
        >>> pause = FixedTime(seconds=40.0)
        >>> users = ClosedLoop(
        ...     users=1, think=FixedTime(seconds=10.0), session_requests=3, between_sessions=pause
        ... )
        >>> users.mean_think_s
        20.0
        """
        if self.session_requests is None or self.between_sessions is None:
            return self.think.mean_s
        ends = 1 / self.session_requests
        return ends * self.between_sessions.mean_s + (1 - ends) * self.think.mean_s

    def phases(self, time_s: Floats) -> Labels:
        """Return ``ramp`` while users join, then ``steady``."""
        return _either(time_s < self.ramp_s, "ramp", STEADY)


class Replay(Part):
    """The base trace, slower or faster, thinned or superposed.

    Recorded times are multiplied by ``time_scale``: 0.5 is twice as fast. ``rate_scale`` < 1
    keeps each request with that probability, > 1 superposes shifted copies; both keep the joint
    distribution of lengths.
    """

    kind: Literal["replay"] = "replay"
    time_scale: Rate = 1.0
    rate_scale: Rate = 1.0

    def phases(self, time_s: Floats) -> Labels:
        """Return ``recorded``."""
        return _all("recorded", time_s)


class Steady(Part):
    """A constant rate; with ``per_replica``, per replica of the primary pool."""

    kind: Literal["steady"] = "steady"
    rate_rps: Rate
    per_replica: bool = False

    def phases(self, time_s: Floats) -> Labels:
        """Return ``steady``."""
        return _all(STEADY, time_s)


class Step(Part):
    """``steps`` levels of ``start_rps × factor^n``, each held ``hold_s``, with ramps of ``ramp_s``.

    No request arrives after the last level.
    """

    kind: Literal["step"] = "step"
    start_rps: Rate
    factor: Rate = 1.2
    steps: Count = 5
    hold_s: PositiveSeconds = 300.0
    ramp_s: Seconds = 0.0

    def phases(self, time_s: Floats) -> Labels:
        """Return ``level 1``, ``level 2`` and so on, ``ramp`` between them."""
        import numpy as np

        level, since = np.divmod(time_s, self.hold_s + self.ramp_s)
        names = [f"level {int(min(n, self.steps - 1)) + 1}" for n in level]
        return _either((since >= self.hold_s) & (level < self.steps - 1), "ramp", names)


class Ramp(Part):
    """From ``start_rps`` linearly to ``target_rps``, which holds to the end.

    State its length (``ramp_s``) or its slope (``ramp_rps_per_s``, requests/s per second).
    """

    kind: Literal["ramp"] = "ramp"
    start_rps: Rate
    target_rps: Rate
    ramp_s: PositiveSeconds | None = None
    ramp_rps_per_s: Rate | None = None

    def _broken(self) -> Iterator[str]:
        if (self.ramp_s is None) == (self.ramp_rps_per_s is None):
            yield "give one of ramp_s and ramp_rps_per_s"

    def seconds(self) -> float:
        """Return the length of the ramp, s.

        >>> Ramp(start_rps=2, target_rps=12, ramp_rps_per_s=0.5).seconds()
        20.0
        """
        by_slope = abs(self.target_rps - self.start_rps) / (self.ramp_rps_per_s or 1.0)
        return by_slope if self.ramp_s is None else self.ramp_s

    def rate_of_rise(self) -> float:
        """Return the ramp rate, negative for a falling load, requests/s per second.

        >>> Ramp(start_rps=2, target_rps=12, ramp_s=20).rate_of_rise()
        0.5
        """
        rise, seconds = self.target_rps - self.start_rps, self.seconds()
        return rise / seconds if seconds > 0 else 0.0

    def phases(self, time_s: Floats) -> Labels:
        """Return ``ramp``, then ``steady``."""
        return _either(time_s < self.seconds(), "ramp", STEADY)


class Repeated(Part):
    """Bursts ``burst_s`` long, every ``every_s``, the first at ``first_s``."""

    burst_s: PositiveSeconds = 30.0
    every_s: PositiveSeconds = 600.0
    first_s: Seconds = 60.0

    def _broken(self) -> Iterator[str]:
        if self.burst_s > self.every_s:
            yield "burst_s must not exceed every_s"

    def inside(self, time_s: Floats) -> NDArray[np.bool_]:
        """Return which times lie within a burst."""
        import numpy as np

        since = np.mod(time_s - self.first_s, self.every_s)
        return (time_s >= self.first_s) & (since < self.burst_s)


class Spike(Repeated):
    """A base rate with bursts to ``peak_rps``."""

    kind: Literal["spike"] = "spike"
    base_rps: Rate
    peak_rps: Rate

    def phases(self, time_s: Floats) -> Labels:
        """Return ``base``, ``burst``."""
        return _either(self.inside(time_s), "burst", "base")


class Wave(Part):
    """A sine about ``rate_rps``, which starts at the mean, rising."""

    kind: Literal["wave"] = "wave"
    rate_rps: Rate
    amplitude_fraction: Annotated[Fraction, Field(gt=0)] = 0.5
    period_s: PositiveSeconds = 600.0

    def phases(self, time_s: Floats) -> Labels:
        """Return ``crest`` above the mean, ``trough`` below."""
        return _either(time_s % self.period_s < self.period_s / 2, "crest", "trough")


class Calendar(Part):
    """Days and weeks: an hourly pattern, a factor per weekday, holidays.

    ``rate_rps`` is the mean rate of a day of factor 1. Rates stand at full hours with straight
    lines between. Weekdays count from Monday = 0; ``holidays`` are day numbers from the start
    (0 = the first day), and a holiday has ``holiday_factor`` instead of its weekday's.
    """

    kind: Literal["calendar"] = "calendar"
    rate_rps: Rate
    hours: Annotated[
        tuple[NonNegative, ...], Field(min_length=HOURS_OF_A_DAY, max_length=HOURS_OF_A_DAY)
    ] = (1.0,) * HOURS_OF_A_DAY
    weekdays: Annotated[
        tuple[NonNegative, ...], Field(min_length=DAYS_OF_A_WEEK, max_length=DAYS_OF_A_WEEK)
    ] = (1.0,) * DAYS_OF_A_WEEK
    holidays: tuple[CountOrZero, ...] = ()
    holiday_factor: NonNegative = 0.3
    start_weekday: Annotated[int, Field(ge=0, lt=DAYS_OF_A_WEEK)] = 0
    start_hour: Annotated[float, Field(ge=0, lt=HOURS_OF_A_DAY)] = 0.0

    def _broken(self) -> Iterator[str]:
        if sum(self.hours) <= 0 or sum(self.weekdays) <= 0:
            yield "hours and weekdays must each have a positive entry"

    def phases(self, time_s: Floats) -> Labels:
        """Return ``busy hours`` from the mean rate of a factor-1 day on, else ``quiet hours``."""
        import numpy as np

        hour = time_s / HOUR_S + self.start_hour
        part = hour - (first := np.floor(hour))
        rate = self.factor_at(first) * (1 - part) + self.factor_at(first + 1) * part
        return _either(rate >= 1.0, "busy hours", "quiet hours")

    def factor_at(self, hour: Floats) -> Floats:
        """Return the factor on the mean rate at full hours, counted from the first midnight."""
        import numpy as np

        day, of_day = np.divmod(hour.astype(np.int64), HOURS_OF_A_DAY)
        factor = np.asarray(self.weekdays)[(self.start_weekday + day) % DAYS_OF_A_WEEK]
        factor = np.where(np.isin(day, self.holidays), self.holiday_factor, factor)
        pattern = np.asarray(self.hours) / np.mean(self.hours)
        return np.asarray(factor * pattern[of_day])


class TimedShape(Part):
    """A part of a sequence: a shape and its length."""

    shape: PlannedShape
    duration_s: PositiveSeconds


class Sequence(Part):
    """Shapes one after the other."""

    kind: Literal["sequence"] = "sequence"
    parts: Annotated[tuple[TimedShape, ...], Field(min_length=1)]

    def phases(self, time_s: Floats) -> Labels:
        """Return ``part 1: `` and so on before the phase of the part; ``after the plan``."""
        labels, start_s = _all("after the plan", time_s), 0.0
        for number, part in enumerate(self.parts, 1):
            inside = (time_s >= start_s) & (time_s < start_s + part.duration_s)
            phases = part.shape.phases(time_s[inside] - start_s)
            labels[inside] = [f"part {number}: {phase}" for phase in phases]
            start_s += part.duration_s
        return labels


class Sum(Part):
    """Shapes whose rates add while all last."""

    kind: Literal["sum"] = "sum"
    parts: Annotated[tuple[PlannedShape, ...], Field(min_length=1)]

    def phases(self, time_s: Floats) -> Labels:
        """Return the phases of its parts joined by `` + ``, ``steady`` ones left out."""
        import numpy as np

        each = zip(*(part.phases(time_s) for part in self.parts), strict=True)
        joined = [" + ".join(p for p in phases if p != STEADY) or STEADY for phases in each]
        return np.array(joined, dtype=object)


PlannedShape = Annotated[
    Steady | Step | Ramp | Spike | Wave | Calendar | Sequence | Sum, Field(discriminator="kind")
]
Shape = Annotated[
    Replay | ClosedLoop | Steady | Step | Ramp | Spike | Wave | Calendar | Sequence | Sum,
    Field(discriminator="kind"),
]

TimedShape.model_rebuild()
Sequence.model_rebuild()
Sum.model_rebuild()


def occasion(name: str, *, base_rps: float, peak_rps: float, part_s: float = 900.0) -> PlannedShape:
    """Return the load shape of an occasion between a base and a peak rate.

    A promotion is a spike from base to peak; an iteration is a wave between both; a release is
    all four in turn (steady base, steps, spike, wave), each for ``part_s``.
    Raises ValueError for an unknown occasion or a peak that is not above the base.

    >>> occasion("promotion", base_rps=5, peak_rps=20).peak_rps
    20.0
    """
    if peak_rps <= base_rps:
        raise ValueError(f"peak_rps must be above base_rps, got {peak_rps} and {base_rps}")
    middle, swing = (peak_rps + base_rps) / 2, (peak_rps - base_rps) / (peak_rps + base_rps)
    spike = Spike(
        base_rps=base_rps, peak_rps=peak_rps, every_s=part_s / 2, first_s=part_s / 15,
        burst_s=min(30.0, part_s / 2),
    )  # fmt: skip
    wave = Wave(rate_rps=middle, amplitude_fraction=swing, period_s=part_s / 2)
    if name == "promotion":
        return spike
    if name == "iteration":
        return wave
    if name != "release":
        raise ValueError(f"occasion: one of promotion, iteration, release, got {name!r}")
    steps = Step(
        start_rps=base_rps, factor=(peak_rps / base_rps) ** 0.25, steps=5, hold_s=part_s / 5
    )
    shapes = (Steady(rate_rps=base_rps), steps, spike, wave)
    return Sequence(parts=tuple(TimedShape(shape=s, duration_s=part_s) for s in shapes))
