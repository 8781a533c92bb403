"""``capplan profile``: what a trace says about its callers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli import exits
from capplan.cli.output import print_json, print_table, spread
from capplan.cli.parsing import add_command, add_json, assignment, check_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capplan.traffic.sample import Reading

COLUMN_OPTIONS = (
    ("--column", "column of a trace and the file's column that holds it", "OURS=THEIRS"),
    ("--unit", "column of times and its unit in the file, such as arrival_s=ms", "OURS=UNIT"),
)
TOKENS = ("mean", "p50", "p95", "p99", "max")


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(commands, "profile", "profile the traffic of a trace", _run)
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample")
    parser.add_argument(
        "--format", metavar="FORMAT", default="auto", help="form of the file (auto)"
    )
    for option, what, example in COLUMN_OPTIONS:
        parser.add_argument(
            option, metavar=example, type=assignment, action="append", default=[], help=what
        )
    parser.add_argument(
        "--scenario", help="a scenario whose traffic says the format, columns and units of TRACE"
    )
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    from capplan.traffic.profile import profile
    from capplan.traffic.sample import read_base

    trace = read_base(args.trace, _reading(args))
    document = profile(trace).to_json()
    if args.json:
        print_json(document)
    else:
        sys.stdout.write(f"{trace.source}: {trace.ledger.sentence()}\n\n")
        _print(document)
    return exits.DONE


def _reading(args: argparse.Namespace) -> Reading:
    """Return how TRACE is to be read: as the scenario says, then as the options say."""
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
    )


def _print(document: Mapping[str, Any]) -> None:
    keys = ("duration_s", "rate_rps", "gap_cv", "peak_to_mean_60s")
    print_table([(key, document.get(key)) for key in keys], ["", "all"])
    sys.stdout.write("\n")
    rows = [(key, *spread(document.get(key), TOKENS)) for key in ("prompt_tokens", "output_tokens")]
    print_table(rows, ["", *TOKENS])
    by_class = document.get("by_class") or {}
    sys.stdout.write("\n" if by_class else "")
    if by_class:
        rows = [(name, *spread(entry, keys[1:])) for name, entry in by_class.items()]
        print_table(rows, ["class", *keys[1:]])
