"""The first page of a report: what its verdict holds for, in words."""

from capplan.report.summary import scope_lines

LENGTHS = {"min": 2.0, "p50": 1010.0, "p95": 4020.0, "max": 13900.0}
SCOPE = {
    "model": ["llama", "unnamed"],
    "input_distribution": {
        "chat": {"requests": 12870, "prompt_tokens": LENGTHS, "output_tokens": LENGTHS},
        "batch": {"requests": 3, "prompt_tokens": LENGTHS, "output_tokens": LENGTHS},
    },
    "load_range_rps": [3.21, 8.41],
    "window_s": [60.0, 3610.0],
    "backend": "simulated",
}


def test_a_scope_is_told_in_lines_with_units_a_class_each():
    told = dict(scope_lines(SCOPE))
    assert told["model"] == ["llama", "a pool that names none"]
    assert told["load"] == ["3.21 to 8.41 requests/s"]
    assert told["time judged"] == ["60 to 3,610 s from the start"]
    assert told["backend"] == ["simulated"]
    assert told["input distribution"][0] == (
        "chat: 12,870 requests, prompts of 2 to 13,900 tokens (p50 1,010, p95 4,020), "
        "outputs of 2 to 13,900 tokens (p50 1,010, p95 4,020)"
    )
    assert len(told["input distribution"]) == 2


def test_lengths_nobody_knows_are_told_as_unknown():
    unknown = dict.fromkeys(LENGTHS)
    one = {"chat": {"requests": 1, "prompt_tokens": unknown, "output_tokens": unknown}}
    (line,) = dict(scope_lines({"input_distribution": one}))["input distribution"]
    assert "prompts of unknown to unknown tokens" in line


def test_no_scope_is_no_line():
    assert scope_lines({}) == []
