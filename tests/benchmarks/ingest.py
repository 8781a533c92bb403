"""Rows a second and peak memory of reading each tabular format.

Run: ``python tests/benchmarks/ingest.py [ROWS]`` (default 5,000,000). Every format is written to a
temporary folder and read in a process of its own. Target: at least 300,000 rows/s and less than
1.5 GB of resident memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

ROWS = 5_000_000
TARGET_ROWS_PER_S = 300_000
TARGET_GB = 1.5
FORMATS = ("azure.csv", "plain.csv", "plain.csv.gz", "plain.parquet", "mooncake.jsonl")


def drawn(rows: int) -> dict[str, np.ndarray]:
    """Return one trace's columns, the same for every format."""
    rng = np.random.default_rng(0)
    return {
        "arrival_s": np.cumsum(rng.exponential(0.02, rows)),
        "prompt_tokens": np.ceil(rng.lognormal(6.5, 1.1, rows)).astype(np.int64),
        "output_tokens": np.ceil(rng.lognormal(4.8, 0.9, rows)).astype(np.int64),
    }


def write(path: Path, rows: int) -> None:
    """Write the trace in the format that the name says."""
    columns = drawn(rows)
    if path.name == "azure.csv":
        stamps = pa.array((columns["arrival_s"] * 1e7).astype(np.int64) * 100, pa.timestamp("ns"))
        table = pa.table(
            {
                "TIMESTAMP": stamps.cast(pa.string()),
                "ContextTokens": columns["prompt_tokens"],
                "GeneratedTokens": columns["output_tokens"],
            }
        )
        csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        write_json(path, columns)
    else:
        with pa.output_stream(path) as stream:
            csv.write_csv(pa.table(columns), stream)


def write_json(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write Mooncake lines, four prefix blocks each."""
    ms = (columns["arrival_s"] * 1000).astype(np.int64).tolist()
    prompt, output = columns["prompt_tokens"].tolist(), columns["output_tokens"].tolist()
    with path.open("w") as file:
        for i, (t, p, o) in enumerate(zip(ms, prompt, output, strict=True)):
            blocks = f"[0, {i}, {i + 1}, {i + 2}]"
            file.write(
                f'{{"timestamp": {t}, "input_length": {p}, "output_length": {o}, '
                f'"hash_ids": {blocks}}}\n'
            )


def read(path: Path) -> None:
    """Read one file and print rows/s and the peak resident memory of this process."""
    from capplan.traffic.readers import read_trace

    start = time.perf_counter()
    trace = read_trace(path)
    seconds = time.perf_counter() - start
    rate = len(trace) / seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    good = rate >= TARGET_ROWS_PER_S and peak < TARGET_GB
    print(
        f"{path.name:16} {trace.format:9} {len(trace):>9,} rows {seconds:6.1f} s "
        f"{rate:>9,.0f} rows/s {peak:5.2f} GB {'ok' if good else 'MISSED'}"
    )


def main() -> None:
    """Write and read every format."""
    if len(sys.argv) > 2:
        read(Path(sys.argv[2]))
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            path = Path(folder) / name
            write(path, rows)
            subprocess.run([sys.executable, __file__, str(rows), str(path)], check=True)
            path.unlink()


if __name__ == "__main__":
    main()
