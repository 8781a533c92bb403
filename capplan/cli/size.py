"""``capplan size``: how many replicas, also with some of them lost."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli.output import checked, print_frame, print_json, print_stored
from capplan.cli.parsing import add_command, natural, positive, scenario_of

if TYPE_CHECKING:
    from capplan.scenario import Scenario

LOSE = (0, 1)
"""Replicas lost if ``--lose`` does not say."""


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "size",
        "find the fewest replicas that keep the promises, also with some lost",
        _run,
        "Every number is simulated on the same drawn requests; those that fail say why. Lost "
        "replicas crash at the start of the busiest stretch and stay away until a replacement is "
        "warm (stages.down_s, else the pool's lifecycle or cold_start_s). --lose 0 asks about no "
        "loss: the row on failure is then not asked, and does not decide.",
    )
    parser.offer("scenario", "--set", "--trace", "--seed")
    parser.add_argument(
        "--lose",
        "--lost",
        metavar="K",
        type=natural,
        action="append",
        help="replicas lost in the run; replaces the default 0 and 1; may be given again",
    )
    parser.add_argument("--pool", metavar="NAME", help="the pool to size (the primary one)")
    parser.add_argument(
        "--replications", metavar="N", type=positive, default=1, help="draws judged together (1)"
    )
    parser.add_argument(
        "--most", metavar="N", type=positive, default=64, help="most replicas tried (64)"
    )
    parser.offer("--jobs", "--backend", "--out", "--check", "--json")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    _check(args, scenario)

    from capplan.decision import decide
    from capplan.encoding import plain
    from capplan.evidence import store
    from capplan.replica.assumptions import rests_on
    from capplan.sizing import size
    from capplan.traffic.draw import draw

    traces = [draw(scenario, seed=args.seed, replication=i) for i in range(args.replications)]
    found = size(
        scenario,
        lose=args.lose or LOSE,
        pool=args.pool,
        seed=args.seed,
        traces=traces,
        n_max=args.most,
        jobs=args.jobs,
    )
    assumed = [*traces[0].notes, *found.notes, *rests_on(scenario)]
    document = plain({**found.to_json(), "assumed": assumed})
    decision = decide(scenario, document, assumed=assumed)
    document["decision"] = decision.to_json()
    if args.out is not None:
        store(found.inputs, {"points": found.frame()}, args.out, found.verdict, summary=document)
    if args.json:
        print_json(document)
    else:
        sys.stdout.write(f"{decision.as_text()}\n{found.as_text()}\n")
        print_frame(found.limits())
        print_frame(found.rejections())
        print_frame(found.verdict.table())
        print_stored(args.out)
    return checked(document["verdict"]["outcome"], check=args.check)


def _check(args: argparse.Namespace, scenario: Scenario) -> None:
    from capplan.schema import DataError

    pools = [pool.name for pool in scenario.pools]
    if args.pool is not None and args.pool not in pools:
        raise DataError(f"one of {', '.join(pools)}", field="--pool", value=args.pool)
    most_lost = max(args.lose or LOSE)
    if args.most <= most_lost:
        rule = f"more than the {most_lost} that are lost"
        raise DataError(rule, field="--most", value=args.most)
