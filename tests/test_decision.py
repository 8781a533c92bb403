"""The decision: one configuration, failing clauses first, what was not run is unknown."""

import json

import pytest

import capplan as cp
from capplan.cli import main
from capplan.decision import Decision
from capplan.encoding import to_text

SCENARIO = cp.load_scenario("chat-service", values={"traffic.duration_s": 60.0})


def row(name, outcome="pass", replicas=3, load=5.0):
    return {"row": name, "outcome": outcome, "judged_rps": load, "replicas": replicas,
            "class_group": "chat, assistant", "evidence": f"{name} evidence"}  # fmt: skip


def reason(rule, outcome, **more):
    return {"rule": rule, "outcome": outcome, "evidence": f"{rule} evidence", **more}


def sized(*, replicas=(2, 3), rows=(), reasons=()):
    table = {r: row(r) for r in ("stable load", "acceptable peak", "burst protection",
                                 "failure degradation")}  # fmt: skip
    table |= {one["row"]: one for one in rows}
    found = [reason("own_replicas", "pass"), *reasons]
    return {
        "run_id": "sized0",
        "pool": "llm",
        "replicas": dict(zip(("0", "1"), replicas, strict=True)),
        "answer": "There are 3 replicas.",
        "capacity_table": list(table.values()),
        "failure_margin": [
            {"lose": {"count": n}, "replicas": 3, "recovery_s": 42.0, "shed": []} for n in (0, 1)
        ],
        "notes": ["Lost replicas are back after 180 s."],
        "verdict": {"outcome": "pass", "reasons": found},
    }


def loaded(*, kept=12.0, outcome="pass", first=True, reasons=(), peak=8.0):
    point = {"request_class": "chat", "promise": "tpot_s", "layer": "decode", "load_rps": 14.0,
             "interval": [11.0, "inf"], "run_id": "broken0"}  # fmt: skip
    acts = {"gateway.queue.length": True, "classes.chat.retry": True, "gateway.concurrency": False}
    planned = reason("planned_load", outcome, value=kept, limit=8.0)
    return {
        "run_id": "loaded0",
        "loads": {"peak_rps": peak},
        "stages": [{"kind": "ramp", "load_rps": 14.0}],
        "first_degradation": point if first else None,
        "protective_actions": [
            {"boundary": name, "acted": acted, "action": "503", "first_at_rps": 13.0}
            for name, acted in acts.items()
        ],
        "verdict": {"outcome": outcome, "reasons": [planned, *reasons]},
    }


def clause(decision, start):
    [found] = [one for one in decision.clauses if one.clause.startswith(start)]
    return found


def test_every_clause_of_a_passing_study_names_its_run():
    found = cp.decide(SCENARIO, sized(), loaded(), assumed=["40 of 50 requests are cut."])
    assert found.outcome == "pass"
    assert found.replicas == 3
    assert "3 replicas of meta-llama/Llama-3.1-8B" in clause(found, "Run").text
    assert "5,110 USD a month" in clause(found, "Run").text  # (3 x 2 + 1) USD/h x 730 h
    text = clause(found, "Every promise").text
    assert text.startswith("12 requests/s of all classes")
    assert "planned peak 8 requests/s" in text
    assert "surely up to 11" in text
    first = clause(found, "First to break")
    assert "between 11 requests/s and no bound" in first.text
    assert (first.evidence, "gateway.queue.length" in first.text) == ("broken0", True)
    assert "concurrency" not in first.text  # it did not act
    assert clause(found, "With 1 lost").evidence == "sized0"
    assert "recovery: 42 s" in clause(found, "With 1 lost").text
    assert "back after 180 s" in clause(found, "Rests on").text
    assert "40 of 50 requests are cut" in clause(found, "Rests on").text
    assert found.settings["pools.llm.batching.max_num_seqs"] == 64
    assert isinstance(found.settings["gateway.concurrency"], int)  # derived, as a number


def test_a_clause_that_fails_comes_first_and_decides():
    found = cp.decide(SCENARIO, sized(rows=[row("burst protection", "fail")]), loaded())
    assert (found.clauses[0].clause, found.outcome) == ("Burst", "fail")


@pytest.mark.parametrize("kind", ["sized", "loaded"])
def test_a_reason_that_no_clause_is_about_is_not_lost(kind):
    extra = [reason("cost_usd_per_success", "fail", request_class="chat")]
    parts = {"sized": sized(), "loaded": loaded()}
    parts[kind] = {"sized": sized, "loaded": loaded}[kind](reasons=extra)
    found = cp.decide(SCENARIO, *parts.values())
    assert found.outcome == "fail"
    assert "cost per success" in found.clauses[0].text


def test_a_planned_peak_that_is_not_carried_fails():
    found = cp.decide(SCENARIO, sized(), loaded(kept=6.0, outcome="fail"))
    assert found.clauses[0].clause == "Every promise holds up to"
    assert found.outcome == "fail"


def test_what_was_run_with_other_replicas_is_unknown_for_the_decision():
    own = cp.load_scenario("chat-service", values={"replicas": 1, "traffic.duration_s": 60.0})
    rows = [row("burst protection", replicas=2)]
    short = sized(rows=rows, reasons=[reason("own_replicas", "fail")])
    found = cp.decide(own, short, loaded())
    assert found.replicas == 3
    assert found.settings["pools.llm.replicas"] == 3
    assert found.clauses[0].clause == "Run"  # the scenario's own do not suffice
    assert clause(found, "Burst").outcome == "unknown"
    assert "14" not in clause(found, "First to break").text  # of one replica
    blocked = loaded(reasons=[reason("double_queue", "blocked")])
    found = cp.decide(own, short, blocked)
    assert found.outcome == "blocked"  # as the whole study is
    assert "own 1" in clause(found, "Load stages").clause
    assert {"Burst", "First to break beyond"} <= set(
        clause(found, "Not known").text.replace(" and ", ", ").split(", ")
    )


def test_without_any_run_nothing_passes():
    found = cp.decide(SCENARIO, None)
    assert found.outcome == "unknown"
    assert all(one.outcome in ("unknown", "states") for one in found.clauses)


def test_a_ramp_alone_says_how_far_it_holds_and_the_rest_is_unknown():
    found = cp.decide(SCENARIO, None, loaded())
    assert found.outcome == "unknown"
    assert clause(found, "Every promise").outcome == "pass"
    assert {clause(found, name).outcome for name in ("Run", "With", "Burst")} == {"unknown"}


def test_steps_with_the_traces_own_gaps_state_their_mean_beside_the_peak():
    text = clause(cp.decide(SCENARIO, sized(), loaded(peak=11.0)), "Every promise").text
    assert "a mean of 12 requests/s" in text
    assert "planned peak 11 requests/s" in text
    assert "mean of 8 requests/s" in text


def test_a_row_that_does_not_apply_and_defaults_are_not_stated_as_limits():
    none = row("burst protection", "does not apply", load=None)
    found = cp.decide(SCENARIO, sized(rows=[none]), loaded())
    assert (clause(found, "Burst").outcome, found.outcome) == ("states", "pass")
    assert clause(found, "Burst").text == "burst protection evidence"
    elastic = cp.load_scenario("protected-chat", values={"traffic.duration_s": 60.0})
    settings = cp.decide(elastic, None).settings
    assert any("autoscaler.max_replicas" in path for path in settings)
    assert not any("scale_up" in path or "step_time" in path for path in settings)


def test_no_number_that_holds_is_no_number():
    found = cp.decide(SCENARIO, sized(replicas=(2, None), reasons=[
        reason("failure_margin", "fail")]))  # fmt: skip
    assert (found.replicas, found.outcome) == (None, "fail")


def test_a_price_of_the_catalogue_has_its_date_and_a_missing_one_is_unknown():
    values = {"pools.llm.price_usd_per_accelerator_hour": None, "traffic.duration_s": 60.0}
    found = cp.decide(cp.load_scenario("chat-service", values=values), sized())
    assert "list price of 20" in clause(found, "Run").text
    none = values | {"pools.labelling.price_usd_per_accelerator_hour": None}
    found = cp.decide(cp.load_scenario("chat-service", values=none), sized())
    assert "cost unknown" in clause(found, "Run").text


def test_a_decision_is_the_same_after_it_was_written():
    found = cp.decide(SCENARIO, sized(), loaded(first=False))
    again = Decision.from_json(json.loads(to_text(found.to_json())))
    assert again.summary() == found.summary()
    assert again.to_json() == found.to_json()


def test_size_prints_and_returns_the_decision_first(capsys):
    words = ["size", "benchmark", "--set", "requests=400", "--most", "3", "--lose", "0"]
    assert main([*words, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    decision = Decision.from_json(written["decision"])
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(decision.as_text())
    assert clause(decision, "Run").evidence == written["run_id"]
