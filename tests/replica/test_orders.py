"""Orders of a waiting line: what each promises, whatever comes and goes."""

import itertools
import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.replica.job import Job
from capplan.replica.waiting import waiting_line
from capplan.scenario.layers import Queue

RULES = {
    "fifo": {"order": "fifo"},
    "priority": {"order": "priority"},
    "ageing": {"order": "priority", "ageing_per_s": 0.7},
    "fair": {"order": "weighted_fair", "fair": {"by": "tenant_and_class"}},
    "deadline": {"order": "earliest_deadline"},
    "shortest": {"order": "shortest_prompt"},
    "shortest_ageing": {"order": "shortest_prompt", "ageing_per_s": 30.0},
    "turns": {"order": "length_buckets", "buckets": {"bounds_tokens": [10, 100]}},
    "buckets": {
        "order": "length_buckets",
        "buckets": {"bounds_tokens": [10, 100], "turn": "shortest_first"},
        "ageing_per_s": 0.1,
    },
}


@dataclass(slots=True, eq=False)
class Known(Job):
    """A job that knows whose it is."""

    tenant: str = ""
    request_class: str = ""
    leaves_s: float = math.inf


def line_of(**rules):
    return waiting_line(Queue.model_validate_json(json.dumps(rules)))


def job(prompt=1, output=1, *, priority=0, **known):
    return Known(prompt_tokens=prompt, output_tokens=output, priority=priority, **known)


def served(line):
    return [line.pop() for _ in range(len(line))]


def in_order(jobs, **rules):
    """Return the positions of jobs that came one after the other, as they are served."""
    line = line_of(**rules)
    for at_s, each in enumerate(jobs):
        line.push(each, float(at_s))
    return [jobs.index(each) for each in served(line)]


def test_the_earliest_deadline_goes_first_and_who_has_none_last():
    jobs = [job(), job(leaves_s=9.0), job(leaves_s=3.0), job(), job(leaves_s=3.0)]
    assert in_order(jobs, order="earliest_deadline") == [2, 4, 1, 0, 3]


@pytest.mark.parametrize("seed", range(20))
def test_the_earliest_deadline_keeps_every_deadline_that_any_order_keeps(seed):
    lengths = [(seed * 7 + i * 5) % 6 + 1 for i in range(5)]
    deadlines = [(seed * 3 + i * i * 4) % 15 + lengths[i] for i in range(5)]

    def keeps(order):
        ends = itertools.accumulate(lengths[i] for i in order)
        return all(end <= deadlines[i] for i, end in zip(order, ends, strict=True))

    jobs = [job(lengths[i], leaves_s=float(deadlines[i])) for i in range(5)]
    feasible = any(keeps(order) for order in itertools.permutations(range(5)))
    assert keeps(in_order(jobs, order="earliest_deadline")) == feasible


def test_a_feasible_set_is_among_those_that_the_deadlines_are_tried_on():
    """Five jobs of one second with deadlines 1 … 5, the last first: only one order keeps them."""
    jobs = [job(1, leaves_s=float(5 - i)) for i in range(5)]
    assert in_order(jobs, order="earliest_deadline") == [4, 3, 2, 1, 0]


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_the_shortest_prompt_first_gives_the_least_mean_wait_of_all_orders(lengths):
    def mean_wait(order):
        ends = [0, *itertools.accumulate(lengths[i] for i in order)]
        return sum(ends[:-1]) / len(lengths)

    own = mean_wait(in_order([job(n) for n in lengths], order="shortest_prompt"))
    assert own == min(map(mean_wait, itertools.permutations(range(len(lengths)))))
    assert own <= mean_wait(in_order([job(n) for n in lengths], order="fifo"))


def test_buckets_take_turns_or_the_shorter_go_first():
    jobs = [job(n) for n in (500, 600, 5, 50, 6, 700)]
    bounds = {"bounds_tokens": [10, 100]}
    first = {"turn": "shortest_first"} | bounds
    assert in_order(jobs, order="length_buckets", buckets=first) == [2, 4, 3, 0, 1, 5]
    assert in_order(jobs, order="length_buckets", buckets=bounds) == [0, 2, 3, 1, 4, 5]


def test_a_prompt_of_exactly_a_bound_is_in_its_bucket():
    jobs = [job(11), job(10)]
    buckets = {"bounds_tokens": [10], "turn": "shortest_first"}
    assert in_order(jobs, order="length_buckets", buckets=buckets) == [1, 0]


def test_waiting_makes_up_for_priority():
    jobs = [job(priority=2), *(job(priority=0) for _ in range(6))]
    assert in_order(jobs, order="priority").index(0) == 6
    assert in_order(jobs, order="priority", ageing_per_s=0.5).index(0) == 3  # 0 s + 2 / 0.5 = 4 s
    assert in_order(jobs, order="priority", ageing_per_s=100.0) == list(range(7))


@settings(max_examples=50)
@given(priorities=st.lists(st.integers(0, 3), min_size=1, max_size=40), ageing=st.floats(0.05, 5))
def test_with_ageing_nobody_is_passed_by_who_comes_much_later(priorities, ageing):
    jobs = [job(priority=p) for p in priorities]
    place = {i: n for n, i in enumerate(in_order(jobs, order="priority", ageing_per_s=ageing))}
    for i, later in itertools.combinations(range(len(jobs)), 2):
        if later - i > priorities[i] / ageing + 1e-9:
            assert place[i] < place[later]


def test_without_ageing_the_low_starve_while_the_high_come():
    line = line_of(order="priority")
    low = job(priority=1)
    line.push(low, 0.0)
    for at_s in range(50):
        line.push(job(priority=0), float(at_s))
        assert line.pop() is not low


def fair(**share):
    return {"order": "weighted_fair", "fair": share}


@settings(max_examples=60)
@given(data=st.data())
def test_backlogged_flows_get_their_weighted_share_within_one_request_each(data):
    """|W_f/w_f - W_g/w_g| <= c_f/w_f + c_g/w_g over any span: Goyal et al. 1996, theorem 1."""
    weights = {name: data.draw(st.sampled_from([0.5, 1.0, 3.0])) for name in "abc"}
    share = {"tenants": weights}
    line = line_of(**fair(cost="prompt_tokens", **share))
    sizes = st.lists(st.integers(1, 40), min_size=30, max_size=30)
    jobs = {name: [job(n, tenant=name) for n in data.draw(sizes)] for name in "abc"}
    for each in itertools.chain(*zip(*jobs.values(), strict=True)):
        line.push(each, 0.0)
    left = {name: len(all_) for name, all_ in jobs.items()}
    had = [dict.fromkeys("abc", 0.0)]
    while all(left.values()):
        taken = line.pop()
        left[taken.tenant] -= 1
        had.append(had[-1] | {taken.tenant: had[-1][taken.tenant] + taken.prompt_tokens})
    largest = {name: max(j.prompt_tokens for j in all_) for name, all_ in jobs.items()}
    for f, g in itertools.combinations("abc", 2):
        bound = largest[f] / weights[f] + largest[g] / weights[g]
        lead = [row[f] / weights[f] - row[g] / weights[g] for row in had]
        assert max(lead) - min(lead) <= bound + 1e-9


def test_a_fair_line_serves_by_weight():
    share = {"cost": "requests", "tenants": {"a": 3.0}}
    line = line_of(**fair(**share))
    for name in "ab" * 40:
        line.push(job(tenant=name), 0.0)
    first = [line.pop().tenant for _ in range(40)]
    assert first.count("a") == 30


def test_flows_are_of_tenants_classes_or_both():
    names = [("a", "x"), ("a", "x"), ("a", "y"), ("b", "x"), ("b", "x")]
    jobs = [job(tenant=t, request_class=c) for t, c in names]
    assert in_order(jobs, **fair(by="tenant")) == [0, 3, 1, 4, 2]
    assert in_order(jobs, **fair(by="class")) == [0, 2, 1, 3, 4]
    assert in_order(jobs, **fair(by="tenant_and_class")) == [0, 2, 3, 1, 4]


def test_the_cost_is_of_requests_prompts_or_all_tokens():
    jobs = [job(10, 1, tenant="a"), job(10, 1, tenant="a"), job(1, 90, tenant="b")]
    jobs += [job(1, 90, tenant="b")]
    assert in_order(jobs, **fair(cost="requests")) == [0, 2, 1, 3]
    assert in_order(jobs, **fair(cost="prompt_tokens")) == [0, 2, 3, 1]
    assert in_order(jobs, **fair(cost="tokens")) == [0, 2, 1, 3]


def test_who_leaves_unserved_costs_its_flow_nothing():
    line = line_of(**fair(cost="requests"))
    gone = [job(tenant="a") for _ in range(50)]
    stays = [job(tenant="a"), job(tenant="a")]
    for each in (*gone, *stays, job(tenant="b"), job(tenant="b")):
        line.push(each, 0.0)
    for each in gone:
        line.remove(each)
    assert [line.pop().tenant for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_flow_that_was_away_saves_nothing_up():
    line = line_of(**fair(cost="requests"))
    for _ in range(10):
        line.push(job(tenant="a"), 0.0)
        line.pop()
    for name in "aaabbb":
        line.push(job(tenant=name), 1.0)
    assert [line.pop().tenant for _ in range(6)] == ["b", "a", "b", "a", "b", "a"]


def test_who_was_preempted_goes_first_and_is_not_charged_again():
    line = line_of(**fair(cost="requests"))
    one, two, other = job(tenant="a"), job(tenant="a"), job(tenant="b")
    for each in (one, two, other):
        line.push(each, 0.0)
    assert line.pop() is one
    line.push_front(one)
    assert [line.pop(), line.pop(), line.pop()] == [one, other, two]


def test_jobs_of_nobody_are_one_flow():
    line = line_of(**fair())
    jobs = [Job(prompt_tokens=9, output_tokens=1), Job(prompt_tokens=1, output_tokens=1)]
    for each in jobs:
        line.push(each, 0.0)
    assert served(line) == jobs


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_line_loses_nobody_and_serves_nobody_twice(rules, data):
    line, inside, since = line_of(**rules), [], {}
    line.count(lambda each: each.priority == 0)
    for step in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["push", "push", "pop", "remove", "front", "pass", "look"]))
        if act == "push" or not inside:
            new = job(
                data.draw(st.sampled_from([1, 10, 11, 200])),
                priority=data.draw(st.integers(0, 2)),
                tenant=data.draw(st.sampled_from("ab")),
                request_class=data.draw(st.sampled_from("xy")),
                leaves_s=data.draw(st.sampled_from([5.0, 9.0, math.inf])),
            )
            new.scheduler_queue_in_s = float(step)
            line.push(new, float(step))
            inside.append(new)
            since[new] = float(step)
        elif act in {"pop", "front"}:
            expected = line.first()
            taken = line.pop()
            assert taken is expected
            inside.remove(taken)
            since.pop(taken, None)
            if act == "front":
                line.push_front(taken)
                inside.append(taken)
                assert line.first() is taken or rules["order"] != "fifo"
        elif act == "remove":
            gone = data.draw(st.sampled_from(inside))
            assert line.remove(gone)
            assert not line.remove(gone)
            inside.remove(gone)
            since.pop(gone, None)
        elif act == "pass":
            before = line.first()
            line.pass_over()
            assert line.first() is not before
            line.return_passed()
            assert line.first() is before
        assert len(line) == len(inside)
        assert line.counted == sum(each.priority == 0 for each in inside)
        assert set(line) == set(inside)
        oldest = min(since.items(), key=lambda item: item[1], default=None)
        assert line.oldest() == (None if oldest is None else (oldest[1], oldest[0]))
    assert sorted(map(id, served(line))) == sorted(map(id, inside))
    assert line.first() is None
    assert line.oldest() is None
    assert line.counted == 0
    with pytest.raises(IndexError):
        line.pop()


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_passing_all_over_and_back_keeps_the_order(rules):
    line, jobs = line_of(**rules), []
    for at_s in range(12):
        jobs.append(job(at_s * 37 % 150 + 1, priority=at_s % 3, tenant="ab"[at_s % 2]))
        line.push(jobs[-1], float(at_s))
    twin = line_of(**rules)
    for at_s, each in enumerate(jobs):
        twin.push(each, float(at_s))
    for _ in jobs:
        line.first()
        line.pass_over()
    assert line.first() is None
    line.return_passed()
    assert served(line) == served(twin)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_cleared_line_is_as_new(rules):
    line, jobs = line_of(**rules), [job(n, tenant="ab"[n % 2]) for n in range(1, 6)]
    for each in jobs:
        line.push(each, 0.0)
    line.pop()
    left = list(line)
    assert line.clear() == left
    assert (len(line), line.first(), line.oldest()) == (0, None, None)
    for each in jobs:
        line.push(each, 1.0)
    assert sorted(map(id, served(line))) == sorted(map(id, jobs))


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"order": "lifo"}, "order"),
        ({"order": "fifo", "ageing_per_s": 1.0}, "ageing_per_s"),
        ({"order": "length_buckets", "ageing_per_s": 1.0}, "ageing_per_s"),
        ({"ageing_per_s": -1.0, "order": "priority"}, "ageing_per_s"),
        ({"buckets": {"bounds_tokens": []}}, "bounds_tokens"),
        ({"buckets": {"bounds_tokens": [9, 9]}}, "bounds_tokens"),
        ({"fair": {"tenants": {"a": 0.0}}}, "tenants.a"),
    ],
)
def test_bad_orders_are_told_by_their_field(rules, told):
    with pytest.raises(ValueError, match=told):
        line_of(**rules)
