"""``capplan stages``: the load acceptance of a scenario."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from capplan.cli.backend import add_backend, backend_of
from capplan.cli.output import checked, print_assumed, print_frame, print_json, print_stored
from capplan.cli.parsing import add_command, scenario_of


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "stages",
        "raise the load until a promise breaks, overload, fail a replica, see it recover",
        _run,
        "Which stages, at which loads and for how long: --set stages.FIELD=VALUE.",
    )
    parser.offer("scenario", "--set", "--trace", "--seed")
    parser.add_argument(
        "--next",
        dest="try_next",
        action="store_true",
        help="run the one change of the crossed limit as a candidate",
    )
    add_backend(parser)
    parser.offer("--jobs", "--out", "--check", "--json", required="--out")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.encoding import plain
    from capplan.schema import DataError
    from capplan.stages import run_stages
    from capplan.verdict import reason_table

    _check_out(Path(args.out))
    backend = backend_of(args)
    if backend.name == "live" and (args.try_next or args.jobs > 1):
        raise DataError("--next and --jobs are for the simulation", field="--backend", value="live")
    found = run_stages(
        scenario, seed=args.seed, try_next=args.try_next, jobs=args.jobs, backend=backend
    )
    found.write(args.out)
    if args.json:
        print_json(plain(found.to_json()))
    else:
        sys.stdout.write(f"{found.as_text()}\n{found.load_summary()}\n\n")
        for frame in (found.acceptable_table(), found.action_table(), found.check_table()):
            print_frame(frame)
        if found.candidate is not None:
            sys.stdout.write(f"next change: {found.candidate.limit.action}\n")
            print_frame(reason_table(found.candidate.reasons))
        sys.stdout.write(f"verdict: {found.verdict.as_text()}")
        print_assumed(found.assumed)
        print_stored(args.out)
    return checked(found.verdict.outcome, check=args.check)


def _check_out(out: Path) -> None:
    """Refuse a folder that holds other files before the stages run."""
    from capplan.evidence.folders import check_place
    from capplan.evidence.store import MANIFEST
    from capplan.schema import DataError

    check_place(out)
    if out.is_file():
        raise DataError("a folder, or a name for a new one", where=out, value="a file")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).exists():
        raise DataError("an empty or new folder for the run", where=out, value="other files")
