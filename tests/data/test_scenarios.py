import shlex

import pytest

from capplan.budget import allocate, resolved
from capplan.bundled import data_path
from capplan.scenario.classes import Promises
from capplan.scenario.files import load_scenario, validate, write_scenario
from capplan.scenario.layers import Weights
from capplan.scenario.part import Part
from capplan.scenario.yaml_text import parse_value, read_yaml
from capplan.traffic.draw import draw

DRILLS = sorted(path.stem for path in data_path("scenarios", "drills").glob("*.yaml"))
NAMES = sorted(path.stem for path in data_path("scenarios").glob("*.yaml"))


def limits_of(scenario):
    """Every queue of a scenario, by where it stands."""
    yield "gateway", scenario.gateway.queue
    for pool in scenario.pools:
        yield pool.name, pool.queue
        yield f"{pool.name} scheduler", pool.batching.scheduler


def test_five_scenarios_are_bundled():
    assert NAMES == [
        "benchmark",
        "chat-service",
        "embedding-batch",
        "mixed-modality",
        "protected-chat",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_scenario_is_read_written_and_read_again(name, tmp_path):
    scenario = load_scenario(name)
    file = tmp_path / "again.yaml"
    file.write_text(write_scenario(scenario))
    assert load_scenario(file) == scenario
    assert scenario.name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_scenario_draws_traffic_of_each_class(name):
    scenario = load_scenario(name, values={"traffic.duration_s": 600.0})
    frame = draw(scenario, seed=1).frame
    assert set(frame["request_class"]) == {c.name for c in scenario.classes}
    assert set(frame["tenant"]) <= {t.name for t in scenario.tenants}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "benchmark"])
def test_every_layer_has_an_owner_and_a_bound(name):
    scenario = load_scenario(name)
    assert scenario.network.owner
    assert scenario.gateway.owner
    assert scenario.gateway.rate_limits
    assert scenario.gateway.concurrency is not None
    assert all(c.owner for c in scenario.classes)
    assert all(pool.owner and pool.router.max_in_flight for pool in scenario.pools)
    for where, queue in limits_of(scenario):
        assert queue.owner, where
        assert queue.length is not None, where
        assert queue.wait_limit_s is not None, where


@pytest.mark.parametrize("name", [n for n in NAMES if n != "benchmark"])
def test_every_class_has_promises_and_the_waits_fit_its_deadline(name):
    scenario = resolved(load_scenario(name))
    for c in scenario.classes:
        pool = scenario.pool_of(c.name)
        waits = (scenario.gateway.queue, pool.queue, pool.batching.scheduler)
        patient = max(one.promises.deadline_s for one in scenario.classes)
        assert max(q.wait_limit_s for q in waits) < patient
        for promise in ("availability_fraction", "error_rate_fraction", "timeout_rate_fraction"):
            assert getattr(c.promises, promise) is not None
        assert c.promises.cost_usd_per_success is not None
        if c.streaming:
            assert c.promises.ttft_s is not None
            assert c.promises.tpot_s is not None
        else:
            assert c.promises.e2e_s is not None


@pytest.mark.parametrize("name", [n for n in NAMES if n != "benchmark"])
def test_all_attempts_and_backoffs_fit_the_deadline(name):
    for c in load_scenario(name).classes:
        n, timeout = c.retry.max_attempts, c.retry.attempt_timeout_s
        if n > 1:
            waits = sum(c.retry.backoff_before(k) for k in range(1, n + 1))
            assert n * timeout + waits <= c.promises.deadline_s


@pytest.mark.parametrize("name", [n for n in NAMES if n != "benchmark"])
def test_the_limits_are_those_that_the_budget_derives(name):
    found = allocate(load_scenario(name)).findings
    if name == "protected-chat":  # it shows its protections at work, so it refuses earlier
        assert {(f.rule, f.outcome) for f in found} == {("differs_from_budget", "retest")}
    else:
        assert found == ()


def test_the_chat_service_has_one_pool_of_each_kind_and_three_classes_of_four_tenants():
    scenario = load_scenario("chat-service")
    kinds = {pool.name: pool.batching.kind for pool in scenario.pools}
    assert kinds == {"llm": "continuous", "labelling": "dynamic"}
    pools = {c.name: scenario.pool_of(c.name).name for c in scenario.classes}
    assert pools == {"chat": "llm", "assistant": "llm", "batch": "labelling"}
    assert len(scenario.tenants) == 4
    assert scenario.request_class("batch").sheddable
    assert not scenario.request_class("batch").streaming


def benchmark_capacity_rps(scenario):
    """Requests a second that one replica of the benchmark serves with its batch full.

    In steady state every step decodes S sequences and prefills S · P / O tokens (each request
    brings P prompt tokens and stays O steps), so it takes
    base + S·P/O · per_prefill_token + S · per_sequence + S · (P + O/2) · per_context_token
    and completes S / O requests. S is the least of max_num_seqs, what the token budget allows
    (S + S·P/O <= budget) and what the KV blocks hold.
    """
    c, batching = scenario.classes[0], scenario.pool().batching
    prompt, output, step = c.prompt_tokens.tokens, c.output_tokens.tokens, batching.step_time
    held = batching.kv_blocks * batching.block_size / (prompt + output)
    budget = batching.max_num_batched_tokens / (1 + prompt / output)
    s = min(batching.max_num_seqs, budget, held)
    per_sequence = (
        step.per_prefill_token_s * prompt / output
        + step.per_sequence_s
        + step.per_context_token_s * (prompt + output / 2)
    )
    return s / output / (step.base_s + s * per_sequence)


def test_the_benchmark_offers_70_percent_of_a_replicas_capacity():
    scenario = load_scenario("benchmark")
    load = scenario.traffic.shape.rate_rps / benchmark_capacity_rps(scenario)
    assert load == pytest.approx(0.70, abs=0.005)


def test_an_unknown_field_in_a_scenario_is_an_error():
    data = load_scenario("benchmark").model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ValueError, match="colour"):
        validate({**data, "colour": "red"}, where="test")


def test_the_traffic_of_the_readme_draws(tmp_path):
    text = (data_path("scenarios") / "README.md").read_text(encoding="utf-8")
    block = text.split("    traffic:\n")[1].split("\n\n")[0]
    file = tmp_path / "traffic.yaml"
    file.write_text(block)
    values = {f"traffic.{name}": value for name, value in read_yaml(file).items()}
    trace = draw(load_scenario("chat-service", values=values), seed=1)
    assert trace.frame["output_tokens"].max() > 5000


def test_the_limits_of_the_readme_are_those_of_a_gateway(tmp_path):
    text = (data_path("scenarios") / "README.md").read_text(encoding="utf-8")
    file = tmp_path / "gateway.yaml"
    file.write_text(text.split("    gateway:\n")[1].split("\n\n")[0])
    values = {f"gateway.{name}": value for name, value in read_yaml(file).items()}
    gateway = load_scenario("chat-service", values=values).gateway
    reasons = {limit.reason.partition(":")[0] for limit in gateway.limits() if limit.is_set}
    assert reasons >= {"rate_limit", "token_limit", "quota_exhausted", "retry_budget", "displaced"}
    assert len([one for one in gateway.rate_limits if one.tenant]) == 4


def test_the_closed_loop_of_the_readme_draws():
    text = (data_path("scenarios") / "README.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("    --set ")]
    pairs = [word.split("=", 1) for words in lines for word in words if word != "--set"]
    values = {field: parse_value(value) for field, value in pairs}
    scenario = load_scenario("chat-service", values=values)
    assert scenario.network.connections == "fresh"
    assert draw(scenario, seed=1).frame["user"].nunique() == 200


def test_the_mix_switches_one_class_after_the_other_and_back_by_the_next_day():
    scenario = load_scenario("mixed-modality")
    assert len(scenario.classes) == 7
    changes = scenario.traffic.mix
    evening = [c.at_s for c in changes if c.at_s < 7200]
    assert len(set(evening)) == len(evening) == 4
    shares = {c.name: c.share for c in scenario.classes}
    for name in {c.request_class for c in changes}:
        last = max((c for c in changes if c.request_class == name), key=lambda c: c.at_s)
        assert last.share == shares[name]
    frame = draw(scenario, seed=1).frame
    late = frame["arrival_s"] > 1300
    embedding = frame["request_class"] == "embedding"
    assert embedding[late].mean() > 2 * embedding[frame["arrival_s"] < 1200].mean()


def test_pools_of_the_mix_share_hosts_that_hold_them():
    scenario = load_scenario("mixed-modality")
    on = {host.name: {p.name for p in scenario.pools if host.name in p.hosts}
          for host in scenario.hosts}  # fmt: skip
    assert on == {
        "search-1": {"embedding", "vector"},
        "media-1": {"speech", "image"},
        "media-2": {"image"},
    }
    with pytest.raises(ValueError, match=r"media-1\.accelerator_memory_bytes: holds 3e\+10"):
        load_scenario("mixed-modality", values={"hosts.media-1.accelerator_memory_bytes": 3e10})


def repeated(part, path=""):
    """Yield the stated fields of a part that hold their default; promises and weights may."""
    for name in part.model_fields_set - {"kind", "share"}:
        value, field = getattr(part, name), type(part).model_fields[name]
        if value == field.get_default(call_default_factory=True):
            yield f"{path}{name}"
        for inner in value if isinstance(value, tuple) else [value]:
            if isinstance(inner, Part) and not isinstance(inner, Promises | Weights):
                yield from repeated(inner, f"{path}{name}.")


@pytest.mark.parametrize("name", [*NAMES, *(f"drills/{name}" for name in DRILLS)])
def test_no_bundled_file_repeats_a_default(name):
    assert sorted(set(repeated(load_scenario(name)))) == []
