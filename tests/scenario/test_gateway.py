"""What a gateway's limits may not say, each with one clear error."""

import json

import pytest

from capplan.scenario.files import load_scenario, with_values, write_scenario
from capplan.scenario.gateway import Gateway, TenantQuota
from capplan.schema import DataError

QUOTAS = [{"tenant": "all", "concurrency": 4}]
LIMIT = {"name": "a", "rate_rps": 1.0}
TOKENS = {"name": "a", "rate_tokens_per_s": 1.0, "burst_tokens": 9}


@pytest.fixture(name="base", scope="module")
def _base():
    return load_scenario("benchmark", values={"gateway.concurrency": 8})


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (
            {"gateway.rate_limits": [LIMIT | {"rate_rps": 1e-310}]},
            "gateway.rate_limits.a.rate_rps: input should be at least 1e-300, got 1e-310",
        ),
        ({"gateway.rate_limits": [LIMIT | {"rate_rps": 0}]}, "gateway.rate_limits.a.rate_rps: "),
        (
            {"gateway.rate_limits": [{"rate_rps": 1.0}, {"rate_rps": 2.0}]},
            "names must differ, rate_limits[no name] stands more than once",
        ),
        (
            {"gateway.rate_limits": [LIMIT | {"tenant": "x"}]},
            "gateway.rate_limits.a.tenant: one of all, got 'x'",
        ),
        (
            {"gateway.rate_limits": [LIMIT | {"request_class": "x"}]},
            "gateway.rate_limits.a.request_class: one of benchmark, got 'x'",
        ),
        (
            {"gateway.rate_limits": [LIMIT], "gateway.token_limits": [TOKENS]},
            "names must differ, a stands more than once",
        ),
        (
            {"gateway.token_limits": [TOKENS | {"burst_tokens": 0}]},
            "gateway.token_limits.a.burst_tokens: input should be greater than or equal to 1",
        ),
        (
            {"gateway.token_limits": [TOKENS | {"output_estimate_tokens": -1}]},
            "gateway.token_limits.a.output_estimate_tokens: ",
        ),
        (
            {"gateway.allowances": [{"name": "m", "tokens": 1, "period_s": 0}]},
            "gateway.allowances.m.period_s: input should be greater than 0",
        ),
        (
            {"gateway.quotas": [QUOTAS[0] | {"tenant": "x"}]},
            "gateway.quotas.0.tenant: one of all, got 'x'",
        ),
        ({"gateway.quotas": QUOTAS * 2}, "quotas: tenants must differ, all stands more than once"),
        (
            {"gateway.quotas": QUOTAS, "gateway.concurrency": None},
            "quotas and reserves are shares of concurrency, which has no limit: set it",
        ),
        (
            {
                "gateway.quotas": QUOTAS,
                "gateway.reserves": [{"priority": 0, "concurrency": 5}],
            },
            "quotas (4) and the largest of reserves (5) must fit in concurrency (8): 1 too many",
        ),
        (
            {"gateway.quotas": QUOTAS, "gateway.reclaim": "cancel", "gateway.queue.length": 0},
            "reclaim: cancel needs queue.length of at least 1",
        ),
        ({"gateway.quotas": [QUOTAS[0] | {"lendable_fraction": 1.5}]}, "lendable_fraction: "),
        (
            {"gateway.when_full": "displace_lowest", "gateway.queue.order": "shortest_prompt"},
            "need queue.order to be one of fifo, priority, got shortest_prompt",
        ),
        (
            {
                "gateway.quotas": QUOTAS,
                "gateway.queue.order": "priority",
                "gateway.queue.ageing_per_s": 0.5,
            },
            "without ageing_per_s, got 0.5",
        ),
        ({"gateway.when_full": "refuse_old"}, "gateway.when_full: input should be 'refuse_new'"),
        ({"gateway.retry_budget": {"fraction": -1}}, "gateway.retry_budget.fraction: "),
        ({"gateway.accept": {"max_open": 0}}, "gateway.accept.max_open: "),
        (
            {"gateway.accept": {"backlog": 5}},
            "gateway.accept: one of rate_per_s, max_open and max_per_caller must be set",
        ),
        ({"gateway.overhead_concurrency": 4}, "overhead_concurrency needs overhead_s above 0"),
        ({"gateway.reclaim": "cancel"}, "reclaim: cancel needs quotas"),
        (
            {"gateway.when_full": "displace_lowest"},
            "when_full: displace_lowest needs a queue that can be full",
        ),
        (
            {"gateway.when_full": "displace_lowest", "gateway.queue.length": 0},
            "when_full: displace_lowest needs a queue that can be full",
        ),
        (
            {
                "gateway.when_full": "displace_lowest",
                "gateway.queue.length": 5,
                "gateway.concurrency": None,
            },
            "when_full: displace_lowest needs a queue that can be full",
        ),
        (
            {"gateway.queue.fair": {"by": "class"}},
            "gateway.queue: fair: needs order weighted_fair, got fifo",
        ),
        (
            {"gateway.queue.buckets": {"bounds_tokens": [9]}, "gateway.queue.order": "priority"},
            "gateway.queue: buckets: needs order length_buckets, got priority",
        ),
        ({"gateway.overhead_concurrency": 0}, "gateway.overhead_concurrency: "),
        ({"gateway.max_prompt_tokens": 0}, "gateway.max_prompt_tokens: "),
    ],
)
def test_an_error_names_field_rule_and_value(base, values, rule):
    with pytest.raises(DataError) as caught:
        with_values(base, values)
    assert str(caught.value).startswith("benchmark: ")
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "lendable", "withheld"), [(10, 1.0, 0), (10, 0.0, 10), (10, 0.7, 3), (3, 0.5, 2)]
)
def test_what_is_not_lent_is_whole_slots_rounded_up(slots, lendable, withheld):
    quota = TenantQuota(tenant="a", concurrency=slots, lendable_fraction=lendable)
    assert quota.withheld == withheld


def test_a_gateway_whose_overhead_has_few_workers_holds_waiting():
    assert not Gateway(overhead_s=0.1).holds_waiting
    assert Gateway(overhead_concurrency=3, overhead_s=0.1).holds_waiting
    assert Gateway(concurrency=3).holds_waiting


TWO = [{"name": "a"}, {"name": "b"}]


def test_a_limit_for_each_stands_for_one_of_every_tenant_or_class():
    values = {
        "tenants": TWO,
        "gateway.rate_limits": [LIMIT | {"name": "fair", "each": "tenant", "request_class": None}],
        "gateway.token_limits": [TOKENS | {"name": "t", "each": "class"}],
        "gateway.quotas": [{"each": "tenant", "concurrency": 3}],
    }
    gateway = load_scenario("benchmark", values=values | {"gateway.concurrency": 8}).gateway
    assert [(one.name, one.tenant) for one in gateway.rate_limits] == [
        ("fair-a", "a"),
        ("fair-b", "b"),
    ]
    assert [(t.name, t.tenant, t.request_class) for t in gateway.token_limits] == [
        ("t-benchmark", None, "benchmark")
    ]
    assert [(q.tenant, q.concurrency) for q in gateway.quotas] == [("a", 3), ("b", 3)]


def test_one_mapping_stands_for_a_list_of_one_and_needs_no_name():
    values = {"tenants": TWO, "gateway.rate_limits": {"each": "tenant", "rate_rps": 1.0}}
    assert [x.name for x in load_scenario("benchmark", values=values).gateway.rate_limits] == [
        "a",
        "b",
    ]
    one = load_scenario("benchmark", values={"gateway.rate_limits": {"rate_rps": 3.0}})
    assert [limit.rate_rps for limit in one.gateway.rate_limits] == [3.0]
    faster = with_values(one, {"gateway.rate_limits.0.rate_rps": 4.0})
    assert faster.gateway.meters["rate_limits.0"].rate_rps == 4.0


def test_one_of_each_can_be_set_by_its_name(tmp_path):
    limit = {"name": "fair", "each": "tenant", "rate_rps": 1.0}
    both = load_scenario("benchmark", values={"tenants": TWO, "gateway.rate_limits": []})
    file = tmp_path / "each.yaml"
    rule = f"gateway: {{rate_limits: [{json.dumps(limit)}]}}\n"
    text = "".join(p for p in write_scenario(both).splitlines(True) if "rate_limits" not in p)
    file.write_text(text.replace("gateway:\n", "") + rule)
    found = load_scenario(file, values={"gateway.rate_limits.fair-b.rate_rps": 5.0})
    assert [one.rate_rps for one in found.gateway.rate_limits] == [1.0, 5.0]
    without = load_scenario(file, values={"tenants": [{"name": "a"}, {"name": "b"}]})
    assert [one.tenant for one in without.gateway.rate_limits] == ["a", "b"]


@pytest.mark.parametrize(
    ("field", "entry", "rule"),
    [
        ("rate_limits", LIMIT | {"each": "user"}, "rate_limits.a.each: one of tenant, class, got"),
        ("rate_limits", LIMIT | {"each": ["tenant"]}, "rate_limits.a.each: one of tenant, class"),
        (
            "token_limits",
            TOKENS | {"each": "tenant", "tenant": "all"},
            "token_limits.a.each: tenant or each, not both",
        ),
        ("quotas", {"each": "class", "concurrency": 1}, "quotas.each.each: one of tenant, got"),
    ],
)
def test_each_says_what_it_may_be(base, field, entry, rule):
    with pytest.raises(DataError) as caught:
        with_values(base, {f"gateway.{field}": [entry]})
    assert f"gateway.{rule}" in str(caught.value)
