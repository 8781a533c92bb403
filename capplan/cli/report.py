"""``capplan report``: the workbook run on one scenario, as pages."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from capplan.cli.output import checked, print_assumed, print_json
from capplan.cli.parsing import add_command, assignment, natural, scenario_of


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "report",
        "run every notebook on a scenario and write the pages",
        _run,
        "An earlier report is kept in DIR.earlier-1, -2, … if its run holds other files. A "
        "notebook that fails is kept, half executed, in DIR.failed until a report finishes.",
    )
    parser.offer("scenario", "--set", "--trace", "--seed")
    parser.add_argument(
        "-p",
        dest="parameters",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_parameter,
        help="set a parameter of the notebooks that declare it; may be given again",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where the pages go (reports/ and the scenario's name)"
    )
    parser.offer("--backend", "--check", "--json")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.report.build import build_report

    seed = next((int(v) for name, v in reversed(args.parameters) if name == "seed"), args.seed)
    parameters = [(name, value) for name, value in args.parameters if name != "seed"]
    out = args.out or f"reports/{scenario.name}"
    made = build_report(scenario, out, seed=seed, parameters=parameters)
    found = made.conclusion
    if args.json:
        start = {"run_id": made.record.run_id, "index": made.index, "verdict": found.verdict}
        print_json({**start, "earlier": made.earlier, "assumed": found.assumptions})
    else:
        if made.earlier:
            sys.stdout.write(f"earlier report: {made.earlier}\n")
        sys.stdout.write(f"{made.index}\nverdict: {found.outcome}\n")
        print_assumed(found.assumptions)
    return checked(found.outcome, check=args.check)


def _parameter(text: str) -> tuple[str, str]:
    name, value = assignment(text)
    if name == "seed":
        natural(value)
    return "lose" if name == "lost" else name, value  # size takes both names, too
