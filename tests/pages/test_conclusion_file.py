import pytest

from capplan.evidence import artefact
from capplan.pages.conclusion import Conclusion, StudyPart, read_conclusion
from capplan.schema import DataError
from capplan.verdict import Reason


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
    parts = [{"part": "promises", "outcome": "retest", "finding": "too few", "artefact": ""}]
    artefact(tmp_path, "conclusion.json", {"verdict": verdict, "parts": parts})
    found = read_conclusion(tmp_path)
    assert [reason.rule for reason in found.held] == ["ttft_s"]
    assert [reason.rule for reason in found.open] == ["e2e_s"]
    assert found.verdict["outcome"] == "retest"
    assert found.verdict["scope"] == verdict["scope"]
    assert found.table().to_dict("records") == parts


def test_a_conclusion_reads_back_as_it_was_written(tmp_path):
    figures = ({"name": "goodput", "value": None, "unit": "requests/s"},)
    left = Conclusion(
        outcome="fail", parts=(StudyPart(part="load", outcome="fail", finding="too slow"),),
        reasons=(Reason(rule="ttft_s", outcome="fail", value=3.0, limit=2.0, evidence="late"),),
        figures=figures, warnings=("one",), assumptions=("two",),
    )  # fmt: skip
    artefact(tmp_path, "conclusion.json", left.to_json())
    assert read_conclusion(tmp_path).to_json() == left.to_json()


def test_an_outcome_that_does_not_exist_is_an_error(tmp_path):
    artefact(tmp_path, "conclusion.json", {"verdict": {"outcome": "fine"}})
    with pytest.raises(DataError, match=r"verdict\.outcome: one of blocked, .*, got 'fine'"):
        read_conclusion(tmp_path)


def test_a_reason_with_a_field_that_does_not_exist_is_an_error(tmp_path):
    artefact(tmp_path, "conclusion.json", {"verdict": {"reasons": [{"rul": "ttft_s"}]}})
    with pytest.raises(DataError, match="rul"):
        read_conclusion(tmp_path)
