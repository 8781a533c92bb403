"""OpenTelemetry spans: one row a model call, however many spans of it there are."""

import json

import capplan as cp

SECOND = 1_000_000_000
BEGIN = 1_772_442_000 * SECOND


def span(call, name, *, parent="", late_s=0.0, tokens=100, more=(), usage=True):
    attributes = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    if usage:
        attributes += [
            {"key": f"gen_ai.usage.{side}_tokens", "value": {"intValue": str(tokens)}}
            for side in ("input", "output")
        ]
    attributes += [{"key": key, "value": {"stringValue": value}} for key, value in more]
    start = BEGIN + call * SECOND + int(late_s * SECOND)
    ids = {"spanId": f"{name}{call}", "parentSpanId": parent and f"{parent}{call}"}
    times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(start + SECOND)}
    return {**ids, **times, "name": "chat", "attributes": attributes, "status": {}}


def document(path, spans):
    scope = {"scopeSpans": [{"spans": spans}]}
    path.write_text(json.dumps({"resourceSpans": [{"resource": {}, **scope}]}))
    return path


def test_spans_of_client_gateway_and_server_are_one_call(tmp_path):
    spans = []
    for call in range(50):
        work = {**span(call, "work", parent="client"), "attributes": [], "name": "retry loop"}
        spans += [span(call, "client"), work, span(call, "server", parent="work", late_s=0.1)]
    trace = cp.read_trace(document(tmp_path / "one.json", spans))
    assert len(trace) == 50
    assert trace.ledger.dropped == {"outer_span": 50, "other_span": 50}
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps(one) for one in reversed(spans)))
    assert len(cp.read_trace(lines)) == 50


def test_a_span_with_the_tokens_of_all_its_calls_is_no_call(tmp_path):
    spans = [span(0, "chain", tokens=300)]
    spans += [{**span(i, "call"), "parentSpanId": "chain0"} for i in range(3)]
    trace = cp.read_trace(document(tmp_path / "t.json", spans))
    assert trace.frame["prompt_tokens"].tolist() == [100, 100, 100]


def test_spans_that_name_an_error_are_demand(tmp_path):
    spans = [span(i, "ok") for i in range(30)]
    spans += [span(30 + i, "bad", usage=False, more=[("error.type", "429")]) for i in range(10)]
    trace = cp.read_trace(document(tmp_path / "t.json", spans))
    assert len(trace) == 40
    assert trace.ledger.changed["imputed_tokens"] == 10
