"""``capplan simulate``: one run of a scenario."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from capplan.cli.backend import add_backend, backend_of
from capplan.cli.output import checked, print_assumed, print_frame, print_json, print_stored
from capplan.cli.parsing import add_command, scenario_of


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "simulate",
        "simulate one run of a scenario and judge it",
        _run,
        "Latencies count a failure as infinite.",
    )
    parser.offer("scenario", "--set", "--trace", "--seed", "--out", "--check", "--json")
    add_backend(parser)


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.encoding import plain
    from capplan.evidence import write_run
    from capplan.evidence.store import inputs_of
    from capplan.replica.assumptions import rests_on
    from capplan.replica.utilisation import utilisation_table
    from capplan.results import conservation_table, grouped, scaling_table
    from capplan.results.breakers import breaker_table
    from capplan.results.run import without_effect
    from capplan.slo import judge, promise_windows
    from capplan.traffic.draw import draw

    trace = draw(scenario, seed=args.seed)
    result = backend_of(args).run(scenario, trace=trace, seed=args.seed)
    verdict = judge(result, scenario)
    run_id = inputs_of(result).run_id
    assumed = [*trace.notes, *rests_on(scenario), *without_effect(result)]
    if args.out is not None:
        write_run(result, verdict, args.out)
    sharing = None
    if scenario.hosts:
        from capplan.grid import host_sharing

        sharing = host_sharing(result)
    if args.json:
        conservation = conservation_table(result, by=("request_class",)).to_dict("records")
        document = {
            "run_id": run_id,
            **result.figures,
            "books": conservation,
            "utilisation": utilisation_table(result),
            "groups": grouped(result),
            "shared_hosts": [] if sharing is None else sharing.table(),
            "windows": promise_windows(result).worst,
            "verdict": verdict,
            "assumed": assumed,
        }
        print_json(plain(document))
    else:
        sys.stdout.write(f"run {run_id}: {result.as_text()}\n")
        print_frame(utilisation_table(result))
        print_frame(breaker_table(result))
        print_frame(scaling_table(result))
        if sharing is not None:
            sys.stdout.write(f"shared hosts: {sharing.as_text()}\n")
        sys.stdout.write(f"verdict: {verdict.as_text()}\nwindows: {promise_windows(result)}\n")
        print_assumed(assumed)
        print_stored(args.out)
    return checked(verdict.outcome, check=args.check)
