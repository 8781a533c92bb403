"""``capplan sweep``: a grid over any fields of a scenario."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from capplan.cli.backend import add_backend, backend_of
from capplan.cli.output import checked, print_assumed, print_json, print_stored
from capplan.cli.parsing import add_command, assignment, positive, scenario_of


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "sweep",
        "run every combination of varied fields",
        _run,
        "Points share the drawn requests; one that cannot run is a row with its reason.",
    )
    parser.offer("scenario", "--set")
    parser.add_argument(
        "--vary",
        metavar="FIELD=V1,V2,…",
        action="append",
        required=True,
        type=assignment,
        help="values of a field, by its dotted path; may be given again",
    )
    parser.offer("--trace", "--seed")
    parser.add_argument(
        "--replications", metavar="N", type=positive, default=1, help="runs of every point (1)"
    )
    add_backend(parser)
    parser.offer("--jobs", "--out", "--check", "--json", required="--out")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    vary = _grid(args.vary)

    from capplan.grid import sweep

    swept = sweep(
        scenario,
        vary,
        seed=args.seed,
        jobs=args.jobs,
        replications=args.replications,
        backend=backend_of(args),
    )
    record = swept.write(args.out)
    if args.json:
        tables = {"points": swept.frame, "by_class": swept.by_class}
        end = {"verdict": swept.verdict, "assumed": swept.assumed}
        print_json({"run_id": record.run_id, **tables, **end})
    else:
        sys.stdout.write(f"{swept.as_text()}\nverdict: {swept.verdict['outcome']}\n")
        print_assumed(swept.assumed)
        print_stored(args.out)
    return checked(swept.verdict["outcome"], check=args.check)


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
