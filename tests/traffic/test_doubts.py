"""Arrival times that a file cannot mean: durations, other units, a clock that was set, silence."""

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import capplan as cp
from capplan.schema import DataError

RNG = np.random.default_rng(5)
TIMES = np.cumsum(RNG.exponential(2.0, 200))
TOKENS = RNG.integers(20, 4000, 200)
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


def write(path, times, header="arrival_s", *, tokens=TOKENS, sep=",", more=()):
    names = [header, "prompt_tokens", "output_tokens", *[name for name, _ in more]]
    rows = zip(times, tokens, TOKENS // 10 + 1, *[values for _, values in more], strict=True)
    lines = [sep.join(names), *(sep.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def rate(file, **options):
    arrival = cp.read_trace(file, **options).frame["arrival_s"]
    return (len(arrival) - 1) / np.ptp(arrival)


RATE = (len(TIMES) - 1) / np.ptp(TIMES)


@pytest.mark.parametrize("name", ["request_time", "time"])
def test_durations_in_a_column_named_like_a_time_are_no_arrivals(tmp_path, name):
    file = write(tmp_path / "t.csv", [f"{0.2 + 0.02 * n:.3f}" for n in TOKENS], name)
    with pytest.raises(DataError, match=r"arrival_s: .*not durations"):
        cp.read_trace(file)


def test_calls_logged_as_they_ended_and_a_named_column_are_arrivals(tmp_path):
    ended = np.argsort(TIMES + RNG.exponential(20.0, 200))
    assert np.mean(np.diff(TIMES[ended]) < 0) > 0.25
    assert rate(write(tmp_path / "t.csv", TIMES[ended], "time")) == pytest.approx(RATE)
    mixed = write(tmp_path / "t.csv", RNG.permutation(TIMES), "time")
    assert rate(mixed, mapping={"arrival_s": "time"}) == pytest.approx(RATE)


def test_a_log_with_a_duration_and_a_time_names_both(tmp_path):
    stamps = [(START + timedelta(seconds=t)).isoformat() for t in TIMES]
    file = write(tmp_path / "t.csv", stamps, "time_iso8601", more=[("request_time", TOKENS / 50)])
    with pytest.raises(DataError, match="time_iso8601, request_time"):
        cp.read_trace(file)


def test_milliseconds_under_a_name_of_seconds_are_refused(tmp_path):
    file = write(tmp_path / "t.csv", (TIMES * 1000).astype(int))
    with pytest.raises(DataError, match=r"arrival_s: .*ms \(0\.5"):
        cp.read_trace(file)
    assert rate(file, units={"arrival_s": "ms"}) == pytest.approx(RATE, rel=0.01)


def test_deadlines_of_hours_need_a_unit(tmp_path):
    file = write(tmp_path / "t.csv", TIMES, more=[("deadline_s", [30_000] * 200)])
    with pytest.raises(DataError, match=r"deadline_s: .*got '30,000'"):
        cp.read_trace(file)
    for unit, seconds in (("ms", 30.0), ("s", 30_000.0)):
        frame = cp.read_trace(file, units={"deadline_s": unit}).frame
        assert (frame["deadline_s"] == seconds).all()


@pytest.mark.parametrize(
    ("day", "zone", "named"),
    [
        ("2026-10-25T00:30", "Europe/Berlin", True),
        ("2026-03-29T00:30", "Europe/Berlin", True),
        ("2026-11-01T05:30", "America/New_York", True),
        ("2026-06-15T00:30", "Europe/Berlin", False),
    ],
)
def test_local_times_over_a_change_of_clocks_name_it(tmp_path, day, zone, named):
    first = datetime.fromisoformat(f"{day}+00:00")
    local = [(first + timedelta(seconds=30 * i)).astimezone(ZoneInfo(zone)) for i in range(200)]
    stamps = sorted(t.strftime("%Y-%m-%d %H:%M:%S") for t in local)  # sorting hides the step back
    notes = cp.read_trace(write(tmp_path / "t.csv", stamps, "timestamp")).notes
    assert any(f"clocks may change on {local[0]:%Y-%m-%d}" in note for note in notes) == named


def test_a_long_silence_is_named(tmp_path):
    times = np.where(np.arange(200) < 100, TIMES, TIMES + 30 * 86400)
    notes = cp.read_trace(write(tmp_path / "t.csv", times)).notes
    assert any("Nothing arrives for 720 h" in note for note in notes)
    assert not cp.read_trace(write(tmp_path / "t.csv", TIMES)).notes


@pytest.mark.parametrize("mark", ["\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}", "’", "'", " "])
def test_blanks_and_apostrophes_group_digits(tmp_path, mark):
    tokens = [f"{n:,}".replace(",", mark) for n in TOKENS]
    times = [f"{10_000 + t:,.3f}".replace(",", mark).replace(".", ",") for t in TIMES]
    trace = cp.read_trace(write(tmp_path / "t.csv", times, tokens=tokens, sep=";"))
    assert trace.frame["prompt_tokens"].tolist() == TOKENS.tolist()
    assert np.ptp(trace.frame["arrival_s"]) == pytest.approx(np.ptp(TIMES), abs=0.01)
    assert trace.ledger.changed["thousands_separator"] == (TOKENS >= 1000).sum()


@pytest.mark.parametrize("stamp", ["%m/%d/%Y %H:%M:%S", "%Y-%m-%d %I:%M:%S %p", "%H:%M:%S"])
def test_a_form_of_times_that_is_not_read_is_shown(tmp_path, stamp):
    stamps = [(START + timedelta(seconds=t)).strftime(stamp) for t in TIMES]
    with pytest.raises(DataError, match=rf"ISO 8601.*arrival_s such as '{stamps[0]}'"):
        cp.read_trace(write(tmp_path / "t.csv", stamps, "timestamp"))


@pytest.mark.parametrize("unset", ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", ""])
def test_a_time_that_was_never_set_is_no_arrival(tmp_path, unset):
    stamps = [(START + timedelta(seconds=t)).isoformat() for t in TIMES]
    trace = cp.read_trace(write(tmp_path / "t.csv", [*stamps[:-1], unset], "timestamp"))
    assert len(trace) == len(TIMES) - 1
    assert np.ptp(trace.frame["arrival_s"]) == pytest.approx(np.ptp(TIMES[:-1]), abs=1e-3)


LITELLM = {"startTime": "t", "prompt_tokens": "p", "completion_tokens": "o", "endTime": "e"}
ENVOY = {"start_time": "t", "llm_input_token": "p", "llm_output_token": "o", "duration": "e"}
LANGFUSE = {"startTime": "t", "usageDetails": {"input": "p", "output": "o"}, "endTime": "e"}


@pytest.mark.parametrize("form", [LITELLM, ENVOY, LANGFUSE])
def test_logs_of_gateways_have_their_own_rate_and_lengths(tmp_path, form):
    def filled(part, values):
        nested = {name: isinstance(key, dict) for name, key in part.items()}
        return {n: filled(k, values) if nested[n] else values[k] for n, k in part.items()}

    rows = []
    for t, n in zip(TIMES, TOKENS.tolist(), strict=True):
        start, end = (START + timedelta(seconds=t + late) for late in (0.0, 0.01 * n))
        values = {"t": start.isoformat(), "e": end.isoformat(), "p": n, "o": n // 10 + 1}
        rows.append(json.dumps(filled(form, values)))
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    assert rate(file) == pytest.approx(RATE)
    assert cp.read_trace(file).frame["prompt_tokens"].tolist() == TOKENS.tolist()
