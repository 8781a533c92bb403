"""An attempt as it is sent."""

import math
from dataclasses import MISSING, fields

from capplan.simulation.attempt import Attempt, Request


def test_a_new_attempt_has_every_field_at_its_default():
    request = Request(3, "r", "chat", "x", "s", 2, True, 9.0, 7.0, 100, 50, 1.5, (4,), 16, 0.25)
    found = Attempt(request, 2, 2.5, 0.125)
    given = {
        "request": request, "attempt": 2, "intended_start_s": 2.5, "sent_s": 2.5,
        "handshake_s": 0.125, "prompt_tokens": 100, "output_tokens": 50, "priority": 2,
        "size": 7.0, "prefix_blocks": (4,), "prefix_block_tokens": 16, "cached_fraction": 0.25,
    }  # fmt: skip
    for field in fields(Attempt):
        wanted = given.get(field.name, field.default)
        value = getattr(found, field.name)
        assert wanted is not MISSING
        same = value == wanted or (math.isnan(value) and math.isnan(wanted))
        assert same, field.name
        assert type(value) is type(wanted), field.name
