"""One row a call: tries, repeated ids, rows logged twice and counts of an interval."""

import numpy as np
import pytest

import capplan as cp
from capplan.schema import DataError

HEADER = "arrival_s,prompt_tokens,output_tokens"
RNG = np.random.default_rng(6)
CALLS = [
    (f"{t:.3f}", int(p), int(o))
    for t, p, o in zip(
        np.cumsum(RNG.exponential(2.0, 100)),
        RNG.integers(10, 5000, 100),
        RNG.integers(5, 500, 100),
        strict=True,
    )
]


def read(tmp_path, rows, header=HEADER):
    rows = sorted(rows, key=lambda row: float(row[0]))
    file = tmp_path / "t.csv"
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
    return cp.read_trace(file)


@pytest.mark.parametrize("begin", [0, 1])
def test_further_tries_are_no_calls(tmp_path, begin):
    rows = [(*call, begin, 200) for call in CALLS]
    rows += [(f"{float(t) + 5:.3f}", p, 0, begin + 1, 504) for t, p, _ in CALLS[:30]]
    trace = read(tmp_path, rows, f"{HEADER},attempt,status")
    assert len(trace) == 100
    assert trace.ledger.dropped == {"retry": 30}
    assert trace.frame["output_tokens"].tolist() == [o for _, _, o in CALLS]


def test_a_repeated_id_begins_with_its_first_row_and_has_the_lengths_of_its_answer(tmp_path):
    rows = [(*call, f"r{i}", 200) for i, call in enumerate(CALLS)]
    refused = [(t, p, "", f"r{i}", 503) for i, (t, p, _) in enumerate(CALLS[:40])]
    late = [(f"{float(t) + 3:.3f}", p, o, name, code) for t, p, o, name, code in rows[:40]]
    trace = read(tmp_path, [*refused, *late, *rows[40:]], f"{HEADER},request_id,status")
    assert trace.ledger.dropped == {"duplicate_id": 40}
    assert trace.ledger.changed.get("imputed_tokens", 0) == 0
    assert trace.frame["arrival_s"].tolist() == [float(t) for t, _, _ in CALLS]
    assert trace.frame["output_tokens"].tolist() == [o for _, _, o in CALLS]


def test_calls_logged_twice_are_refused_and_a_few_are_named(tmp_path):
    with pytest.raises(DataError, match=r"each call once.*100 rows \(50 %\)"):
        read(tmp_path, CALLS * 2)
    some = read(tmp_path, CALLS + CALLS[50:75])
    assert len(some) == 125
    assert any("25 rows (20 %) have the time" in note for note in some.notes)


def test_calls_that_are_all_alike_and_rows_with_ids_are_no_copies(tmp_path):
    alike = [(t, 512, 128) for t, _, _ in CALLS]
    assert len(read(tmp_path, alike * 2)) == 200
    rows = [(*call, i) for i, call in enumerate(CALLS * 2)]
    assert len(read(tmp_path, rows, f"{HEADER},id")) == 200


def test_counts_of_an_interval_are_no_calls(tmp_path):
    rows = [(60 * i, 24_000, 6_000, 30) for i in range(25)]
    with pytest.raises(DataError, match=r"requests: one row a call.*750 in 25 rows"):
        read(tmp_path, rows, f"{HEADER},requests")
    assert len(read(tmp_path, [(*call, 1) for call in CALLS], f"{HEADER},requests")) == 100
