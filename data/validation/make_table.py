"""Replay every measured run with every source of step times, and keep how far off each was.

    CAPPLAN_DATA=… python data/validation/make_table.py

Calibrated step times of a run come from other loads of its server: of Llama-2 from a light and a
heavy one, of Qwen3-14B from the other of two. The measured runs are not ours to publish, so only
relative errors are kept; of the run on the RTX 4090, which is under the MIT licence, also its
series of running and waiting requests.
"""

import csv
import statistics
import sys
from datetime import date
from pathlib import Path

from capplan.bundled import shared_data_path
from capplan.calibration import calibrate
from capplan.encoding import to_text
from capplan.fidelity import RTX4090, short
from capplan.measured import read_measured, replay_scenario
from capplan.replica.kernel_tables import find_profile
from capplan.schema import DataError
from capplan.validation import validate

FOLDER = Path(__file__).resolve().parent
SMALL, LARGE = "vllm-h100-llama-2-7b-tp1-", "vllm-h100-llama-2-70b"
QWEN = "vllm-h100-qwen3-14b-w5_sweep-agg"
LOADS = {
    "7b": [f"{SMALL}{load}" for load in ("codegen", "general", "roleplay", "reasoning")],
    "70b": [f"{LARGE}-hf-tp4-codegen", f"{LARGE}-tp4-general", f"{LARGE}-tp4-roleplay",
            f"{LARGE}-hf-tp4-reasoning"],
    "14b": [f"{QWEN}6", f"{QWEN}12"],
    "4090": [RTX4090],
}  # fmt: skip
"""The runs by server, a light load first, overloads last."""
FITTED_ON = LOADS["7b"][:2]
"""Of ``latency.json``."""
COLUMNS = ("run", "step_times", "metric", "figure", "error_fraction", "fitted_on")
TARGETS = {
    ("ttft_s", "p50"): 0.03,
    ("ttft_s", "p99"): 0.08,
    ("tpot_s", "mean"): 0.015,
    ("e2e_s", "mean"): 0.015,
}
"""Bounds on the median absolute error of calibrated step times at loads they were not fitted on."""


def fits(measured):
    """Return the fit of each set of runs that predicts another."""
    sets = [FITTED_ON, LOADS["70b"][:2], *([name] for name in LOADS["14b"])]
    return {tuple(names): calibrate([measured[name] for name in names]) for names in sets}


def fitted_for(name, found):
    """Return the fit that a run is judged by, None if its server has one run only."""
    if name in LOADS["14b"]:
        return found[tuple(other for other in LOADS["14b"] if other != name)]
    server = next(key for key, names in LOADS.items() if name in names)
    return found.get(tuple(LOADS[server][:2]))


def laws(measured, fitted):
    """Yield the sources that may know a run's server: name, step time, front end."""
    yield "roofline", {"kind": "roofline"}, {}
    try:
        profile = find_profile(shared_data_path("profiles"), replay_scenario(measured).pool())
    except DataError as err:
        print(f"{measured.name}: tables: {err}", file=sys.stderr)
    else:
        yield "tables", {"kind": "tables", "path": str(profile)}, {}
    yield "silicon", {"kind": "silicon"}, {}
    if fitted is not None:
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


def judged(name, run, fitted):
    """Yield the rows of one run, and keep the series of the RTX 4090."""
    for source, law, front_end in laws(run, fitted):
        try:
            found = validate(run, step_time=law, source=source, **front_end)
        except DataError as err:
            print(f"{name}: {source}: {err}", file=sys.stderr)
            continue
        on = " ".join(fitted.measured) if source == "calibrated" else ""
        yield from ((name, source, *row[:2], f"{row[2]:.4f}", on) for row in rows(found))
        if source == "tables" and found.overlay is not None:
            series = found.overlay.astype(dict.fromkeys(found.overlay.columns[1:], int))
            series.to_csv(FOLDER / "rtx4090-series.csv", index=False, lineterminator="\n")


def print_targets(table):
    """Print the errors of calibrated step times at loads that they were not fitted on."""
    unseen = {}
    for run, source, metric, figure, error, on in table:
        if source == "calibrated" and run not in on.split():
            unseen.setdefault((metric, figure), {})[run] = float(error)
    for key, bound in TARGETS.items():
        errors = unseen[key]
        median = statistics.median(map(abs, errors.values()))
        each = ", ".join(f"{short(run)} {error:+.1%}" for run, error in errors.items())
        print(f"{' '.join(key)}: median {median:.1%} (target {bound:.1%}): {each}")


def write_rows(name, columns, table):
    """Write a table of the folder."""
    with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *table])


def main():
    measured = {
        name: read_measured(shared_data_path("measured", name))
        for names in LOADS.values()
        for name in names
    }
    found = fits(measured)
    table = [
        row for name, run in measured.items() for row in judged(name, run, fitted_for(name, found))
    ]
    write_rows("errors.csv", COLUMNS, table)
    numbers = [
        (" ".join(on), name, f"{one.value:.4g}", f"{one.low:.4g}", f"{one.high:.4g}")
        for on, fit in found.items()
        for name, one in fit.parameters.items()
    ]
    write_rows("fits.csv", ("fitted_on", "parameter", "value", "low", "high"), numbers)
    fitted = found[tuple(FITTED_ON)]
    document = {"computed": date.today().isoformat(), **fitted.to_json()}
    (FOLDER / "latency.json").write_text(to_text(document), encoding="utf-8")
    print_targets(table)


if __name__ == "__main__":
    main()
