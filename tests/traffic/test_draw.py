import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capplan.bundled import data_path
from capplan.cli import main
from capplan.scenario.classes import FixedSize, LognormalSize
from capplan.scenario.files import load_scenario, with_values, write_scenario
from capplan.schema import TRACE, DataError, names
from capplan.traffic.draw import draw, recorded
from capplan.traffic.laws import Z95, sizes
from capplan.traffic.replay import occurrence
from capplan.traffic.sample import read_base
from capplan.traffic.trace import from_frame

STEADY = {"traffic.shape": {"kind": "steady", "rate_rps": 6.0}}


@pytest.fixture(scope="module")
def laws(chat):
    return with_values(chat, {**STEADY, "traffic.trace": None, "traffic.duration_s": 3000.0})


@pytest.fixture(scope="module")
def base():
    return read_base("sample")


def replay(scenario, **shape):
    return with_values(scenario, {"traffic.shape": {"kind": "replay", **shape}})


def plain(arrival_s=(0.0, 1.0, 2.0, 5.0), **columns):
    n = len(arrival_s)
    return from_frame(
        pd.DataFrame(
            {
                "arrival_s": arrival_s,
                "prompt_tokens": np.arange(1, n + 1) * 100,
                "output_tokens": np.arange(1, n + 1),
                **columns,
            }
        )
    )


def rows_of(frame):
    """Each request as what belongs together in it."""
    columns = ["request_class", "tenant", "prompt_tokens", "output_tokens", "streaming"]
    return frame[columns].astype(str).agg("|".join, axis=1)


def assert_share(hits, n, expected):
    """Check that the expected share lies in the 99.9 % interval of a count."""
    low, high = stats.binomtest(int(hits), int(n)).proportion_ci(0.999)
    assert low <= expected <= high


def assert_quantile(values, quantile, expected):
    """Check that the expected value lies in the 99.9 % interval of an empirical quantile."""
    n = len(values)
    half = 3.29 * np.sqrt(n * quantile * (1 - quantile))
    low, high = np.sort(values)[[int(n * quantile - half), int(n * quantile + half)]]
    assert low <= expected <= high


# The whole of a trace


def test_a_drawn_trace_has_every_column_filled(chat, laws):
    for scenario in (chat, laws, with_values(chat, STEADY)):
        frame = draw(scenario).frame
        assert list(frame.columns) == names(TRACE)
        may_miss = {"session", "size", "deadline_s", "observed_e2e_s", "user", "think_s"}
        assert not frame.drop(columns=list(may_miss)).isna().any().any()
        assert frame["request_id"].is_unique
        assert frame["arrival_s"].is_monotonic_increasing
        assert (frame["prompt_tokens"] > 0).all()
        assert (frame["output_tokens"] > 0).all()


@pytest.mark.parametrize("values", [{}, STEADY, {**STEADY, "traffic.trace": None}])
def test_the_same_seed_draws_the_same_trace_and_another_one_another(chat, values):
    scenario = with_values(chat, {**values, "traffic.duration_s": 300.0})
    first, again = draw(scenario, seed=4), draw(scenario, seed=4)
    pd.testing.assert_frame_equal(first.frame, again.frame)
    if values:
        other, replicated = draw(scenario, seed=5), draw(scenario, seed=4, replication=1)
        assert not first.frame["arrival_s"].equals(other.frame["arrival_s"])
        assert not first.frame["arrival_s"].equals(replicated.frame["arrival_s"])


@pytest.mark.parametrize("values", [{}, STEADY, {**STEADY, "traffic.trace": None}])
def test_scenarios_that_differ_only_in_pools_and_layers_share_one_trace(chat, values):
    scenario = with_values(chat, {**values, "traffic.duration_s": 300.0})
    other = with_values(
        scenario,
        {
            "replicas": 7,
            "pools.labelling.replicas": 3,
            "gateway.concurrency": 3,
            "faults": [{"kind": "crash", "at_s": 10.0}],
        },
    )
    pd.testing.assert_frame_equal(draw(scenario, seed=1).frame, draw(other, seed=1).frame)


def test_a_rate_per_replica_follows_the_primary_pool(chat):
    shape = {"kind": "steady", "rate_rps": 2.0, "per_replica": True}
    one = with_values(chat, {"traffic.shape": shape, "traffic.duration_s": 500.0, "replicas": 1})
    four = with_values(one, {"replicas": 4})
    assert abs(len(draw(one)) - 1000) < 3.29 * np.sqrt(1000)
    assert abs(len(draw(four)) - 4000) < 3.29 * np.sqrt(4000)


@pytest.mark.parametrize("values", [STEADY, {**STEADY, "traffic.trace": None}])
def test_fewer_requests_arrive_as_the_first_of_more(chat, values):
    few = draw(with_values(chat, {**values, "requests": 50}))
    more = draw(with_values(chat, {**values, "requests": 500}))
    assert (len(few), len(more)) == (50, 500)
    assert few.frame["arrival_s"].equals(more.frame["arrival_s"].iloc[:50])
    assert few.duration_s == few.frame["arrival_s"].iloc[-1]


def test_nothing_arrives_after_the_duration(chat, laws):
    for scenario in (chat, laws, with_values(chat, STEADY)):
        trace = draw(with_values(scenario, {"traffic.duration_s": 100.0}))
        assert trace.frame["arrival_s"].max() < 100
        assert trace.duration_s == 100


def test_a_negative_seed_is_an_error(laws):
    with pytest.raises(ValueError, match="seed"):
        draw(laws, seed=-1)


# Replays


def test_a_replay_is_the_trace_as_recorded(chat, base):
    frame = draw(chat, seed=9).frame
    known = ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "request_class"]
    known += ["tenant", "session", "streaming", "priority"]
    pd.testing.assert_frame_equal(frame[known], base.frame[known])
    for drawn, own in zip(frame["prefix_blocks"], base.frame["prefix_blocks"], strict=True):
        assert np.array_equal(drawn, own)


def test_recorded_times_are_multiplied_by_the_time_scale(chat, base):
    fast = draw(replay(chat, time_scale=0.5)).frame["arrival_s"]
    assert fast.to_numpy() == pytest.approx(base.frame["arrival_s"].to_numpy() / 2)
    assert draw(replay(chat, time_scale=0.5)).duration_s == 1800
    slow = draw(replay(chat, time_scale=2.0))
    assert len(slow) == (base.frame["arrival_s"] < 1800).sum()


@pytest.mark.parametrize("scale", [0.25, 0.7])
def test_thinning_keeps_rate_and_joint_lengths(chat, base, scale):
    thin = draw(replay(chat, rate_scale=scale), seed=3).frame
    assert_share(len(thin), len(base), scale)
    assert thin["request_id"].isin(base.frame["request_id"]).all()
    assert_joint_lengths(thin, base.frame)


@pytest.mark.parametrize("scale", [2.0, 2.5])
def test_superposing_keeps_rate_and_joint_lengths(chat, base, scale):
    more = draw(replay(chat, rate_scale=scale), seed=3).frame
    copies = more["request_id"].str.partition("~")[2].str.rstrip("b").replace("", "0").astype(int)
    whole = np.bincount(copies)[: int(scale)]
    assert (whole == len(base)).all()
    assert_share(len(more) - int(scale) * len(base), len(base), scale - int(scale))
    assert_joint_lengths(more, base.frame)


def assert_joint_lengths(frame, base):
    columns = ["prompt_tokens", "output_tokens"]
    for (name, rows), (_, own) in zip(
        frame.groupby("request_class"), base.groupby("request_class"), strict=True
    ):
        for column in columns:
            for q in (0.5, 0.95):
                expected = own[column].quantile(q, interpolation="nearest")
                assert_quantile(rows[column], q, expected)
        ours, theirs = (t[columns].corr("spearman").iloc[0, 1] for t in (rows, own))
        assert abs(ours - theirs) < 3.29 * 1.1 / np.sqrt(len(rows)), name


def test_a_copy_keeps_the_burstiness_of_the_trace(chat, base):
    """Shifting round the end moves all gaps but one; a copy's dispersion is the trace's."""
    more = draw(replay(chat, rate_scale=2.0), seed=3).frame
    copy = more.loc[more["request_id"].str.contains("~1"), "arrival_s"].to_numpy()
    ours, theirs = (np.sort(np.diff(a)) for a in (copy, base.frame["arrival_s"].to_numpy()))
    assert np.quantile(ours, [0.1, 0.5, 0.9, 0.99]) == pytest.approx(
        np.quantile(theirs, [0.1, 0.5, 0.9, 0.99]), rel=0.02, abs=1e-3
    )
    assert dispersion(copy, 10.0) == pytest.approx(
        dispersion(base.frame["arrival_s"], 10.0), rel=0.1
    )


def test_thinning_lowers_the_dispersion_as_theory_predicts(chat, base):
    """Kept with probability p, counts have an index of dispersion of 1 + p (I - 1)."""
    whole = dispersion(base.frame["arrival_s"], 10.0)
    thinned = [
        dispersion(draw(replay(chat, rate_scale=0.5), seed=s).frame["arrival_s"], 10.0)
        for s in range(12)
    ]
    half = 3.29 * np.std(thinned, ddof=1) / np.sqrt(12)
    assert abs(np.mean(thinned) - (1 + 0.5 * (whole - 1))) < half


def test_superposing_keeps_the_dispersion_and_makes_no_twins(chat, base):
    """Copies shifted apart keep the index of dispersion; unshifted ones would double it."""
    whole = dispersion(base.frame["arrival_s"], 10.0)
    more = [draw(replay(chat, rate_scale=2.0), seed=s).frame["arrival_s"] for s in range(6)]
    assert np.mean([dispersion(a, 10.0) for a in more]) == pytest.approx(whole, rel=0.25)
    twins = (base.frame["arrival_s"].diff() == 0).mean()
    assert (more[0].diff() == 0).mean() <= twins + 0.001


def dispersion(arrival_s, window_s):
    counts = np.bincount((np.asarray(arrival_s) // window_s).astype(int), minlength=360)
    return counts.var() / counts.mean()


def test_what_a_smaller_rate_keeps_a_larger_one_keeps_too(chat):
    kept = [set(draw(replay(chat, rate_scale=s)).frame["request_id"]) for s in (0.3, 0.9, 1.0, 1.4)]
    for fewer, more in itertools.pairwise(kept):
        assert {i.rstrip("b") for i in fewer} < {i.rstrip("b") for i in more}


def test_copies_share_system_prompts_but_no_conversation(chat, base):
    more = draw(replay(chat, rate_scale=2.0)).frame
    copied = more["request_id"].str.contains("~1")
    assert not set(more.loc[copied, "session"]) & set(more.loc[~copied, "session"])
    ids = [
        set(np.concatenate(more.loc[rows, "prefix_blocks"].to_list())) for rows in (copied, ~copied)
    ]
    system = ids[0] & ids[1]
    assert 0 < len(system) <= 15
    firsts = {blocks[0] for blocks in base.frame["prefix_blocks"] if len(blocks)}
    assert firsts <= system


def test_conversations_of_a_copy_keep_their_prefixes(chat, base):
    more = draw(replay(chat, rate_scale=2.0)).frame
    copied = more.loc[more["request_id"].str.contains("~1") & (more["request_class"] == "chat")]
    longest = copied.groupby("session").size().idxmax()
    rows = copied.loc[copied["session"] == longest, "prefix_blocks"].to_list()
    assert len(rows) > 1
    assert np.array_equal(rows[0], rows[-1][: len(rows[0])])


def test_a_trace_without_sessions_shares_no_block_between_copies(chat):
    blocks = [np.array([1, 2]), np.array([1, 3]), np.array([7]), np.array([], dtype=np.int64)]
    trace = plain(prefix_blocks=blocks)
    more = draw(replay(chat, rate_scale=2.0), base=trace).frame
    copied = more["request_id"].str.contains("~1")
    ids = [
        set(np.concatenate(more.loc[rows, "prefix_blocks"].to_list())) for rows in (copied, ~copied)
    ]
    assert not ids[0] & ids[1]


def test_a_replay_without_a_base_trace_is_an_error(chat):
    with pytest.raises(DataError, match="replay needs traffic"):
        with_values(chat, {"traffic.trace": None})


# Other shapes over a base trace


def test_whole_rows_of_the_base_trace_are_drawn(chat, base):
    drawn = draw(with_values(chat, STEADY), seed=2).frame
    assert set(rows_of(drawn)) <= set(rows_of(base.frame))
    assert_joint_lengths(drawn, base.frame)
    for name, share in base.frame["request_class"].value_counts(normalize=True).items():
        assert_share((drawn["request_class"] == name).sum(), len(drawn), share)


def test_a_row_drawn_twice_is_another_conversation(chat, base):
    drawn = draw(with_values(chat, STEADY), seed=2).frame
    again = drawn["request_id"].str.contains("~")
    assert again.any()
    assert not set(drawn.loc[again, "session"]) & set(base.frame["session"])


def test_occurrences_count_from_zero():
    rows = np.array([3, 1, 3, 3, 1])
    assert occurrence(rows).tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize(
    ("arrivals", "cv"), [({"kind": "poisson"}, 1.0), ({"kind": "gamma", "cv": 2.0}, 2.0)]
)
def test_rate_and_cv_come_back_from_a_draw(chat, arrivals, cv):
    scenario = with_values(
        chat, {**STEADY, "traffic.arrivals": arrivals, "traffic.duration_s": 500.0}
    )
    gaps = [np.diff(draw(scenario, seed=s).frame["arrival_s"]) for s in range(20)]
    counts = np.array([len(g) + 1 for g in gaps])
    assert abs(counts.mean() - 3000) < 3.29 * counts.std(ddof=1) / np.sqrt(20)
    moments = np.array([np.mean((g * 6.0) ** 2) for g in gaps])
    assert abs(moments.mean() - (1 + cv**2)) < 3.29 * moments.std(ddof=1) / np.sqrt(20)


@settings(max_examples=25)
@given(
    rate=st.floats(0.5, 20),
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["steady", "step", "spike"]),
    trace=st.sampled_from(["sample", None]),
)
def test_every_shape_draws_about_its_planned_number(rate, seed, shape, trace):
    shapes = {
        "steady": ({"rate_rps": rate}, 200 * rate),
        "step": ({"start_rps": rate, "factor": 2.0, "steps": 2, "hold_s": 50.0}, 150 * rate),
        "spike": ({"base_rps": rate, "peak_rps": 3 * rate, "every_s": 100.0}, 320 * rate),
    }
    fields, expected = shapes[shape]
    scenario = with_values(
        load_scenario("chat-service"),
        {
            "traffic.shape": {"kind": shape, **fields},
            "traffic.trace": trace,
            "traffic.duration_s": 200.0,
        },
    )
    n = len(draw(scenario, seed=seed))
    assert abs(n - expected) < 5 * np.sqrt(expected) + 1


# Laws


def test_classes_and_tenants_come_by_share(laws):
    frame = draw(laws).frame
    for name, share in {"chat": 0.65, "assistant": 0.2, "batch": 0.15}.items():
        assert_share((frame["request_class"] == name).sum(), len(frame), share)
    chat = frame.loc[frame["request_class"] == "chat", "tenant"]
    assert_share((chat == "web-shop").sum(), len(chat), 45 / 70)
    assert set(chat) == {"web-shop", "mobile-app"}


def test_lengths_have_their_quantiles_correlation_and_limit(laws):
    values = {
        "classes.chat.length_correlation": 0.6,
        "classes.chat.prompt_tokens": {"kind": "lognormal", "p50_tokens": 800, "p95_tokens": 4000},
        "classes.chat.output_tokens": {"kind": "lognormal", "p50_tokens": 120, "p95_tokens": 600},
    }
    frame = draw(with_values(laws, values)).frame
    chat = frame[frame["request_class"] == "chat"]
    assert_quantile(chat["prompt_tokens"] - 0.5, 0.5, 800)
    assert_quantile(chat["prompt_tokens"] - 0.5, 0.95, 4000)
    assert_quantile(chat["output_tokens"] - 0.5, 0.5, 120)
    assert_quantile(chat["output_tokens"] - 0.5, 0.95, 600)
    r = np.corrcoef(np.log(chat["prompt_tokens"]), np.log(chat["output_tokens"]))[0, 1]
    assert abs(np.arctanh(r) - np.arctanh(0.6)) < 3.29 / np.sqrt(len(chat) - 3)


def test_lengths_beyond_the_limit_are_drawn_again_not_cut(laws):
    cut = {"kind": "lognormal", "p50_tokens": 1000, "p95_tokens": 4000, "max_tokens": 4000}
    frame = draw(with_values(laws, {"classes.chat.prompt_tokens": cut})).frame
    prompt = frame.loc[frame["request_class"] == "chat", "prompt_tokens"]
    assert prompt.max() <= 4000
    assert (prompt == prompt.max()).sum() < 10
    law = stats.lognorm(np.log(4) / Z95, scale=1000)
    assert_quantile(prompt - 0.5, 0.5, law.ppf(0.5 * 0.95))


def test_requests_of_one_tenant_share_the_prefix_of_their_class(laws):
    frame = draw(laws).frame
    long = frame[(frame["prompt_tokens"] >= 512) & (frame["request_class"] != "batch")]
    by_tenant = long.groupby(["request_class", "tenant"])["prefix_blocks"]
    prefixes = [set(map(tuple, blocks)) for _, blocks in by_tenant]
    assert len(prefixes) == 4
    assert all(len(p) == 1 and len(next(iter(p))) == 512 // 16 for p in prefixes)
    ids = [set(next(iter(p))) for p in prefixes]
    assert sum(map(len, ids)) == len(set.union(*ids))
    short = frame[(frame["prompt_tokens"] < 512) & (frame["request_class"] == "chat")]
    assert (short["prefix_blocks"].map(len) == short["prompt_tokens"] // 16).all()


def test_lengths_that_never_fit_are_an_error(laws):
    c = laws.request_class("chat")
    law = c.prompt_tokens.model_copy(update={"max_tokens": 1, "p50_tokens": 10**6})
    chat = c.model_copy(update={"prompt_tokens": law})
    scenario = laws.model_copy(update={"classes": (chat, *laws.classes[1:])})
    with pytest.raises(ValueError, match="class chat: lengths"):
        draw(scenario)


# What a trace does not say


def test_a_bare_trace_gets_the_default_class_with_a_note(chat):
    trace = draw(chat, base=plain())
    chat_class = chat.request_class("chat")
    frame = trace.frame
    assert (frame["request_class"] == "chat").all()
    assert set(frame["tenant"]) <= {"web-shop", "mobile-app"}
    assert (frame["deadline_s"] == chat_class.promises.deadline_s).all()
    assert (frame["priority"] == 0).all()
    assert frame["streaming"].all()
    assert frame["session"].isna().all()
    assert [len(b) for b in frame["prefix_blocks"]] == [0] * 4
    said = " ".join(trace.notes)
    assert "All 4 requests named no class and became chat, the default class." in said
    for what in ("tenant", "priority", "deadline", "stream"):
        assert what in said


def test_rules_give_classes_and_tenants_first_match_wins(chat):
    rules = [
        {"request_class": "batch", "tenant": "archive", "min_prompt_tokens": 300},
        {"request_class": "assistant", "max_output_tokens": 1},
        {"request_class": "batch", "min_output_tokens": 1},
    ]
    trace = draw(with_values(chat, {"traffic.rules": rules}), base=plain())
    assert trace.frame["request_class"].tolist() == ["assistant", "batch", "batch", "batch"]
    assert trace.frame["tenant"].tolist()[2:] == ["archive", "archive"]
    assert "1 of 4 requests named no class and became assistant by rule 2." in trace.notes


def test_values_of_the_trace_stay(chat):
    stated = plain(
        request_id=list("abcd"),
        request_class=["batch", None, "chat", "assistant"],
        tenant=["x", None, "y", "z"],
        priority=[5, np.nan, 0, 2],
        streaming=[True, None, False, True],
        deadline_s=[1.5, np.nan, 2.5, 3.5],
        size=[7.0, np.nan, np.nan, np.nan],
    )
    frame = draw(chat, base=stated).frame
    assert frame["request_id"].tolist() == list("abcd")
    assert frame["request_class"].tolist() == ["batch", "chat", "chat", "assistant"]
    assert frame["tenant"].tolist()[0::2] == ["x", "y"]
    assert frame["priority"].tolist() == [5, 0, 0, 2]
    assert frame["streaming"].tolist() == [True, True, False, True]
    assert frame["deadline_s"].tolist() == [1.5, chat.request_class().promises.deadline_s, 2.5, 3.5]
    assert frame["size"].tolist()[0] == 7


def test_a_share_of_the_streaming_classes_requests_streams(chat):
    n = 2000
    many = plain(arrival_s=np.arange(n, dtype=float))
    frame = draw(with_values(chat, {"traffic.streaming_fraction": 0.3}), base=many).frame
    assert_share(frame["streaming"].sum(), n, 0.3)
    batch = with_values(chat, {"traffic.streaming_fraction": 0.3, "default_class": "batch"})
    assert not draw(batch, base=many).frame["streaming"].any()


def test_a_class_without_deadline_leaves_it_missing_with_a_note(chat):
    scenario = with_values(chat, {"classes.chat.promises.deadline_s": None})
    trace = draw(scenario, base=plain())
    assert trace.frame["deadline_s"].isna().all()
    assert any("have no deadline" in note for note in trace.notes)


# Bases that are damaged, empty or tiny


def test_a_class_that_the_scenario_lacks_becomes_the_default_one_with_a_note(chat):
    base = plain(request_class=["batch", "image", "speech", None])
    trace = draw(chat, base=base)
    assert trace.frame["request_class"].tolist() == ["batch", "chat", "chat", "chat"]
    assert any(
        "3 of 4 requests named no class of the scenario (image, speech) and became chat" in note
        for note in trace.notes
    )


def test_a_rule_renames_a_class_of_the_trace(chat):
    base = plain(request_class=["Conversation log", "API log", "chat", "API log"])
    rules = [
        {"request_class": "batch", "trace_class": "API log", "max_prompt_tokens": 300},
        {"request_class": "assistant", "trace_class": "API log", "tenant": "office"},
        {"request_class": "batch", "trace_class": "chat"},
    ]
    frame = draw(with_values(chat, {"traffic.rules": rules}), base=base).frame
    assert frame["request_class"].tolist() == ["chat", "batch", "chat", "assistant"]
    assert frame["tenant"].iloc[3] == "office"


@pytest.mark.parametrize(
    "content", [None, "", "arrival_s,prompt_tokens,output_tokens\n", "\x00\x01"]
)
def test_a_base_that_cannot_be_read_is_an_error(chat, tmp_path, content):
    file = tmp_path / "trace.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=r"trace\.csv"):
        draw(with_values(chat, {"traffic.trace": str(file)}))


def test_a_base_of_one_request_is_replayed_and_drawn_from(chat):
    one = plain(arrival_s=[3.0])
    assert draw(chat, base=one).frame["arrival_s"].tolist() == [3.0]
    assert len(draw(replay(chat, rate_scale=3.0), base=one)) == 3
    steady = draw(with_values(chat, {**STEADY, "traffic.duration_s": 50.0}), base=one)
    assert (steady.frame["prompt_tokens"] == 100).all()


def test_a_trace_in_which_nothing_arrives_in_time_is_an_error(chat, laws):
    late = plain(arrival_s=[50.0, 60.0, 70.0, 80.0])
    with pytest.raises(DataError, match="at least one request within 10 s"):
        draw(with_values(chat, {"traffic.duration_s": 10.0}), base=late)
    rare = {"traffic.shape.rate_rps": 1e-9, "traffic.duration_s": 1.0}
    with pytest.raises(DataError, match="at least one request"):
        draw(with_values(laws, rare))


def test_a_base_that_changed_on_disk_is_read_again(chat, tmp_path):
    file = tmp_path / "trace.csv"
    scenario = with_values(chat, {"traffic.trace": str(file)})
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n")
    assert len(draw(scenario)) == 1
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n")
    assert len(draw(scenario)) == 2


def test_the_sample_is_found_by_name_and_knows_its_blocks(base):
    assert base.source == "sample"
    assert base.duration_s == 3600
    assert base.prefix_block_tokens == 128
    assert base.sha256 is not None
    assert data_path("sample", "trace.parquet").exists()


def test_a_draw_leaves_its_base_untouched(chat):
    base = plain(session=["a", "a", "b", "b"], prefix_blocks=[np.array([1])] * 4)
    before = base.frame.copy(deep=True)
    draw(replay(chat, rate_scale=3.0), base=base)
    draw(with_values(chat, {**STEADY, "traffic.duration_s": 60.0}), base=base)
    pd.testing.assert_frame_equal(base.frame, before)
    assert dataclasses.is_dataclass(base)


# Sizes of requests that are not made of tokens


@pytest.fixture(scope="module")
def mixed():
    return with_values(load_scenario("mixed-modality"), {"traffic.duration_s": 3000.0})


def test_sizes_follow_the_law_of_their_class(mixed):
    frame = draw(mixed).frame
    size = dict(list(frame.groupby("request_class")["size"]))
    assert size["chat"].isna().all()
    assert set(size["image"]) == {0.26, 1.05, 2.36}
    assert_share((size["image"] == 1.05).sum(), len(size["image"]), 0.6)
    law = stats.lognorm(np.log(25 / 8) / Z95, scale=8)
    assert size["speech"].max() <= 30
    assert_quantile(size["speech"], 0.5, law.ppf(0.5 * law.cdf(30)))


def test_a_trace_without_sizes_gets_those_of_its_classes_with_a_note(mixed):
    base = plain(
        request_class=["image", "chat", "speech", "image"], size=[9.0, np.nan, np.nan, np.nan]
    )
    scenario = with_values(
        mixed, {"traffic.shape": {"kind": "replay"}, "traffic.trace": "sample", "traffic.mix": []}
    )
    trace = draw(scenario, base=base)
    found = trace.frame["size"]
    assert found[0] == 9
    assert np.isnan(found[1])
    assert found[2] > 0
    assert found[3] in {0.26, 1.05, 2.36}
    assert "2 of 4 requests named no size: drawn by the law of the class." in trace.notes


def test_a_fixed_size_is_fixed_and_a_size_that_never_fits_is_an_error():
    rng = np.random.default_rng(0)
    assert sizes(FixedSize(value=3.0), 2, rng).tolist() == [3, 3]
    never = LognormalSize(p50=8.0, p95=9.0, max=9.0).model_copy(update={"p50": 1e9, "p95": 1e9})
    with pytest.raises(ValueError, match="sizes"):
        sizes(never, 5, rng)


def test_the_scenario_maps_the_columns_of_a_log(chat, tmp_path):
    log = tmp_path / "access.jsonl"
    rows = [
        f'{{"at": {i + 1}000, "use": {{"in": {10 + i}, "out": 0}}, "app": "A"}}' for i in range(3)
    ]
    log.write_text("\n".join(rows))
    columns = {
        "arrival_s": "at", "prompt_tokens": "use.in", "output_tokens": "use.out", "tenant": "app"
    }  # fmt: skip
    values = {
        "traffic.trace": str(log),
        "traffic.columns": columns,
        "traffic.units": {"arrival_s": "ms"},
        "traffic.keep_zero_tokens": True,
    }
    frame = draw(with_values(chat, values)).frame
    assert frame["arrival_s"].tolist() == [1, 2, 3]
    assert frame["prompt_tokens"].tolist() == [10, 11, 12]
    assert set(frame["tenant"]) == {"A"}
    again = with_values(chat, {**values, "traffic.units": {"arrival_s": "s"}})
    assert draw(again).frame["arrival_s"].tolist() == [1000, 2000, 3000]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"traffic.columns": {"arrival": "at"}}, "traffic.columns: columns of a trace"),
        ({"traffic.columns": {"arrival_s": "at"}}, r"mapping: a column of the file .*got 'at'"),
        ({"traffic.units": {"arrival_s": "h"}}, "traffic.units.arrival_s"),
        ({"traffic.format": "azur"}, "format: one of auto, azure.*got 'azur'"),
    ],
)
def test_a_reading_that_makes_no_sense_is_an_error(chat, tmp_path, values, rule):
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n1,1,1\n2,2,2\n")
    with pytest.raises(DataError, match=rule):
        draw(with_values(chat, {"traffic.trace": str(file), **values}))


def test_a_recorded_trace_keeps_its_ledger_and_the_scenario_fills_what_it_lacks():
    trace = recorded(load_scenario("chat-service"), seed=1)
    assert trace.ledger.kept == len(trace) == 20_053
    assert trace.frame[["request_class", "tenant", "deadline_s"]].notna().all().all()
    assert recorded(load_scenario("benchmark")).frame.equals(draw(load_scenario("benchmark")).frame)


def recording(tmp_path, *, quiet, busy):
    """Write a recording of a quiet hour and a busy one after it; return its path."""
    times = [*(3600.0 * i / quiet for i in range(quiet)), *(3600.0 + i for i in range(busy))]
    lines = ["arrival_s,prompt_tokens,output_tokens", *(f"{t:.3f},100,10" for t in times)]
    file = tmp_path / "calls.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def replay_of(file, **values):
    base = {"traffic": {"trace": str(file), "shape": {"kind": "replay"}}}
    return load_scenario("benchmark", values={**base, "requests": None, **values})


def test_a_replay_takes_the_whole_trace_unless_the_scenario_cuts_it(tmp_path):
    file = recording(tmp_path, quiet=40, busy=900)
    whole = draw(replay_of(file))
    assert len(whole) == 940
    assert not any("cuts the trace" in note for note in whole.notes)


def test_what_a_cut_leaves_out_is_stated_with_its_share_of_the_busiest_hour(tmp_path):
    file = recording(tmp_path, quiet=40, busy=900)
    cut = draw(replay_of(file, **{"traffic.duration_s": 3600.0}))
    (note,) = (n for n in cut.notes if "cuts" in n)
    assert note.startswith("traffic.duration_s 3,600 s cuts the trace: 900 of 940 requests")
    assert "96.8 % of those of its busiest hour" in note  # 900 of the 930 within one hour
    (note,) = (n for n in draw(replay_of(file, requests=90)).notes if "cuts" in n)
    assert note.startswith("requests 90 cuts the trace: 850 of 940 requests")


@pytest.mark.parametrize(
    "command",
    [
        "simulate",
        "size --most 2 --lose 0",
        "stages --set stages.run=[baseline]",
        "sweep --vary pools.llm.replicas=1,2",
        "sweep --vary classes.benchmark.priority=0,1",
        "sweep --vary traffic.duration_s=3600,9000000",
    ],
)
def test_every_command_prints_and_stores_what_was_cut(tmp_path, capsys, command):
    file = recording(tmp_path, quiet=40, busy=300)
    study = tmp_path / "study.yaml"
    study.write_text(write_scenario(replay_of(file)), encoding="utf-8")
    name, *options = command.split()
    words = [name, str(study), *options, "--set", "traffic.duration_s=3600"]
    words += ["--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert "300 of 340 requests" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert any("300 of 340" in note for note in json.loads(capsys.readouterr().out)["assumed"])
    assert "300 of 340" in (tmp_path / "run" / "manifest.json").read_text(encoding="utf-8")


def test_stated_fields_that_the_rows_of_a_trace_replace_are_named_once(chat):
    stated = load_scenario("chat-service")
    shape = {"kind": "closed", "users": 20, "think": {"kind": "fixed", "seconds": 1.0}}
    few = {"requests": 50}

    def notes(scenario, **values):
        return [n for n in draw(with_values(scenario, few | values)).notes if "Without effect" in n]

    assert notes(stated) == []
    (named,) = notes(chat, **{"traffic.arrivals": {"kind": "gamma", "cv": 2.0}})
    for field in ("classes.share", "classes.prompt_tokens", "classes.prefix_tokens"):
        assert field in named
    assert "traffic.arrivals" in named
    assert all("classes.share" not in note for note in notes(chat, **{"traffic.shape": shape}))
    assert notes(chat, **STEADY, **{"traffic.trace": None}) == []
