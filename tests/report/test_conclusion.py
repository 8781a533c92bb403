import pytest

from capplan.evidence import artefact
from capplan.formatting import format_nested, format_value
from capplan.report.conclusion import read_conclusion
from capplan.schema import DataError


def test_no_conclusion_is_unknown_with_a_warning(tmp_path):
    found = read_conclusion(tmp_path)
    assert found.outcome == "unknown"
    assert found.warnings == ("No notebook left a conclusion.",)


def test_figures_may_be_a_list_or_a_mapping(tmp_path):
    artefact(tmp_path, "conclusion.json", {"figures": {"goodput": 3.5}})
    assert read_conclusion(tmp_path).figures == ({"name": "goodput", "value": 3.5},)
    artefact(tmp_path, "conclusion.json", {"figures": [{"name": "goodput", "value": 3.5}]})
    assert read_conclusion(tmp_path).figures == ({"name": "goodput", "value": 3.5},)


def test_reasons_are_told_apart_by_what_they_speak_for(tmp_path):
    reasons = [{"rule": "ttft_s", "outcome": "pass"}, {"rule": "e2e_s", "outcome": "retest"}]
    verdict = {"outcome": "retest", "reasons": reasons, "scope": {"backend": "simulated"}}
    parts = [{"part": "promises", "outcome": "retest", "said": "too few", "artefact": ""}]
    artefact(tmp_path, "conclusion.json", {"verdict": verdict, "parts": parts})
    found = read_conclusion(tmp_path)
    assert [reason["rule"] for reason in found.held] == ["ttft_s"]
    assert [reason["rule"] for reason in found.open] == ["e2e_s"]
    assert found.verdict == verdict
    assert found.parts == tuple(parts)


def test_an_outcome_that_does_not_exist_is_an_error(tmp_path):
    artefact(tmp_path, "conclusion.json", {"verdict": {"outcome": "fine"}})
    with pytest.raises(DataError, match=r"verdict\.outcome: one of pass, .*, got 'fine'"):
        read_conclusion(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (999.6, "1,000"),
        (-0.01234, "-0.0123"),
        ("inf", "no bound"),
        (None, "unknown"),
    ],
)
def test_figures_are_rounded_for_people(value, text):
    assert format_value(value) == text


def test_nothing_is_told_with_no_words():
    assert format_nested(None) == ""
    assert format_nested(["a", 2.0]) == "a, 2"
