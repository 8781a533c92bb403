"""Replay every measured run with the roofline, and keep its errors without what bends them.

    CAPPLAN_DATA=… python data/validation/make_circumstances.py

Only relative errors are kept: the measured runs are not ours to publish.
"""

import csv
import math
from pathlib import Path

from capplan.bundled import shared_data_path
from capplan.measured import read_measured
from capplan.validation import validate
from capplan.validation.circumstances import COLUMNS, FILE

FOLDER = Path(__file__).resolve().parent
FIGURES = (("e2e_s", "mean"), ("tpot_s", "mean"), ("ttft_s", "p50"), ("ttft_s", "p99"))


def rows(found):
    """Yield the errors of one run, as a whole and without some requests."""
    parts = {"nothing": (0.0, found.latencies)}
    parts |= {k: (one.left_out_fraction, one.latencies) for k, one in found.without.items()}
    for left_out, (share, latencies) in parts.items():
        period = found.stalls.comb.period_s if left_out == "stalls" else math.nan
        for metric, figure in FIGURES:
            error = latencies[metric][figure].error_fraction
            yield found.name, left_out, f"{share:.4f}", f"{period:.3g}", metric, figure, error


def main():
    folders = sorted(shared_data_path("measured").glob("*/server.json"))
    table = [row for file in folders for row in rows(validate(read_measured(file.parent)))]
    with (FOLDER / FILE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*row[:-1], f"{row[-1]:.4f}") for row in table)


if __name__ == "__main__":
    main()
