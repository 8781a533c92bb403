"""``capplan profile``: what a trace says about its callers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli import exits
from capplan.cli.output import print_json, print_table, spread
from capplan.cli.parsing import add_command, add_json, check_names

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENS = ("mean", "p50", "p95", "p99", "max")


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(commands, "profile", "profile the traffic of a trace", _run)
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample")
    parser.add_argument(
        "--format", metavar="FORMAT", default="auto", help="form of the file (auto)"
    )
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    from capplan.traffic.profile import profile
    from capplan.traffic.readers import FORMATS, read_trace
    from capplan.traffic.sample import SAMPLE, read_base

    check_names("--format", args.format, FORMATS)
    sample = args.trace == SAMPLE
    trace = read_base(SAMPLE) if sample else read_trace(args.trace, format=args.format)
    document = profile(trace).to_json()
    if args.json:
        print_json(document)
    else:
        sys.stdout.write(f"{trace.source}: {trace.ledger.sentence()}\n\n")
        _print(document)
    return exits.DONE


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
