"""Places kept for some, and running jobs preempted for waiting ones of higher priority."""

from dataclasses import dataclass

import pytest

from capplan.replica.compiled.engine import not_compiled
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import ContinuousBatching


class OneSecond:
    """A step time: every step takes a second."""

    def seconds(self, *terms):
        return 1.0


@dataclass(slots=True, eq=False)
class Known(Job):
    """A job that knows its class."""

    request_class: str = ""


def batching(**fields):
    given = {"max_num_seqs": 4, "kv_blocks": 1000, "scheduler": {}} | fields
    return ContinuousBatching.model_validate(given, strict=False)


def engine_of(**fields):
    rules = batching(**fields)
    return ContinuousEngine(rules, step_time=OneSecond(), kv_blocks=rules.kv_blocks)


def job(name="", *, prompt=16, output=100, priority=0):
    return Known(prompt, output, priority, request_class=name)


class Played:
    """An engine and its clock."""

    def __init__(self, **fields):
        self.engine = engine_of(**fields)
        self.now_s = 0.0

    def come(self, *jobs):
        for each in jobs:
            each.scheduler_queue_in_s = self.now_s
            self.engine.waiting.push(each, self.now_s)

    def step(self, times=1):
        left = []
        for _ in range(times):
            self.engine.begin(self.now_s)
            self.now_s += 1.0
            left += self.engine.end(self.now_s)
        return left

    def running(self):
        return list(self.engine.running)


RESERVED = {"reserved": [{"classes": ["chat"], "fraction": 0.5}]}
PREEMPTS = {"scheduler": {"order": "priority"}, "priority_preemption": True}


def test_a_share_that_is_whole_sequences_is_not_one_less_by_rounding():
    """0.29 of 100 is 28.999999999999996 in floating point."""
    reserved = [{"classes": ["chat"], "fraction": 0.29, "kv_fraction": 0.29}]
    played = Played(max_num_seqs=100, kv_blocks=9000, reserved=reserved)
    played.come(*(job("batch") for _ in range(100)))
    played.step()
    assert len(played.running()) == 71
    assert batching(reserved=reserved).reserved[0].blocks(100) == 29


def test_a_reservation_of_no_place_is_an_error():
    with pytest.raises(ValueError, match=r"reserved: at least one of max_num_seqs 4, got .* 0.2"):
        batching(reserved=[{"classes": ["chat"], "fraction": 0.2}])


def test_others_leave_the_reserved_places_free():
    played = Played(**RESERVED)
    others = [job("batch") for _ in range(4)]
    chats = [job("chat") for _ in range(3)]
    played.come(*others)
    played.step(3)
    assert played.running() == others[:2]
    played.come(*chats)
    played.step()
    assert played.running() == [*others[:2], *chats[:2]]


def test_the_covered_may_take_the_other_places_too():
    played = Played(**RESERVED)
    chats = [job("chat") for _ in range(5)]
    played.come(*chats)
    played.step()
    assert played.running() == chats[:4]


def test_a_reservation_in_use_keeps_nothing_more_free():
    played = Played(**RESERVED)
    mixed = [job("chat"), job("chat"), job("batch"), job("batch")]
    played.come(*mixed)
    played.step()
    assert played.running() == mixed


def test_who_may_not_take_a_place_stops_nobody_behind():
    played = Played(**RESERVED)
    line = [job("batch") for _ in range(3)] + [job("chat")]
    played.come(*line)
    played.step()
    assert played.running() == [line[0], line[1], line[3]]
    assert list(played.engine.waiting) == [line[2]]


def test_reservations_of_classes_and_priorities_add_up():
    played = Played(
        reserved=[
            {"classes": ["chat"], "fraction": 0.25},
            {"priority_at_most": -1, "fraction": 0.25},
        ]
    )
    others, urgent = [job("batch") for _ in range(4)], job("batch", priority=-1)
    chat = job("chat")
    played.come(*others, urgent, chat)
    played.step()
    assert played.running() == [*others[:2], urgent, chat]


def test_alone_anybody_runs_whatever_is_reserved():
    played = Played(max_num_seqs=2, reserved=[{"classes": ["chat"], "fraction": 0.9}])
    one = job("batch", output=2)
    played.come(one)
    played.step()
    assert played.running() == [one]


def test_others_leave_the_reserved_blocks_free():
    """10 blocks, half of them kept: each prompt takes 2 and then a third."""
    reserved = [{"classes": ["chat"], "fraction": 0.25, "kv_fraction": 0.5}]
    played = Played(kv_blocks=10, reserved=reserved)
    others, chat = [job("batch", prompt=30) for _ in range(3)], job("chat", prompt=70)
    played.come(*others)
    played.step()
    assert played.running() == others[:2]
    played.come(chat)
    played.step()
    assert played.running() == [*others[:2], chat]


def test_blocks_that_the_covered_hold_are_not_kept_once_more():
    reserved = [{"classes": ["chat"], "fraction": 0.25, "kv_fraction": 0.5}]
    played = Played(kv_blocks=10, reserved=reserved)
    line = [job("chat", prompt=70), job("batch", prompt=30), job("batch", prompt=30)]
    played.come(*line)
    played.step()
    assert played.running() == line[:3]


def test_nobody_looks_past_the_first_while_no_covered_job_waits():
    played = Played(**RESERVED)
    played.come(*(job("batch") for _ in range(50)))
    passed = []
    played.engine.waiting.pass_over = lambda: passed.append(1)
    played.step(3)
    assert passed == []


def test_a_higher_priority_takes_the_place_of_the_lowest():
    played = Played(**PREEMPTS)
    low = [job(priority=p) for p in (1, 3, 2, 3)]
    played.come(*low)
    played.step(2)
    high = job(priority=0)
    played.come(high)
    played.step()
    assert high in played.running()
    (gone,) = set(low) - set(played.running())
    assert gone is low[3]
    assert played.engine.preemptions == 1
    assert gone.generated_tokens == 2


def test_equals_and_higher_are_not_preempted():
    played = Played(**PREEMPTS)
    running = [job(priority=p) for p in (0, 1, 1, 0)]
    played.come(*running)
    played.step(2)
    played.come(job(priority=1))
    played.step(2)
    assert set(played.running()) == set(running)
    assert played.engine.preemptions == 0


def test_without_the_option_nobody_makes_way():
    played = Played(scheduler={"order": "priority"})
    running = [job(priority=1) for _ in range(4)]
    played.come(*running)
    played.step(2)
    played.come(job(priority=0))
    played.step(2)
    assert set(played.running()) == set(running)


def test_blocks_are_freed_as_well_as_places():
    played = Played(**PREEMPTS, kv_blocks=10, block_size=16)
    low = [job(prompt=70, output=5, priority=1), job(prompt=70, output=5, priority=2)]
    played.come(*low)
    played.step()
    assert played.running() == low
    high = job(prompt=60, output=5, priority=0)
    played.come(high)
    played.step()
    assert played.running() == [low[0], high]


def test_the_preempted_is_computed_again_and_ends_with_every_token():
    played = Played(**PREEMPTS, max_num_seqs=1)
    low, high = job(output=10, priority=1), job(output=3, priority=0)
    played.come(low)
    played.step(4)
    played.come(high)
    assert played.step(3) == [high]
    assert played.step(6) == [low]
    assert low.generated_tokens == 10
    assert low.prefilled_tokens == 16 + 16 + 4
    assert played.engine.kv.free == played.engine.kv.total


def test_several_make_way_in_one_step():
    played = Played(**PREEMPTS)
    played.come(*(job(priority=5) for _ in range(4)))
    played.step()
    high = [job(priority=1) for _ in range(3)]
    played.come(*high)
    played.step()
    assert set(high) < set(played.running())
    assert played.engine.preemptions == 3


@pytest.mark.parametrize("fields", [RESERVED, PREEMPTS, {"poison": "batch"}])
def test_these_options_have_no_compiled_steps(fields):
    from capplan.scenario.step_times import LinearStep

    law = LinearStep(base_s=1.0, per_prefill_token_s=0, per_sequence_s=0, per_context_token_s=0)
    assert not_compiled(batching(**fields), law)


@pytest.mark.parametrize("order", ["weighted_fair", "length_buckets"])
def test_these_orders_have_no_compiled_steps(order):
    assert "scheduler.order" in not_compiled(batching(scheduler={"order": order}), OneSecond())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reserved": [{"fraction": 0.5}]}, "classes or priority_at_most"),
        ({"reserved": [{"classes": ["a"], "fraction": 1.0}]}, "fraction"),
        ({"reserved": [{"classes": ["a"], "fraction": 0.5}] * 2}, "sum to less than 1"),
        (
            {"reserved": [{"classes": ["a"], "fraction": 0.1, "kv_fraction": 0.5}] * 2},
            "sum to less than 1",
        ),
        ({"priority_preemption": True}, "priority_preemption needs scheduler.order priority"),
        (PREEMPTS | {"scheduler": {"order": "priority", "ageing_per_s": 1.0}}, "without ageing"),
        ({"poison": "both"}, "poison"),
    ],
)
def test_errors_name_the_wrong_field(fields, told):
    with pytest.raises(ValueError, match=told):
        batching(**fields)
