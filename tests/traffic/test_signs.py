"""Decimal signs, grouping and units: proven by the file, or refused with both readings."""

import numpy as np
import pytest

import capplan as cp
from capplan.schema import DataError

TIMES = np.cumsum(np.random.default_rng(1).exponential(1.0, 60))
TOKENS = np.random.default_rng(2).integers(20, 3000, 60)


def write(path, times, tokens, *, sep=",", header=("timestamp", "prompt_tokens", "output_tokens")):
    rows = [sep.join((t, n, "20")) for t, n in zip(times, tokens, strict=True)]
    path.write_text("\n".join([sep.join(header), *rows]), encoding="utf-8")
    return path


def as_it_is(file):
    frame = cp.read_trace(file).frame
    good = (frame["prompt_tokens"].tolist() == TOKENS.tolist()) and np.allclose(
        np.diff(frame["arrival_s"]), np.diff(TIMES), atol=2e-3
    )
    return bool(good)


@pytest.mark.parametrize("places", [1, 3, 6])
@pytest.mark.parametrize("group", ["", "."])
def test_a_european_table_has_its_own_rate_and_lengths(tmp_path, places, group):
    times = [f"{t:.{places}f}".replace(".", ",") for t in TIMES.round(places)]
    file = write(tmp_path / "t.csv", times, [f"{n:,}".replace(",", group) for n in TOKENS], sep=";")
    frame = cp.read_trace(file).frame
    assert frame["prompt_tokens"].tolist() == TOKENS.tolist()
    assert np.diff(frame["arrival_s"]).sum() == pytest.approx(np.ptp(TIMES), abs=0.2)
    assert any("Decimal comma" in note for note in cp.read_trace(file).notes)


def test_thousands_of_tokens_are_no_units(tmp_path):
    file = write(tmp_path / "t.csv", ["1.5", "2.5", "3.5"], ["1.000", "87", "2.000"])
    assert cp.read_trace(file).frame["prompt_tokens"].tolist() == [1000, 87, 2000]
    file = write(tmp_path / "t.csv", ["1.5", "2.5", "3.5"], ["100.000", "87.000", "200.000"])
    assert cp.read_trace(file).frame["prompt_tokens"].tolist() == [100, 87, 200]


def test_commas_that_read_both_ways_are_refused(tmp_path):
    file = write(tmp_path / "t.csv", ["1,500", "2,500"], ["10", "10"], sep="\t")
    with pytest.raises(DataError, match=r"t\.csv: .*1500 or 1\.500"):
        cp.read_trace(file)


def test_english_grouping_stays(tmp_path):
    file = write(tmp_path / "t.csv", [f"{t:.3f}" for t in TIMES], [f'"{n:,}"' for n in TOKENS])
    assert as_it_is(file)


def test_days_of_a_spreadsheet_are_no_seconds(tmp_path):
    file = write(
        tmp_path / "t.csv", [f"{46085.4 + t / 86400:.8f}" for t in TIMES], map(str, TOKENS)
    )
    with pytest.raises(DataError, match="spreadsheet"):
        cp.read_trace(file)
    late = write(tmp_path / "t.csv", [f"{46085.4 + 100 * t:.3f}" for t in TIMES], map(str, TOKENS))
    assert len(cp.read_trace(late)) == 60


def test_a_row_for_each_token_is_no_request(tmp_path):
    header = ("timestamp", "request_id", "output_tokens", "prompt_tokens")
    rows = [(f"{t + k / 50:.3f}", f"r{i}") for i, t in enumerate(TIMES) for k in range(5)]
    file = tmp_path / "t.csv"
    lines = [",".join(header), *(f"{t},{r},1,10" for t, r in rows)]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match="one row a request"):
        cp.read_trace(file)


MEASURED = ("sent_s", "ttft_s", "e2e_s", "prompt_tokens", "output_tokens")


def measured(path, rows, header=MEASURED, sep=","):
    lines = [sep.join(header), *(sep.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return cp.read_measured(path)


def test_milliseconds_named_so_are_read_and_named_seconds_are_refused(tmp_path):
    file = tmp_path / "run.csv"
    rows = [(f"{t:.3f}", 300, 2000, 10, 20) for t in TIMES]
    found = measured(file, rows, ("sent_s", "ttft_ms", "e2e_ms", *MEASURED[3:])).requests
    assert found["e2e_s"].tolist() == [2.0] * 60
    with pytest.raises(DataError, match="latencies in s"):
        measured(file, rows)
    with pytest.raises(DataError, match="starts in s"):
        measured(file, [(round(1000 * t), 0.3, 2, 10, 20) for t in TIMES])


def test_a_european_measured_table_is_read(tmp_path):
    rows = [(f"{t:.3f}".replace(".", ","), "0,3", "2,5", 10, 20) for t in TIMES]
    found = measured(tmp_path / "run.csv", rows, sep=";").requests
    assert found["e2e_s"].tolist() == [2.5] * 60
    assert found["start_s"].max() == pytest.approx(np.ptp(TIMES), abs=2e-3)


def test_impossible_rows_are_dropped_and_counted(tmp_path):
    rows = [(i, 0.3, 2.0, 10, 20) for i in range(8)]
    rows += [(8, 3.0, 2.0, 10, 20), (9, 0.3, 2.0, "10.5", 20)]
    found = measured(tmp_path / "run.csv", rows)
    assert len(found.requests) == 8
    assert any("first token after the last" in note for note in found.notes)
    assert any("no whole number" in note for note in found.notes)
