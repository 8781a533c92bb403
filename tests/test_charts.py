"""Every chart compiles and renders, says which column is missing, and refuses too many rows."""

import json
from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd
import pytest

from capplan import charts
from capplan.charts import theme
from capplan.charts.batching import STATES
from capplan.charts.parts import MOST_ROWS, colour, ordered
from capplan.schema import Column, DataError

rng = np.random.default_rng(3)
N = 400
CLASSES = ["chat", "assistant", "batch"]
TRACE = pd.DataFrame(
    {
        "arrival_s": np.sort(rng.uniform(0, 1800, N)),
        "prompt_tokens": rng.lognormal(6.5, 1, N).astype(int) + 1,
        "output_tokens": rng.lognormal(4.8, 0.8, N).astype(int) + 1,
        "request_class": rng.choice(CLASSES, N),
        "tenant": rng.choice(["web-shop", "engineering", "back-office"], N),
    }
)
REQUESTS = pd.DataFrame(
    {
        "intended_start_s": TRACE["arrival_s"],
        "finish_s": TRACE["arrival_s"] + rng.exponential(8, N),
        "request_class": TRACE["request_class"],
        "outcome": rng.choice(["succeeded", "rejected", "timed_out"], N, p=[0.8, 0.1, 0.1]),
    }
)
TIMELINE = pd.DataFrame(
    {
        "time_s": np.arange(200.0),
        "layer": ["service_queue", "scheduler_queue"] * 100,
        "replica": ["", "llm-0"] * 100,
        "metric": "length",
        "value": rng.integers(0, 9, 200),
    }
)
REPLICAS = pd.DataFrame(
    {
        "time_s": np.tile(np.arange(50.0), 4),
        "layer": "service_queue",
        "replica": "llm",
        "metric": np.repeat(
            ["replicas", "replicas_starting", "replicas_draining", "replicas_desired"], 50
        ),
        "value": np.repeat([1.0, 1, 4, 0, 1, 4, 0, 0, 3, 0, 0, 1, 1, 5, 1, 1], 50)[::4],
    }
)
LOADS = [2.0, 4.0, 6.0, 8.0]
DISPERSION = pd.DataFrame(
    {
        "window_s": [1.0, 10.0, 60.0] * 3,
        "index_of_dispersion": [1.2, 2.0, 5.0, 1.0, 1.1, 1.3, 3.0, 9.0, 40.0],
        "request_class": np.repeat(CLASSES, 3),
    }
)
BUDGET = pd.DataFrame(
    {
        "request_class": np.repeat(["chat", "batch"], 4),
        "layer": ["network", "service_queue", "prefill", "decode"] * 2,
        "part_s": [0.02, 0.5, 0.4, 8.0, 0.02, 30.0, 1.0, 2.0],
        "deadline_s": np.repeat([10.0, 60.0], 4),
    }
)
WAITS = pd.DataFrame(
    {
        "request_class": np.repeat(["chat", "batch"], 3),
        "layer": ["gateway_queue", "service_queue", "scheduler_queue"] * 2,
        "share_s": [0.6, 0.6, 0.6, 30, 30, 30],
        "wait_s": [0.1, 0.9, np.nan, 2, 0, 31],
        "over": [False, True, False, False, False, True],
    }
)
READINGS = pd.DataFrame(
    {
        "request_class": np.repeat(["chat", "batch"], 2),
        "reading": ["Little's law", "simulated"] * 2,
        "in_flight": [20.0, 22.0, 3.0, 4.0],
    }
)
FLOWS = pd.DataFrame(
    {
        "load_rps": LOADS * 2,
        "figure": ["throughput"] * 4 + ["goodput"] * 4,
        "flow_rps": [2, 4, 5.5, 6, 2, 3.9, 4, 1.5],
        "low": [1.9, 3.9, 5.4, 5.9, 1.9, 3.8, 3.5, 1],
        "high": [2.1, 4.1, 5.6, 6.1, 2.1, 4.0, 4.5, 2],
    }
)
LATENCIES = pd.DataFrame(
    {
        "load_rps": LOADS * 2,
        "request_class": ["chat"] * 4 + ["assistant"] * 4,
        "latency_s": [0.4, 0.6, 2.5, np.inf, 0.4, 0.7, 3.0, 9.0],
        "low": [0.3, 0.5, 2.0, np.nan, 0.3, 0.6, 2.0, 8.0],
        "high": [0.5, 0.7, 3.0, np.nan, 0.5, 0.8, 4.0, 10.0],
    }
)
ANSWERS = pd.DataFrame(
    {
        "latency_s": np.append(rng.exponential(1, N - 20), np.full(20, np.inf)),
        "length_bucket": rng.choice(["≤ 256", "≤ 1024"], N),
    }
)
ENDS = pd.DataFrame(
    {
        "load_rps": np.repeat(LOADS, 2),
        "outcome": ["succeeded", "timed_out"] * 4,
        "share_fraction": [1, 0, 0.98, 0.02, 0.8, 0.2, 0.3, 0.7],
    }
)
GRID = pd.DataFrame(
    {
        "across": np.repeat([16, 64, 128], 3),
        "down": [10, 50, 200] * 3,
        "goodput_rps": [3.0, 3.1, 2.0, 4.0, 4.2, 1.0, 4.1, 3.0, 0.2],
        "throughput_rps": [3.0, 3.1, 3.2, 4.0, 4.2, 4.4, 4.4, 4.6, 4.8],
        "tail_of_promise": [0.2, 0.3, 0.5, 0.3, 0.5, 2.5, 0.6, 3.0, np.inf],
        "state": [STATES[0]] * 4 + [STATES[1]] + [STATES[2]] * 3 + [STATES[3]],
    }
)
BUCKETS = pd.DataFrame(
    {
        "across": [16, 64] * 4,
        "figure": ["goodput (requests/s)"] * 4 + ["TTFT P99 (s)"] * 4,
        "value": [3.0, 3.1, 1.0, 1.2, 0.5, 0.9, 3.0, np.inf],
        "length_bucket": ["short", "short", "long", "long"] * 2,
    }
)
SLOWDOWNS = pd.DataFrame(
    {
        "across": [16, 64] * 2,
        "slowdown": [1.2, 1.4, 1.9, 3.0],
        "mix": ["short alone"] * 2 + ["with long requests"] * 2,
        "low": [1.1, 1.3, 1.7, 2.5],
        "high": [1.3, 1.5, 2.1, 3.5],
    }
)
SIZES = pd.DataFrame(
    {
        "replicas": [2, 3, 4, 5] * 2,
        "lost": [0] * 4 + [1] * 4,
        "goodput_fraction": [0.9, 0.99, 1, 1, 0.5, 0.9, 0.99, 1],
        "low": [0.89, 0.985, 1, 1, 0.4, 0.88, 0.98, 1],
        "high": [0.91, 0.995, 1, 1, 0.6, 0.92, 1, 1],
    }
)
SEGMENTS = pd.DataFrame(
    {
        "request_class": np.repeat(["chat", "batch"], 3),
        "layer": ["network", "prefill", "decode"] * 2,
        "mean_s": [0.02, 0.1, 3.0, 0.02, 0.4, 0.5],
    }
)

FITS = pd.DataFrame(
    {
        "quantity": np.repeat(["gap (s)", "prompt (tokens)"], 6),
        "source": np.tile(np.repeat(["data", "law"], 3), 2),
        "value": [0.1, 0.2, 0.9, 0.1, 0.3, 1.0, 10, 90, 700, 12, 90, 600],
        "share_fraction": np.tile([0.1, 0.5, 0.9], 4),
    }
)
ABOVE = pd.DataFrame(
    {
        "in_flight": [0, 1, 2, 0, 1, 2],
        "share_of_time_fraction": [0.9, 0.4, 0.0, 0.5, 0.01, 0.0],
        "request_class": np.repeat(["chat", "all"], 3),
    }
)
MOMENTS = pd.DataFrame(
    {
        "request_id": [f"r{i}" for i in range(60)],
        "outcome": (["succeeded"] * 5 + ["timed_out"]) * 10,
        "marked": [False, False, False, False, False, True] * 10,
        "entry_s": np.arange(60.0),
        "queued_s": np.arange(60.0) + 0.1,
        "served_s": np.where(np.arange(60) % 6 == 5, np.nan, np.arange(60.0) + 1),
        "prompt_tokens": rng.lognormal(6, 1, 60),
        "wait_s": rng.exponential(0.5, 60),
        "work_s": rng.exponential(3, 60),
    }
)

ERRORS = pd.DataFrame(
    {
        "run": np.repeat(["codegen", "RTX 4090"], 4),
        "step_times": ["roofline", "roofline", "silicon", "silicon"] * 2,
        "metric": ["TTFT", "TPOT"] * 4,
        "figure": "p50",
        "error_fraction": [-0.3, 0.02, 7.5, -0.9, 0.0, np.nan, 0.1, -0.05],
    }
)
SERIES = pd.DataFrame(
    {
        "time_s": [0.0, 1.0] * 4,
        "series": np.repeat(["running", "waiting"], 4),
        "reading": np.tile(np.repeat(["measured", "predicted"], 2), 2),
        "value": [1.0, 5, 2, 4, 0, 9, 0, 8],
    }
)

SPANS = pd.DataFrame(
    {"rule": ["slow@llm", "full@llm", "full@llm"], "start_s": [0.0, 20.0, 60.0],
     "end_s": [0.0, 45.0, 70.0]}
)  # fmt: skip

SURGE = {"surge_s": (20.0, 30.0)}
IN_OVERLOAD = pd.DataFrame(
    {
        "time_s": np.tile(np.arange(0.0, 60, 5), 2),
        "figure": np.repeat(["attempts", "goodput"], 12),
        "flow_rps": np.tile([4.0, 4, 4, 4, 40, 40, 9, 5, 4, 4, 4, 4], 2),
    }
)
IN_QUEUE = pd.DataFrame({"time_s": np.arange(60.0), "value": np.repeat([0.0, 9, 60, 30, 2, 0], 10)})

PROMISES = pd.DataFrame(
    {
        "time_s": np.tile([150.0, 210.0, 270.0], 2),
        "request_class": np.repeat(["chat", "batch"], 3),
        "promise": ["TTFT", "TPOT", "TTFT"] * 2,
        "of_allowed": [0.2, 4.0, 1.1, 0.0, 0.5, 0.0],
        "requests": 300,
        "outcome": ["pass", "fail", "pass", "pass", "pass", "pass"],
    }
)

EACH = {
    "promises_over_time": (PROMISES, {}),
    "breakers_over_time": (SPANS, {"end_s": 120.0}),
    "degraded_over_time": (
        REQUESTS[["intended_start_s", "request_class", "outcome"]].assign(degraded=True),
        {},
    ),
    "rate_over_time": (TRACE[["arrival_s", "request_class"]], {}),
    "dispersion_by_window": (DISPERSION, {}),
    "length_distributions": (TRACE[["prompt_tokens", "output_tokens", "request_class"]], {}),
    "lengths_together": (TRACE[["prompt_tokens", "output_tokens"]], {}),
    "requests_by_tenant": (TRACE[["tenant", "request_class"]], {}),
    "budget_by_layer": (BUDGET, {}),
    "in_flight_readings": (READINGS, {}),
    "waits_against_shares": (WAITS, {}),
    "flows_by_load": (FLOWS, {"marked": 5.0}),
    "latency_by_load": (LATENCIES, {"latency": "TTFT, P99", "promises": {"chat": 2.0}}),
    "latency_distribution": (ANSWERS, {"latency": "TTFT", "promise_s": 2.0}),
    "outcomes_by_load": (ENDS, {}),
    "outcomes_over_time": (REQUESTS[["intended_start_s", "outcome"]], {}),
    "waiting_over_time": (TIMELINE, {}),
    "replicas_over_time": (REPLICAS, {}),
    "in_flight_over_time": (REQUESTS.drop(columns="outcome"), {"mean": 2.0}),
    "flows_in_overload": (IN_OVERLOAD, {"reference": IN_OVERLOAD, **SURGE}),
    "waiting_in_overload": (
        IN_QUEUE,
        {"reference": IN_QUEUE, "queue": "scheduler queue", **SURGE},
    ),
    "goodput_by_point": (
        GRID,
        {"across": "max batch", "down": "delay (ms)", "reference": (128, 50), "chosen": (64, 50)},
    ),
    "throughput_against_tail": (GRID, {"across": "max batch", "down": "delay (ms)"}),
    "figures_by_bucket": (BUCKETS, {}),
    "slowdown_by_batch": (SLOWDOWNS, {"across": "max batch"}),
    "goodput_by_replicas": (
        SIZES,
        {"promise_fraction": 0.99, "rules": {"Erlang C: 3": 3, "peak × 1.2: 4": 4}, "chosen": 5},
    ),
    "time_by_layer": (SEGMENTS, {}),
    "fits_beside_data": (FITS, {}),
    "time_above": (ABOVE, {}),
    "same_requests": (MOMENTS, {}),
    "errors_by_run": (
        ERRORS,
        {"noise": {("TTFT", "p50"): 0.02}, "published": {("TPOT", "p50"): 0.071}},
    ),
    "measured_beside_predicted": (SERIES, {}),
}

AGGREGATING = {
    "rate_over_time",
    "length_distributions",
    "lengths_together",
    "requests_by_tenant",
    "outcomes_over_time",
    "degraded_over_time",
    "waiting_over_time",
    "replicas_over_time",
    "in_flight_over_time",
    "latency_distribution",
}

each_chart = pytest.mark.parametrize("name", sorted(EACH))


@pytest.fixture(autouse=True)
def _themed():
    with alt.theme.enable("capplan"):
        yield


def drawn(name, frame=None):
    example, options = EACH[name]
    return getattr(charts, name)(example if frame is None else frame, **options)


def test_every_public_chart_has_an_example():
    assert set(EACH) == set(charts.__all__) - {"use_theme"}


@each_chart
def test_a_chart_compiles_with_the_theme_and_titled_axes(name):
    spec = drawn(name).to_dict()
    assert spec["config"]["range"]["category"] == list(theme.CATEGORIES)
    assert '"title":' in json.dumps(spec)
    assert "undefined" not in json.dumps(spec).lower()


@each_chart
def test_a_chart_renders_to_svg_with_marks_and_without_warning(name):
    import vl_convert

    svg = vl_convert.vegalite_to_svg(drawn(name).to_dict(), vl_version="6.4")
    assert svg.startswith("<svg")
    assert "role-mark" in svg
    assert "NaN" not in svg


@each_chart
def test_a_missing_column_is_named(name):
    example, _ = EACH[name]
    for column in example.columns:
        with pytest.raises(DataError, match=f"frame of {name}: {column}: a required column"):
            drawn(name, example.drop(columns=column))


@each_chart
def test_a_chart_of_nothing_is_an_error(name):
    example, _ = EACH[name]
    with pytest.raises(DataError, match="at least one row"):
        drawn(name, example.head(0))


@each_chart
def test_what_is_drawn_is_aggregated_to_few_rows(name):
    example, _ = EACH[name]
    many = pd.concat([example] * (MOST_ROWS // len(example) + 1), ignore_index=True)
    if name in AGGREGATING:
        spec = drawn(name, many).to_dict()
        assert max(map(len, spec["datasets"].values())) < len(many)
    else:
        with pytest.raises(DataError, match="aggregate before drawing"):
            drawn(name, many)


NAMES = ("request_class", "tenant", "length_bucket", "mix", "reading", "step_times", "run",
         "figure", "quantity", "source", "series", "promise", "rule", "lost")  # fmt: skip
"""Columns that hold a user's names, or names that could be numbers."""


@each_chart
def test_names_that_are_numbers_are_coloured_like_texts(name):
    """What a scale's domain does not hold has no colour, and no mark is seen."""
    example, options = EACH[name]
    frames = {k: numbered(v) for k, v in options.items() if isinstance(v, pd.DataFrame)}
    spec = getattr(charts, name)(numbered(example), **options | frames).to_dict()
    for marks, rows in coloured(spec, spec["datasets"]):
        for channel in ("color", "strokeDash", "shape"):
            found = marks.get(channel, {})
            domain = found.get("scale", {}).get("domain")
            if domain and found.get("type") == "nominal":
                shown = {row[found["field"]] for row in rows if row.get(found["field"]) is not None}
                assert shown <= set(domain)


def numbered(frame):
    named = [column for column in NAMES if column in frame]
    return frame.assign(**{n: pd.factorize(frame[n])[0] for n in named})


def coloured(spec, datasets, rows=()):
    """Yield the encodings of a chart's parts, each with the rows that it draws."""
    rows = datasets[spec["data"]["name"]] if "name" in spec.get("data", {}) else rows
    if "encoding" in spec:
        yield spec["encoding"], rows
    for part in (*spec.get("layer", ()), *spec.get("vconcat", ()), *spec.get("concat", ())):
        yield from coloured(part, datasets, rows)
    if isinstance(spec.get("spec"), dict):
        yield from coloured(spec["spec"], datasets, rows)


def test_only_texts_have_colours():
    with pytest.raises(ValueError, match="kind str"):
        colour(Column("lost", "", "replicas lost", "int"), {"1": 0})
    with pytest.raises(DataError, match="outcome: one of succeeded"):
        charts.same_requests(MOMENTS.replace("timed_out", "late"))


def test_shares_beyond_the_whole_are_refused():
    with pytest.raises(DataError, match="add up to at most 1"):
        charts.outcomes_by_load(pd.concat([ENDS, ENDS]))


def test_a_replica_that_has_left_has_nobody_waiting():
    gone = TIMELINE.assign(layer="scheduler_queue", replica="llm-0", value=2.0)
    gone.loc[gone.index >= 100, "value"] = np.nan
    there = TIMELINE.assign(layer="scheduler_queue", replica="llm-1", value=3.0)
    spec = charts.waiting_over_time(pd.concat([gone, there])).to_dict()
    told = max(spec["datasets"].values(), key=len)
    assert (told[0]["value"], told[-1]["value"]) == (5.0, 3.0)


def test_queues_of_several_pools_are_lines_of_their_own():
    one = TIMELINE.assign(layer="scheduler_queue", replica="llm-0", value=2.0)
    two = TIMELINE.assign(layer="scheduler_queue", replica="labelling-0", value=3.0)
    gate = TIMELINE.assign(layer="gateway", replica="", value=1.0)
    spec = charts.waiting_over_time(pd.concat([one, two, gate])).to_dict()
    shown = max(spec["datasets"].values(), key=len)
    levels = {row["queue"]: row["value"] for row in shown}
    assert levels == {
        "scheduler queue of llm": 2.0, "scheduler queue of labelling": 3.0, "gateway": 1.0,
    }  # fmt: skip


def test_an_infinite_tail_is_drawn_at_the_edge_and_never_as_a_number():
    spec = drawn("latency_by_load").to_dict()
    assert '"y": {"value": 4}' in json.dumps(spec)
    finite = drawn("latency_by_load", LATENCIES.replace(np.inf, 5.0)).to_dict()
    assert '"y": {"value": 4}' not in json.dumps(finite)


def test_a_promise_is_a_labelled_rule():
    text = json.dumps(drawn("latency_by_load").to_dict(), ensure_ascii=False)
    assert "chat: promised 2 s" in text


def rate_rows(arrival_s):
    trace = pd.DataFrame({"arrival_s": arrival_s, "request_class": "chat"})
    spec = charts.rate_over_time(trace, window_s=10.0).to_dict()
    return [(row["time_s"], row["rate_rps"]) for row in max(spec["datasets"].values(), key=len)]


def test_rates_of_whole_windows_add_up_to_the_requests_of_the_trace():
    rows = rate_rows(np.arange(0.0, 100.0, 0.5))
    assert sum(rate for _, rate in rows[:-1]) * 10 == pytest.approx(200, rel=0.02)
    assert rows[-1] == pytest.approx((99.5, 2.0), rel=0.06)


def test_a_last_window_counts_for_the_time_it_was_watched_or_is_left_out():
    last, end = rate_rows(np.arange(0.0, 28.0, 0.5))[-2:]
    assert last == pytest.approx((20.0, 16 / 7.5))
    assert end == pytest.approx((27.5, 16 / 7.5))
    assert rate_rows(np.arange(0.0, 23.0, 0.5)) == [(0.0, 2.0), (10.0, 2.0), (20.0, 2.0)]


def test_many_tenants_share_the_last_bar():
    tenants = [f"t{i}" for i in range(25) for _ in range(i + 1)]
    trace = pd.DataFrame({"tenant": tenants, "request_class": "chat"})
    spec = charts.requests_by_tenant(trace).to_dict()
    counts = {row["tenant"]: row["requests"] for row in next(iter(spec["datasets"].values()))}
    assert len(counts) == 21
    assert counts["5 others"] == 1 + 2 + 3 + 4 + 5


def test_requests_in_flight_start_and_end_at_none():
    spec = drawn("in_flight_over_time").to_dict()
    rows = max(spec["datasets"].values(), key=len)
    assert {row["in_flight"] for row in rows if row["time_s"] in (0.0, rows[-1]["time_s"])} == {0}


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_neighbouring_layers_and_outcomes_stay_apart_in_grey_print():
    """A contrast of 1.2 is what an eye tells apart side by side; white edges do the rest."""
    for colours in (theme.OUTCOME_COLOURS, theme.LAYER_COLOURS):
        for a, b in pairwise(colours.values()):
            high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
            assert (high + 0.05) / (low + 0.05) > 1.2


def test_dashes_and_shapes_tell_as_many_apart_as_there_are_colours():
    assert len({tuple(d) for d in theme.DASHES}) == len(theme.CATEGORIES)
    assert len(set(theme.SHAPES)) == len(theme.SHAPES)


def test_a_class_keeps_its_colour_in_a_chart_that_lacks_another():
    classes = pd.Series(pd.Categorical(["batch", "chat"], categories=CLASSES))
    assert ordered(classes) == {"chat": 0, "batch": 2}
    assert ordered(pd.Series(["batch", "chat", "batch"])) == {"batch": 0, "chat": 1}


def test_brushing_one_series_marks_the_same_requests_in_the_others():
    """Every panel has a brush of its own and its colours heed all three."""
    spec = drawn("same_requests").to_dict()
    assert [p["name"] for p in spec["params"]] == ["entry", "queues", "accelerator"]
    for panel in spec["vconcat"]:
        test = panel["encoding"]["color"]["condition"]["test"]
        assert json.dumps(test).count('"param"') == len(spec["vconcat"])
    assert len(spec["datasets"]) == 1, "one table, so that one request is one row in each"


def test_a_line_of_answers_ends_at_the_share_that_was_answered():
    spec = drawn("latency_distribution").to_dict()
    rows = pd.DataFrame(max(spec["datasets"].values(), key=len))
    answered = np.isfinite(ANSWERS["latency_s"]).groupby(ANSWERS["length_bucket"]).mean()
    ends = rows.groupby("length_bucket")["share_fraction"].max()
    assert (ends <= answered + 1e-9).all()
    assert (ends > answered - 0.02).all()


@pytest.mark.parametrize("name", ["outcomes_by_load", "budget_by_layer", "waits_against_shares"])
def test_our_own_names_are_shown_in_words(name):
    text = json.dumps(drawn(name).to_dict())
    assert "replace(datum.label, /_/g, ' ')" in text


def test_a_band_ends_where_its_interval_has_no_bound():
    frame = LATENCIES.assign(high=LATENCIES["high"].where(LATENCIES.index > 0, np.inf))
    chart = drawn("latency_by_load", frame).to_dict()
    data = chart["datasets"][chart["layer"][0]["data"]["name"]]
    assert data
    assert all(row["high"] is not None and row["latency_s"] is not None for row in data)


def test_an_error_beyond_the_axis_is_written_as_a_number_and_an_unknown_one_is_not_drawn():
    import vl_convert

    spec = drawn("errors_by_run").to_dict()
    told = [row for rows in spec["datasets"].values() for row in rows]
    assert [row["label"] for row in told if "label" in row] == ["+750 %", "-90 %"]
    svg = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    assert all(f">{text}</text>" in svg for text in ("+750 %", "-90 %"))
    assert sum("error_fraction" in row for row in told) == 7


def test_noise_is_a_band_and_a_published_error_a_rule_in_its_own_panel_alone():
    panels = drawn("errors_by_run").to_dict()["vconcat"][0]["hconcat"]
    told = {panel["title"]["text"]: panel["title"]["subtitle"] for panel in panels}
    assert told == {"TTFT, p50": "±2 % noise", "TPOT, p50": "±7.1 % published"}
    marks = [[layer["mark"]["type"] for layer in panel["layer"]] for panel in panels]
    assert [kinds.count("rect") for kinds in marks] == [1, 0]
    assert [kinds.count("rule") for kinds in marks] == [1, 2]
