"""A page opens a study, finds what others left, and leaves its own."""

import pytest

from capplan import pages
from capplan.scenario.files import load_scenario, write_scenario
from capplan.schema import DataError
from capplan.traffic.draw import draw


def test_a_page_leaves_and_finds_artefacts_in_its_run_folder(tmp_path):
    page = pages.open_page("chat-service", run_folder=str(tmp_path / "run"))
    assert page.find("profile.json") is None
    page.leave("profile.json", {"rate_rps": float("nan")})
    found = page.find("profile.json")
    assert {name: found[name] for name in found if name != "study"} == {"rate_rps": None}


def test_a_page_run_by_hand_has_a_folder_named_by_the_scenario():
    assert pages.open_page("chat-service").folder.as_posix() == "runs/chat-service"


def test_values_are_set_by_dotted_path():
    page = pages.open_page("chat-service", budget__prompt_quantile=0.5)
    assert page.scenario.budget.prompt_quantile == 0.5


def test_a_trace_that_is_not_there_is_an_error():
    with pytest.raises(DataError, match="no-such-trace"):
        pages.open_page("chat-service", trace="no-such-trace.csv")


def test_classes_keep_the_order_of_the_scenario():
    page = pages.open_page("chat-service", requests=200)
    frame = page.in_order(draw(page.scenario).frame)
    assert list(frame["request_class"].cat.categories) == ["chat", "assistant", "batch"]


def test_without_a_kernel_there_is_no_reader():
    assert not pages.has_reader()


def test_a_headless_kernel_has_no_reader_and_a_front_end_has(monkeypatch):
    class Kernel:
        _allow_stdin = False

    class Shell:
        kernel = Kernel()

    monkeypatch.setattr("IPython.core.getipython.get_ipython", Shell)
    assert not pages.has_reader()
    monkeypatch.setenv("VOILA_KERNEL_ID", "1")
    assert pages.has_reader()
    monkeypatch.delenv("VOILA_KERNEL_ID")
    monkeypatch.setattr(Kernel, "_allow_stdin", True)
    assert pages.has_reader()


def test_what_another_scenario_left_in_the_folder_is_not_found(tmp_path):
    place = {"run_folder": str(tmp_path)}
    left = pages.open_page("benchmark", **place, stages__factor=1.5)
    left.leave("budget.json", {"verdict": "pass"})
    same = pages.open_page("benchmark", **place, requests=500)
    assert same.find("budget.json")["verdict"] == "pass"
    other = load_scenario("benchmark", values={"replicas": 7})
    (tmp_path / "other.yaml").write_text(write_scenario(other), encoding="utf-8")
    other_page = pages.open_page(str(tmp_path / "other.yaml"), **place)
    assert other_page.find("budget.json") is None


def test_a_page_names_the_choice_of_03_if_there_is_one_that_differs(tmp_path):
    page = pages.open_page("benchmark", run_folder=str(tmp_path))
    now = {"max_num_seqs": 64}
    texts = []
    for fields in (now, {"max_num_seqs": 32}, {"max_num_seqs": None}):
        page.leave("chosen_point.json", {"pools": [{"pool": "p", "now": now, "fields": fields}]})
        texts.append(page.batching())
    own, other, none = texts
    assert "`p` max_num_seqs 64" in own
    assert "page 03" not in own
    assert "max_num_seqs 32" in other
    assert "page 03" in none
    assert "None" not in none
