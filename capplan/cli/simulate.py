"""``capplan simulate``: one run of a scenario."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from capplan.cli import exits
from capplan.cli.output import print_json, print_table, print_verdict, spread
from capplan.cli.parsing import (
    add_backend,
    add_check,
    add_command,
    add_json,
    add_out,
    add_scenario,
    add_seed,
    add_trace,
    scenario_of,
)
from capplan.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTILES = ("mean", "p50", "p95", "p99")


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "simulate",
        "simulate one run of a scenario and judge it",
        _run,
        "Latencies of the answers that came stand beside the censored ones, where a failure "
        "counts as never.",
    )
    add_scenario(parser)
    add_trace(parser)
    add_seed(parser)
    add_backend(parser)
    add_out(parser)
    add_check(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)

    from capplan.encoding import plain
    from capplan.evidence import write_run
    from capplan.evidence.store import inputs_of
    from capplan.results import conservation_table, headline
    from capplan.simulation import simulate
    from capplan.slo import judge
    from capplan.traffic.draw import draw

    result = simulate(scenario, trace=draw(scenario, seed=args.seed), seed=args.seed)
    verdict = judge(result, scenario)
    document = plain(
        {
            "run_id": inputs_of(result).run_id,
            **headline(result),
            "books": conservation_table(result, by=("request_class",)).to_dict("records"),
            "verdict": verdict,
        }
    )
    if args.out is not None:
        write_run(result, verdict, args.out)
    if args.json:
        print_json(document)
    else:
        _print(document, args.out)
    return exits.checked(document["verdict"]["outcome"], check=args.check)


def _print(document: Mapping[str, Any], out: str | None) -> None:
    outcomes = {**document["outcomes"], "of these degraded": document["degraded"]}
    sys.stdout.write(
        f"run {document['run_id']}: {counted(document['offered'], 'request')} offered\n\n"
    )
    print_table(
        [(name, count) for name, count in outcomes.items() if count], ["outcome", "requests"]
    )
    sys.stdout.write("\n")
    print_table(
        _by_class(document), ["class", "offered", "goodput (1/s)", "TTFT p99 (s)", "E2E p99 (s)"]
    )
    sys.stdout.write("\n")
    keys = ("ttft_s", "ttft_censored_s", "tpot_s", "e2e_s", "e2e_censored_s")
    print_table([(key, *spread(document.get(key), QUANTILES)) for key in keys], ["", *QUANTILES])
    if document["breakers"]:
        sys.stdout.write("\n")
        rows = [_breaker(entry) for entry in document["breakers"]]
        print_table(rows, ["breaker", "pool", "opened", "open (s)", "first (s)"])
    if caches := _caches(document):
        sys.stdout.write("\n")
        print_table(caches, ["cache", "found (share)", "takes (mean)", "of"])
    sys.stdout.write(f"\n{_wasted(document)}\n")
    print_verdict(document["verdict"])
    if out is not None:
        sys.stdout.write(f"\nstored in {out}\n")


def _breaker(entry: Mapping[str, Any]) -> list[Any]:
    """Return what a breaker did; one that never opened has no first time, which is known."""
    if entry["impossible"]:
        entry = {**entry, "pool": f"none: {entry['impossible']}"}
    row = spread(entry, ("rule", "pool", "opened", "open_s", "first_open_s"))
    return row if row[2] else [*row[:-1], "never"]


def _caches(document: Mapping[str, Any]) -> list[list[Any]]:
    """Return what each cache found, next to the memory it took."""
    found = {
        "prefix": (document["cache_hit_fraction"], document["kv_cached"]["mean"], "KV blocks"),
        "response": (
            *spread(document["response_cache"], ("hit_fraction",)),
            document["response_cache"]["bytes"]["mean"],
            "bytes",
        ),
    }
    return [[name, *row] for name, row in found.items() if row[1] is not None]


def _wasted(document: Mapping[str, Any]) -> str:
    """Return what was computed for nobody, and who waited twice, in a sentence."""
    from capplan.formatting import format_value

    tokens, seconds = (
        format_value(document[f"wasted_{unit}"]) for unit in ("tokens", "accelerator_s")
    )
    share, twice = (
        document["wasted_accelerator_fraction"],
        document["double_queued"]["requests_fraction"],
    )
    told = ["unknown" if part is None else f"{part:.1%}" for part in (share, twice)]
    return (
        f"wasted on what did not succeed: {tokens} tokens, {seconds} accelerator seconds "
        f"({told[0]} of the busy time); waited in two queues or more: {told[1]} of the requests"
    )


def _by_class(document: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            name,
            *spread(entry, ("offered", "goodput_rps")),
            *spread(entry.get("ttft_censored_s"), ("p99",)),
            *spread(entry.get("e2e_censored_s"), ("p99",)),
        ]
        for name, entry in document["by_class"].items()
    ]
