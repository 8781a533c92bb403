"""``capplan profile``: what a trace says about its callers."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli import exits
from capplan.cli.output import print_json, print_table, spread
from capplan.cli.parsing import add_command, add_json, assignment, check_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    parser.add_argument(
        "--span",
        metavar="FROM:TO",
        type=_span,
        help="seconds of a ServeGen profile to draw (0:600)",
    )
    parser.add_argument(
        "--only", metavar="FOLDER", help="folder of a ServeGen profile to draw from (all)"
    )
    add_json(parser)


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
    document = profile(trace).to_json()
    if args.json:
        print_json(document)
    else:
        sys.stdout.write(f"{trace.source}: {trace.ledger.sentence()}\n")
        sys.stdout.writelines(f"{note}\n" for note in trace.notes)
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
        span_s=args.span,
        only=args.only,
    )


def _print(document: Mapping[str, Any]) -> None:
    keys = ("duration_s", "rate_rps", "gap_cv", "peak_to_mean_60s")
    sys.stdout.write("\n")
    print_table([(key, document.get(key)) for key in keys], ["", "all"])
    tokens = ("prompt_tokens", "output_tokens")
    _print_more(((key, *spread(document[key], TOKENS)) for key in tokens), ["", *TOKENS])
    each = ("rate_rps", "gap_cv", "concurrency", "share_of_time", "longest_s")
    periods = document["periods"].items()
    _print_more(((name, *spread(entry, each)) for name, entry in periods), ["period", *each])
    held = ("mean", "p50", "p99", "max")
    groups = {**document["by_class"], "all": document}
    _print_more(
        (
            (name, *spread(entry["concurrency"]["in_flight"], held))
            for name, entry in groups.items()
        ),
        ["in flight", *held],
    )
    waits = {name: entry["acceptable_wait"] for name, entry in groups.items()}
    _print_more(
        ((name, wait["source"], wait["p50_s"]) for name, wait in waits.items()),
        ["acceptable wait", "known from", "p50_s"],
    )
    by_class = document["by_class"].items()
    _print_more(
        ((name, *spread(entry, keys[1:])) for name, entry in by_class), ["class", *keys[1:]]
    )


def _print_more(rows: Iterable[Sequence[Any]], heads: Sequence[str]) -> None:
    """Print a table below a blank line; nothing where it has no rows."""
    kept = list(rows)
    if kept:
        sys.stdout.write("\n")
        print_table(kept, heads)
