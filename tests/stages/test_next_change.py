"""The next change: the control fits the broken promise, and moving it mends it at no price."""

from types import SimpleNamespace

import pytest

from capplan.scenario.files import load_scenario
from capplan.stages import run_stages
from capplan.stages.crossed_limit import crossed_limit
from capplan.stages.degradation import blame
from capplan.stages.next_change import run_next
from capplan.stages.run_load import run_load
from capplan.stages.stage import stage_of


def changed(scenario, load_rps, promise):
    """Return the control that a broken promise names at a load, and what moving it does."""
    shape = {"kind": "steady", "rate_rps": load_rps}
    run = run_load(scenario, shape, duration_s=120.0, seed=1)
    stage = stage_of("x", "ramp", load_rps, run, start_s=20.0, end_s=120.0)
    found = next(b for b in stage.breaks if b.promise == promise)
    limit = crossed_limit(stage, "chat", blame(stage, found, None))
    point = SimpleNamespace(
        limit=limit, stage=stage, request_class="chat", promise=promise, found=found
    )
    return limit, run_next(scenario, point, seed=1)


def test_a_token_that_comes_late_asks_for_fewer_sequences_at_once(decoding):
    """At 14/s about 30 sequences run: 20 ms + 30 × 1 ms and some prefill exceed 45 ms a token."""
    limit, tried = changed(decoding(promises={"tpot_s": 0.045}), 14.0, "tpot_s")
    assert limit.field == "pools.llm.batching.max_num_seqs"
    assert 1 <= limit.candidate < 64
    outcomes = {r.rule: r.outcome for r in tried.reasons}
    assert outcomes["promise_mended"] == "pass"


def test_a_token_delayed_by_prefills_asks_for_a_smaller_step(decoding):
    """Eight sequences alone take 28 ms; 4,000 prompt tokens in one step take 400 ms more.

    Of 128 tokens, 120 are prompt: 40 ms in all.
    """
    batching = {"max_num_seqs": 8, "max_num_batched_tokens": 4096}
    scenario = decoding(promises={"tpot_s": 0.05}, batching=batching, prompt_tokens=4000)
    limit, tried = changed(scenario, 1.5, "tpot_s")
    assert (limit.field, limit.value) == ("pools.llm.batching.max_num_batched_tokens", 4096)
    assert limit.candidate == 128, "the largest half of a half whose step takes 50 ms at most"
    outcomes = {r.rule: r.outcome for r in tried.reasons}
    assert outcomes["promise_mended"] == "pass"


def test_waiting_asks_for_a_larger_batch_unless_tokens_would_be_late(decoding):
    batching = {"max_num_seqs": 8}
    fields = {}
    for tpot_s in (0.2, 0.029):
        scenario = decoding(promises={"ttft_s": 0.5, "tpot_s": tpot_s}, batching=batching)
        fields[tpot_s], _ = changed(scenario, 6.0, "ttft_s")
    assert fields[0.2].field == "pools.llm.batching.max_num_seqs"
    assert fields[0.2].candidate == 10
    assert fields[0.029].field == "pools.llm.batching.scheduler.length"


@pytest.mark.parametrize(
    ("promises", "prompt_tokens", "promise"),
    [({"ttft_s": 0.3}, 4000, "ttft_s"), ({"tpot_s": 0.02}, 100, "tpot_s"),
     ({"e2e_s": 1.0}, 100, "e2e_s")],
)  # fmt: skip
def test_what_a_request_breaks_alone_asks_for_parallelism(
    decoding, promises, prompt_tokens, promise
):
    """A prefill of 4,000 tokens takes 0.4 s, a token 21 ms, 50 of them more than a second."""
    scenario = decoding(promises=promises, prompt_tokens=prompt_tokens)
    limit, tried = changed(scenario, 0.5, promise)
    assert (limit.field, limit.candidate) == ("pools.llm.tensor_parallel", None)
    assert tried.outcome == "unknown"


def test_prompts_that_share_a_prefill_ask_for_fewer_tokens_a_step(decoding):
    """Of 1,000 tokens, one prompt takes 0.12 s of 0.3, and the eight that fit a step 0.82 s."""
    batching = {"max_num_batched_tokens": 8192}
    scenario = decoding(promises={"ttft_s": 0.3}, batching=batching, prompt_tokens=1000)
    limit, _ = changed(scenario, 5.0, "ttft_s")
    assert (limit.field, limit.candidate) == ("pools.llm.batching.max_num_batched_tokens", 4096)


@pytest.mark.slow
def test_over_the_drills_some_next_changes_pass_and_none_is_unplanned_capacity():
    tried = {}
    for name in ("bounded-queue", "infinite-queue", "slow-replica", "shared-disk", "hidden-tail"):
        values = {"stages.run": ["baseline", "ramp"]}
        scenario = load_scenario(f"drills/{name}", values=values)
        tried[name] = run_stages(scenario, seed=1, try_next=True).candidate
    outcomes = [one.outcome for one in tried.values()]
    assert outcomes.count("pass") >= 3
    assert not any(one.limit.is_capacity for one in tried.values())
    assert tried["slow-replica"].mends
    assert tried["slow-replica"].limit.candidate == 2, "half of the first try, which does not mend"
    assert tried["hidden-tail"].limit.candidate is None, "a request alone breaks the promise"
    assert tried["hidden-tail"].outcome == "unknown"


def test_a_wait_limit_that_ends_what_is_not_lost_is_the_limit_to_move(decoding):
    """The queue ends a wait of 1 ms, where the budget of a 60 s deadline allows seconds."""
    promises = {"deadline_s": 60.0, "timeout_rate_fraction": 0.01, "quantile": 0.95}
    queue = {"scheduler": {"wait_limit_s": 0.001}}
    limit, _ = changed(decoding(promises=promises, batching=queue), 14.0, "timeout_rate_fraction")
    assert limit.field == "pools.llm.batching.scheduler.wait_limit_s"
    assert limit.candidate > 10.0
