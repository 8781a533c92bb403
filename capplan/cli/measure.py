"""``capplan measure``: one run of a scenario against a real server."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from capplan.cli.backend import add_target, target_of
from capplan.cli.output import checked, print_assumed, print_json, print_stored
from capplan.cli.parsing import add_command, scenario_of

NOTES = """\
The callers of the scenario send its requests to a server that speaks OpenAI's protocol (vLLM,
SGLang, TGI, llama.cpp, TensorRT-LLM). What the server does not show is unknown. Ctrl-C stops
sending, waits for what is in flight, and keeps what was measured, marked as partial."""


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands, "measure", "measure one run of a scenario on a real server", _run, NOTES
    )
    parser.offer("scenario", "--set", "--trace", "--seed", "--out", "--check", "--json")
    add_target(parser, required=True)


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    target = target_of(args)

    from capplan.encoding import plain
    from capplan.evidence import write_run
    from capplan.evidence.store import inputs_of
    from capplan.live import measure
    from capplan.live.run import NOTE
    from capplan.results import headline
    from capplan.slo import judge
    from capplan.traffic.draw import draw

    trace = draw(scenario, seed=args.seed)
    result = measure(scenario, target, trace=trace, seed=args.seed, confirmed=args.confirmed)
    verdict = judge(result, scenario)
    notes = [*trace.notes, NOTE]
    run_id = inputs_of(result).run_id
    if args.out is not None:
        write_run(result, verdict, args.out)
    if args.json:
        figures = {"run_id": run_id, **headline(result), "client": result.client}
        print_json(plain({**figures, "verdict": verdict, "assumed": list(notes)}))
    else:
        sys.stdout.write(f"run {run_id}: {result.as_text()}\nclient: {result.client}\n")
        sys.stdout.write(f"verdict: {verdict.as_text()}\n")
        print_assumed(notes)
        print_stored(args.out)
    return checked(verdict.outcome, check=args.check)
