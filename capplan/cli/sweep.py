"""``capplan sweep``: a grid over any fields of a scenario."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capplan.cli import exits
from capplan.cli.output import print_json, print_table, print_verdict
from capplan.cli.parsing import (
    add_backend,
    add_check,
    add_command,
    add_json,
    add_out,
    add_scenario,
    add_seed,
    add_trace,
    assignment,
    positive,
    scenario_of,
)

if TYPE_CHECKING:
    from capplan.sweep import SweepResult

FIGURES = {
    "outcome": "verdict",
    "goodput_rps": "goodput (1/s)",
    "throughput_rps": "answered (1/s)",
    "ttft_censored_p99_s": "TTFT p99 (s)",
    "e2e_censored_p99_s": "E2E p99 (s)",
    "timeout_fraction": "timed out",
    "reason": "infeasible because",
}


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "sweep",
        "simulate every combination of varied fields",
        _run,
        "Points share the drawn crowd; one that can't be built or run is a row with its reason.",
    )
    add_scenario(parser)
    parser.add_argument(
        "--vary",
        metavar="FIELD=V1,V2,…",
        action="append",
        required=True,
        type=assignment,
        help="values of a field, by its dotted path; may be given again",
    )
    add_trace(parser)
    add_seed(parser)
    parser.add_argument(
        "--replications", metavar="N", type=positive, default=1, help="runs of every point (1)"
    )
    parser.add_argument("--jobs", metavar="N", type=positive, default=1, help="processes (1)")
    add_backend(parser)
    add_out(parser, required=True)
    add_check(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    vary = _grid(args.vary)

    from capplan.sweep import sweep

    swept = sweep(scenario, vary, seed=args.seed, jobs=args.jobs, replications=args.replications)
    record = swept.write(args.out)
    if args.json:
        print_json(_document(swept, record.run_id))
    else:
        _print(swept, vary, args.out)
    return exits.checked(swept.verdict["outcome"], check=args.check)


def _grid(given: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    from capplan.schema import DataError

    fields = [field for field, _ in given]
    if twice := next((field for field in fields if fields.count(field) > 1), None):
        raise DataError("a field that is varied once", field="--vary", value=twice)
    return {field: _values(field, text) for field, text in given}


def _values(field: str, text: str) -> list[Any]:
    from capplan.scenario.yaml_text import parse_value
    from capplan.schema import DataError

    values = parse_value(f"[{text}]")
    if not values:
        raise DataError("at least one value", field=f"--vary {field}", value=text)
    return list(values)


def _document(swept: SweepResult, run_id: str) -> Mapping[str, Any]:
    by_class = swept.by_class
    return {
        "run_id": run_id,
        "points": swept.frame,
        "by_class": by_class,
        "verdict": swept.verdict,
    }


def _print(swept: SweepResult, vary: Mapping[str, Any], out: str) -> None:
    frame = swept.frame
    shown = [name for name in FIGURES if name in frame and frame[name].notna().any()]
    rows = frame[[*vary, *shown]].itertuples(index=False)
    print_table(rows, [*vary, *(FIGURES[name] for name in shown)])
    print_verdict(swept.verdict)
    sys.stdout.write(f"\nstored in {out}\n")
