import io
import sys
import time

import pytest

from capplan import progress
from capplan.progress import Work, fraction_of, shown, work


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_inner_work_is_one_part_of_the_outer():
    outer = Work("size", total=4, done=1)
    assert fraction_of([outer, Work("run", total=2, done=1)]) == pytest.approx(0.375)
    assert fraction_of([outer, Work("run", reading=lambda: 7.0)]) == pytest.approx(0.5)
    assert fraction_of([]) == 0.0


def ran(stream, monkeypatch, *, always=False, quiet_s=0.0, done=1):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    with shown(always=always), work("size", total=2) as own:
        own.done = done
        with work("3 replicas"):
            time.sleep(0.2)
    return stream.getvalue()


def test_a_terminal_shows_one_line_that_is_gone_at_the_end(monkeypatch):
    text = ran(Terminal(), monkeypatch)
    assert "size › 3 replicas: 50 %" in text
    assert "\n" not in text
    *_, cleared, _ = text.split("\r")
    assert not cleared.strip()


def test_a_log_stays_clean_unless_progress_is_asked_for(monkeypatch):
    assert ran(io.StringIO(), monkeypatch) == ""
    lines = ran(io.StringIO(), monkeypatch, always=True).splitlines()
    assert lines
    assert all(one.startswith("size › 3 replicas: 50 %") for one in lines)


def test_the_time_left_follows_from_the_pace_and_is_unknown_before_anything_is_done(monkeypatch):
    lines = ran(io.StringIO(), monkeypatch, always=True, done=0).splitlines()
    assert lines[-1].endswith("? left")
    elapsed = ran(io.StringIO(), monkeypatch, always=True).splitlines()[-1]
    assert elapsed.endswith("00:00 so far, 00:00 left")


def test_a_short_command_shows_nothing(monkeypatch):
    assert ran(Terminal(), monkeypatch, quiet_s=5.0) == ""
    assert not progress._under_way
