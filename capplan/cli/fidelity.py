"""``capplan calibrate`` and ``capplan validate``: what measured servers say of the simulator."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.cli.backend import add_target, target_of
from capplan.cli.output import DONE, print_json
from capplan.cli.parsing import add_command, check_names
from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.calibration import Calibration
    from capplan.measured import Measured
    from capplan.validation import Validation

SOURCES = ("roofline", "tables", "silicon")
MEASURED = "a folder with requests.csv and server.json, or a file of requests"


def add(commands: Any) -> None:
    """Offer the commands."""
    fit = add_command(
        commands,
        "calibrate",
        "fit step times to measured runs",
        _calibrate,
        "Give what it writes to capplan validate --latency, or its step_time to a pool.\n"
        "With --url, three runs of a minute are measured first, and kept beside the file.",
    )
    fit.add_argument(
        "--measured", metavar="DIR|FILE", action="append", default=[], help=f"{MEASURED}; again"
    )
    fit.add_argument(
        "--scenario",
        metavar="SCENARIO",
        help="with --url: its first pool describes the server, its classes the lengths",
    )
    add_target(fit, required=False)
    fit.add_argument("--out", metavar="latency.json", required=True, help="the file to write")
    _add_source(fit, "what is scaled")
    fit.offer("--json")
    check = add_command(
        commands,
        "validate",
        "replay a measured run and say how far the prediction is from it",
        _validate,
        "Errors are shares of what was measured; positive is predicted too high.",
    )
    check.add_argument(
        "--measured",
        metavar="DIR|FILE",
        action="append",
        required=True,
        help=f"{MEASURED}; again for a repeat, to see what a measurement differs by from itself",
    )
    check.add_argument(
        "--scenario", metavar="SCENARIO", help="what to simulate, in place of server.json's"
    )
    check.add_argument("--latency", metavar="latency.json", help="step times of capplan calibrate")
    _add_source(check, "where step times come from")
    check.offer("--json")


def _add_source(parser: Any, what: str) -> None:
    parser.add_argument("--source", metavar="|".join(SOURCES), help=f"{what} (roofline)")
    parser.add_argument(
        "--profile",
        metavar="DIR",
        help="kernel profile, or a folder of them, for tables (profiles/ in CAPPLAN_DATA)",
    )


def _calibrate(args: argparse.Namespace) -> int:
    from capplan.calibration import calibrate
    from capplan.encoding import to_text
    from capplan.evidence.folders import write_file
    from capplan.measured import read_measured

    out = Path(args.out)
    if out.is_dir():
        raise DataError("a file", where=out, field="--out", value="a folder")
    if bool(args.measured) == (args.url is not None):
        raise DataError("--measured, or --url and --scenario", value="both or none of them")
    folders = args.measured if args.url is None else _experiment(args, out)
    runs = [read_measured(path) for path in folders]
    found = calibrate(runs, base=_law(args, runs[0]))
    write_file(out, to_text(found.to_json()).encode())
    if args.json:
        print_json(found.to_json())
    else:
        _print(found)
        sys.stdout.write(f"written to {out}\n")
    return DONE


def _experiment(args: argparse.Namespace, out: Path) -> list[Path]:
    """Measure the runs of the calibration beside the file ``out``; return their folders."""
    if args.scenario is None:
        raise DataError("required with --url", field="--scenario", value="nothing")
    from capplan.evidence import write_run
    from capplan.live.experiment import calibration_runs
    from capplan.scenario.files import load_scenario

    scenario, target = load_scenario(args.scenario), target_of(args)
    place = out.with_name(f"{out.stem}-runs")
    folders = []
    for name, result in calibration_runs(scenario, target, confirmed=args.confirmed):
        write_run(result, None, place / name)
        folders.append(place / name)
    return folders


def _validate(args: argparse.Namespace) -> int:
    if args.latency is not None and (args.source is not None or args.profile is not None):
        raise DataError("either --latency or --source", field="--source", value=args.source)
    from capplan.measured import read_measured
    from capplan.validation import validate

    measured, *again = map(read_measured, args.measured)
    if again[1:]:
        rule = "one run, or two: the run and a repeat of it"
        raise DataError(rule, field="--measured", value=len(args.measured))
    law, front_end, source = _asked(args, measured)
    scenario = None
    if args.scenario is not None:
        from capplan.scenario.files import load_scenario
        from capplan.validation import with_step_time

        scenario = load_scenario(args.scenario)
        if law is not None:
            scenario = with_step_time(scenario, law, **front_end)
        source = source if law is not None else "scenario"
    found = validate(
        measured,
        scenario=scenario,
        step_time=law,
        source=source,
        repeat=again[0] if again else None,
        **front_end,
    )
    if args.json:
        print_json(found.to_json())
    else:
        _print(found)
    return DONE


def _asked(args: argparse.Namespace, measured: Measured) -> tuple[Any, dict[str, Any], str]:
    """Return the step time's fields, those of the front end as known, and the source's name."""
    if args.latency is None:
        if args.scenario is not None and args.source is None:
            return None, {}, "scenario"
        return _law(args, measured), {}, args.source or "roofline"
    from capplan.calibration import read_latency

    return *read_latency(Path(args.latency)), "calibrated"


def _law(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    source = check_names("--source", args.source or "roofline", SOURCES)
    if source != "tables":
        if args.profile is not None:
            raise DataError("given with --source tables only", field="--profile",
                            value=args.profile)  # fmt: skip
        return {"kind": source}
    from capplan.bundled import shared_data_path
    from capplan.measured import replay_scenario
    from capplan.replica.kernel_tables import find_profile

    root = args.profile or shared_data_path("profiles")
    if root is None:
        raise DataError("a folder, or CAPPLAN_DATA set", field="--profile", value="nothing")
    folder = find_profile(root, replay_scenario(measured).pool())
    return {"kind": "tables", "path": str(folder.resolve())}


def _print(found: Calibration | Validation) -> None:
    sys.stdout.write(f"{found.as_text()}\n")
    sys.stdout.writelines(f"- {note}\n" for note in found.notes)
