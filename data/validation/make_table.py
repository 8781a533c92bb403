"""Replay every measured run with every source of step times, and keep how far off each was.

    CAPPLAN_DATA=… python data/validation/make_table.py

The measured runs are not ours to publish, so only relative errors are kept; of the run on the
RTX 4090, which is under the MIT licence, also its series of running and waiting requests.
"""

import csv
import sys
from datetime import date
from pathlib import Path

from capplan.bundled import shared_data_path
from capplan.calibration import calibrate
from capplan.encoding import to_text
from capplan.measured import read_measured, replay_scenario
from capplan.replica.kernel_tables import find_profile
from capplan.schema import DataError
from capplan.validation import validate

FOLDER = Path(__file__).resolve().parent
RUNS = (
    "vllm-h100-llama-2-7b-tp1-codegen",
    "vllm-h100-llama-2-7b-tp1-general",
    "vllm-h100-llama-2-7b-tp1-roleplay",
    "vllm-h100-llama-2-7b-tp1-reasoning",
    "vllm-rtx4090-llama-3.1-8b",
)
FITTED_ON = RUNS[0]
COLUMNS = ("run", "step_times", "metric", "figure", "error_fraction")


def laws(measured, fitted):
    """Yield the sources that know a run's server: name, step time, front end."""
    pool = replay_scenario(measured).pool()
    yield "roofline", {"kind": "roofline"}, {}
    profile = find_profile(shared_data_path("profiles"), pool)
    yield "tables", {"kind": "tables", "path": str(profile)}, {}
    yield "silicon", {"kind": "silicon"}, {}
    if fitted.scope["accelerator"] == measured.server.accelerator:
        yield "calibrated", fitted.step_time, fitted.front_end


def rows(found):
    """Yield the errors of one validation; of a share of successes, in points."""
    for metric, figures in found.latencies.items():
        for name, figure in figures.items():
            yield metric, name, figure.error_fraction
    yield "throughput_tokens_per_s", "mean", found.throughput.error_fraction
    yield "in_flight", "mean", found.in_flight.error_fraction
    yield "success_fraction", "points", found.success.predicted - found.success.measured
    for name, figure in found.series.items():
        yield name, "mean", figure.error_fraction


def main():
    measured = {name: read_measured(shared_data_path("measured", name)) for name in RUNS}
    fitted = calibrate([measured[FITTED_ON]])
    document = {"computed": date.today().isoformat(), **fitted.to_json()}
    table = []
    for name, run in measured.items():
        for source, law, front_end in laws(run, fitted):
            try:
                found = validate(run, step_time=law, source=source, **front_end)
            except DataError as err:
                print(f"{name}: {source}: {err}", file=sys.stderr)
                continue
            table += [(name, source, *row[:2], f"{row[2]:.4f}") for row in rows(found)]
            if source == "tables" and found.overlay is not None:
                series = found.overlay.astype(dict.fromkeys(found.overlay.columns[1:], int))
                series.to_csv(FOLDER / "rtx4090-series.csv", index=False, lineterminator="\n")
    with (FOLDER / "errors.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *table])
    (FOLDER / "latency.json").write_text(to_text(document), encoding="utf-8")


if __name__ == "__main__":
    main()
