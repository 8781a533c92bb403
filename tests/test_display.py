"""Figures in words: units by suffix, nothing measured is unknown, tables that say it once."""

import math

import pandas as pd
import pytest

import capplan as cp
from capplan.display import once
from capplan.pages import format_value, listed, rule_words, table


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (0.01234, "ttft_s", "12.3 ms"),
        (90.0, "_s", "1.5 min"),
        (0.0, "_s", "0 ms"),
        (0.995, "_fraction", "99.5 %"),
        (5.574, "_rps", "5.57 requests/s"),
        (1234.0, "_tokens", "1,230 tokens"),
        (-0.0441, "", "-0.0441"),
        (math.inf, "_s", "no bound"),
    ],
)
def test_a_figure_is_told_with_its_unit_and_three_digits(value, name, text):
    assert format_value(value, name) == text


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_was_not_measured_is_unknown_and_never_zero(value):
    assert format_value(value, "_rps") == "unknown"


def test_a_table_has_the_unit_in_its_heading_and_unknown_where_nothing_is():
    frame = pd.DataFrame({"who": ["a<b"], "rate_rps": [1.5], "wait_s": [math.nan], "n": [3]})
    html = table(frame)._repr_html_()
    assert "rate (requests/s)" in html
    assert ">1.5<" in html
    assert "unknown" in html
    assert "a&lt;b" in html
    assert repr(table(frame)).splitlines()[0].startswith("who  rate")


def test_a_table_of_nothing_says_nothing():
    assert table(pd.DataFrame({"who": []}))._repr_html_() == "<p>Nothing.</p>"


def test_lists_and_rules_read_as_words():
    assert listed(["chat"]) == "chat"
    assert listed([]) == "none"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert rule_words("error_rate_fraction") == "error rate"


def test_a_long_text_that_repeats_the_row_above_is_not_said_again():
    told = once(pd.Series(["503", "503", "429", "", ""]))
    assert told.tolist() == ["503", "as above", "429", "", ""]


@pytest.fixture(scope="module")
def shown_results():
    """Return one small study's results, by name."""
    scenario = cp.load_scenario("benchmark", values={"requests": 300})
    trace = cp.draw(scenario, seed=1)
    result = cp.simulate(scenario, trace=trace, seed=1)
    return {
        "profile": cp.profile(trace),
        "budget": cp.allocate(scenario, trace=trace),
        "run": result,
        "verdict": cp.judge(result, scenario),
    }


@pytest.mark.parametrize("name", ["profile", "budget", "run", "verdict"])
def test_a_result_shows_the_same_summary_and_table_as_text_and_as_html(shown_results, name):
    result = shown_results[name]
    headings = table(result.table()).headings
    assert result.as_text().startswith(str(result))
    assert all(heading in result.as_text() for heading in headings)
    html = result._repr_html_()
    assert html.startswith("<p>")
    assert html.count("<th ") == len(headings)
    assert "nan" not in str(result)


@pytest.mark.parametrize("name", ["profile", "budget", "run"])
def test_a_result_draws_its_chart(shown_results, name):
    assert shown_results[name].chart().to_dict()["$schema"]
