"""``capplan budget``: how long a request may wait in each layer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.cli.output import checked, print_frame, print_json
from capplan.cli.parsing import add_command, scenario_of, values_of

if TYPE_CHECKING:
    from capplan.budget import WaitBudget


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "budget",
        "divide each class's promise over the layers it may wait in",
        _run,
        "Limits of the scenario that differ from the budget's are findings.",
    )
    parser.offer("scenario", "--set", "--trace")
    parser.add_argument(
        "--apply",
        metavar="OUT.yaml",
        help="write the scenario with the derived limits; its comments stay",
    )
    parser.add_argument(
        "--in-place", action="store_true", help="let --apply write over the scenario's own file"
    )
    parser.offer("--check", "--json")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.budget import allocate

    budget = allocate(scenario)
    if args.apply is not None:
        _apply(args, budget)
    if args.json:
        print_json(budget.to_json())
    else:
        print_frame(budget.class_table())
        print_frame(budget.limit_table())
        if budget.derived:
            print_frame(budget.derived_table())
        sys.stdout.write(budget.as_text())
        if budget.findings:
            sys.stdout.write("\n")
            print_frame(budget.finding_table())
        if args.apply is not None:
            sys.stdout.write(f"\nwritten to {args.apply}\n")
    return checked(budget.outcome, check=args.check)


def _apply(args: argparse.Namespace, budget: WaitBudget) -> None:
    from capplan.budget import applied_text
    from capplan.evidence.folders import write_file
    from capplan.scenario.files import find_scenario
    from capplan.schema import DataError

    out = Path(args.apply)
    if out.is_dir():
        raise DataError("a file", where=out, field="--apply", value="a folder")
    folder, source = out.parent.resolve(), find_scenario(args.scenario)
    if out.exists() and out.samefile(source) and not args.in_place:
        rule = "another file than the scenario's own, or --in-place"
        raise DataError(rule, where=out, field="--apply", value=args.apply)
    text = applied_text(source, budget, values=values_of(args), folder=folder)
    write_file(out, text.encode())
