"""``capplan profile``: what a trace says about its callers."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli.output import DONE, print_frame, print_json
from capplan.cli.parsing import add_command, assignment, check_names

if TYPE_CHECKING:
    from capplan.traffic.profile import Service
    from capplan.traffic.sample import Reading
    from capplan.traffic.trace import Trace

COLUMN_OPTIONS = (
    ("--column", "column of a trace and the file's column that holds it", "OURS=THEIRS"),
    ("--unit", "column of times and its unit in the file, such as arrival_s=ms", "OURS=UNIT"),
)


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(commands, "profile", "profile the traffic of a trace", _run)
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or a name of `data list`")
    parser.add_argument(
        "--format", metavar="FORMAT", default="auto", help="form of the file (auto)"
    )
    for option, what, example in COLUMN_OPTIONS:
        parser.add_argument(
            option, metavar=example, type=assignment, action="append", default=[], help=what
        )
    parser.add_argument(
        "--scenario",
        help="a scenario whose traffic states the format, columns and units of TRACE, and whose "
        "step times give the service times",
    )
    parser.add_argument(
        "--span",
        metavar="FROM:TO",
        type=_span,
        help="seconds of a ServeGen profile to draw (0:600)",
    )
    parser.add_argument(
        "--only", metavar="FOLDER", help="folder of a ServeGen profile to draw from (all)"
    )
    parser.offer("--json")


def _span(text: str) -> tuple[float, float]:
    """Return two times in order, s."""
    first, colon, last = text.partition(":")
    try:
        span = float(first), float(last)
    except ValueError:
        span = (math.nan, math.nan)
    if not colon or not 0 <= span[0] < span[1] < math.inf:
        msg = f"FROM:TO, two times in seconds in order, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return span


def _run(args: argparse.Namespace) -> int:
    from capplan.traffic.profile import profile
    from capplan.traffic.sample import read_base

    trace = read_base(args.trace, _reading(args))
    found = profile(trace, service_time_s=_service_time(args, trace))
    if args.json:
        print_json(found.to_json())
    else:
        sys.stdout.write(f"{found.as_text()}\n")
        print_frame(found.length_table())
        print_frame(found.period_table())
        print_frame(found.patience_table())
    return DONE


def _service_time(args: argparse.Namespace, trace: Trace) -> Service | None:
    """Return the service times of the scenario, if one is stated."""
    if args.scenario is None:
        return None
    from capplan.budget import service_time
    from capplan.scenario.files import load_scenario
    from capplan.traffic.draw import filled

    scenario = load_scenario(args.scenario)
    return service_time(scenario, filled(trace, scenario))


def _reading(args: argparse.Namespace) -> Reading:
    """Return how to read TRACE: as the scenario states, then as the options state."""
    from dataclasses import replace

    from capplan.scenario.files import load_scenario
    from capplan.traffic.readers import FORMATS
    from capplan.traffic.sample import AS_FOUND, reading_of

    check_names("--format", args.format, FORMATS)
    stated = AS_FOUND if args.scenario is None else reading_of(load_scenario(args.scenario).traffic)
    return replace(
        stated,
        format=stated.format if args.format == "auto" else args.format,
        columns=tuple(dict([*stated.columns, *args.column]).items()),
        units=tuple(dict([*stated.units, *args.unit]).items()),
        span_s=args.span,
        only=args.only,
    )
