import pytest

from capplan.replica.job import Job
from capplan.replica.waiting import waiting_line
from capplan.scenario.layers import Queue


def job(priority=0):
    return Job(prompt_tokens=1, output_tokens=1, priority=priority)


def line_of(order, **fields):
    return waiting_line(Queue(order=order, **fields))


def test_fifo_ignores_priority():
    line, (one, two) = line_of("fifo"), (job(5), job(1))
    line.push(one, 0.0)
    line.push(two, 0.0)
    assert [line.pop(), line.pop()] == [one, two]


def test_lower_priority_goes_first_and_equals_by_arrival():
    line, jobs = line_of("priority"), [job(1), job(0), job(1), job(0)]
    for each in jobs:
        line.push(each, 0.0)
    assert [line.pop() for _ in jobs] == [jobs[1], jobs[3], jobs[0], jobs[2]]


def test_the_front_is_before_all_of_its_priority_only():
    line, (low, high, back) = line_of("priority"), (job(1), job(0), job(1))
    line.push(low, 0.0)
    line.push(high, 0.0)
    line.push_front(back)
    assert [line.pop(), line.pop(), line.pop()] == [high, back, low]


def test_the_oldest_is_the_longest_waiting_whatever_the_order():
    line, (low, high) = line_of("priority"), (job(1), job(0))
    line.push(low, 1.0)
    line.push(high, 2.0)
    assert line.oldest() == (1.0, low)
    line.remove(low)
    assert line.oldest() == (2.0, high)
    line.pop()
    assert line.oldest() is None


def test_who_was_removed_is_passed_over_and_counted_once():
    line, (one, two) = line_of("fifo"), (job(), job())
    line.push(one, 0.0)
    line.push(two, 0.0)
    assert line.remove(one)
    assert not line.remove(one)
    assert (len(line), one in line, two in line) == (1, False, True)
    assert line.first() is two
    assert line.pop() is two
    assert line.first() is None
    with pytest.raises(IndexError):
        line.pop()
