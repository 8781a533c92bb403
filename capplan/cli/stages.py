"""``capplan stages``: the load acceptance of a scenario."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    positive,
    scenario_of,
)


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "stages",
        "raise the load until a promise breaks, overload, fail a replica, see it recover",
        _run,
        "Which stages, at which loads and for how long: --set stages.FIELD=VALUE.",
    )
    add_scenario(parser)
    add_trace(parser)
    add_seed(parser)
    parser.add_argument(
        "--next",
        dest="try_next",
        action="store_true",
        help="run the one change of the crossed limit as a candidate",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=positive,
        default=1,
        help="processes of the plan's further replications (1)",
    )
    add_backend(parser)
    add_out(parser, required=True)
    add_check(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.encoding import plain
    from capplan.stages import run_stages

    _check_out(Path(args.out))
    found = run_stages(scenario, seed=args.seed, try_next=args.try_next, jobs=args.jobs)
    found.write(args.out)
    document = plain(found.to_json())
    if args.json:
        print_json(document)
    else:
        _print(document, args.out)
    return exits.checked(document["verdict"]["outcome"], check=args.check)


def _check_out(out: Path) -> None:
    """Refuse a folder of something else before a minute is spent on the stages."""
    from capplan.evidence.folders import check_place
    from capplan.evidence.store import MANIFEST
    from capplan.schema import DataError

    check_place(out)
    if out.is_file():
        raise DataError("a folder, or a name for a new one", where=out, value="a file")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).exists():
        raise DataError("an empty or new folder for the run", where=out, value="other files")


def _print(document: Mapping[str, Any], out: str) -> None:
    rows = [
        (
            s["name"],
            s["load_rps"],
            s["goodput_rps"],
            "yes" if s["counts"] else "no",
            ", ".join(f"{b['request_class']} {b['promise']}" for b in s["breaks"][:1]),
            s["note"],
        )
        for s in document["stages"]
    ]
    print_table(rows, ["stage", "load (1/s)", "goodput (1/s)", "counts", "breaks first", "note"])
    sys.stdout.write(f"\n{_degradation(document)}\n{_knee(document)}\n")
    if document["client_limit_rps"] is not None:
        load = document["client_limit_rps"]
        sys.stdout.write(f"the client's own limit: it could not send {load:.4g}/s\n")
    sys.stdout.write("\n")
    loads = [
        (name, entry["to_rps"], *entry["interval"])
        for name, entry in document["acceptable_load"].items()
    ]
    print_table(loads, ["class", "acceptable load (1/s)", "kept up to", "surely broken from"])
    if document["replications"] is not None:
        _print_replications(document["replications"])
    sys.stdout.write("\n")
    acted = [
        (p["boundary"], p["action"], "yes" if p["acted"] else "no", p["requests"])
        for p in document["protective_actions"]
    ]
    print_table(acted, ["boundary", "protective action", "acted", "requests"])
    _print_recovery(document["recovery"])
    _print_next(document["next"])
    print_verdict(document["verdict"])
    sys.stdout.write(f"\nstored in {out}\n")


def _print_replications(found: Mapping[str, Any]) -> None:
    loads = {"first degradation": found["first_degradation"]}
    loads |= {f"knee of {pool}": entry for pool, entry in found["knees"].items()}
    loads |= {f"acceptable to {name}": entry for name, entry in found["acceptable_load"].items()}
    rows = [
        (name, entry["mean_rps"], *entry["interval"], f"{entry['found']} of {found['count']}")
        for name, entry in loads.items()
    ]
    sys.stdout.write("\n")
    print_table(rows, ["over replications", "mean (1/s)", "from", "to", "found in"])


def _degradation(document: Mapping[str, Any]) -> str:
    point = document["first_degradation"]
    if point is None and not document["acceptable_load"]:
        return "first degradation: unknown, no ramp was run"
    if point is None:
        return "first degradation: none of the loads breaks a promise"
    limit = point["limit"]
    return (
        f"first degradation: {point['request_class']} {point['promise']} at "
        f"{point['load_rps']:.4g}/s in {point['layer']} (run {point['run_id']}); it is controlled "
        f"by {limit['field']}, now {limit['value']}"
    )


def _knee(document: Mapping[str, Any]) -> str:
    knee = document["knee"]
    if knee is None and not document["acceptable_load"]:
        return "knee: unknown, no ramp was run"
    if knee is None or knee["load_rps"] is None:
        return f"knee: none{'' if knee is None else ', ' + knee['reason']}"
    low, high = knee["interval"]
    return f"knee: {knee['load_rps']:.4g}/s [{low:.4g}, {high:.4g}]"


def _print_recovery(recovery: Mapping[str, Any] | None) -> None:
    if recovery is None:
        return
    sys.stdout.write("\n")
    rows = [(c["outcome"], c["step"], c["next_action"]) for c in recovery["checks"]]
    print_table(rows, ["", "re-check after the overload", "next action"])


def _print_next(candidate: Mapping[str, Any] | None) -> None:
    if candidate is None:
        return
    change = candidate["change"]
    sys.stdout.write(f"\nnext change: {change['field']} = {change['candidate']}\n")
    print_verdict(candidate["verdict"])
