"""``capplan memory`` and ``capplan catalog``: what fits, and which models and devices are known."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from capplan.cli.output import DONE, print_json
from capplan.cli.parsing import add_command, scenario_of


def add(commands: Any) -> None:
    """Offer the commands."""
    memory = add_command(
        commands,
        "memory",
        "show weights, activations, KV tokens and maximum concurrency of each pool",
        _memory,
    )
    memory.offer("scenario", "--set", "--json")
    catalog = add_command(commands, "catalog", "list the known models and accelerators", _catalog)
    catalog.offer("--json")


def _memory(args: argparse.Namespace) -> int:
    from capplan.replica.memory_plan import memory_plan

    plan = memory_plan(scenario_of(args))
    if args.json:
        print_json(plan.to_json())
    else:
        for pool in plan.table().to_dict("records"):
            sys.stdout.write(_transposed(pool))
        sys.stdout.write(f"{plan.summary()}\n".replace("`", ""))
    return DONE


def _transposed(figures: Mapping[Any, Any]) -> str:
    """Return the figures of one pool, one a line, since they are too many for a row."""
    from capplan.display import table_of
    from capplan.formatting import format_value, in_words

    rows = [
        (in_words(str(name).removesuffix("_bytes")), format_value(value, _unit(name)))
        for name, value in figures.items()
    ]
    return f"{table_of(rows, ['', ''])}\n\n"


def _unit(name: str) -> str:
    return "_bytes" if name.endswith("_bytes") else ""


def _catalog(args: argparse.Namespace) -> int:
    from capplan.catalog import accelerator_names, model_names
    from capplan.catalog.accelerators import price

    accelerators = [
        {"accelerator": name, "usd_per_hour": price(name)} for name in accelerator_names()
    ]
    models = model_names()
    if args.json:
        from capplan.encoding import plain

        print_json(plain({"models": models, "accelerators": accelerators}))
        return DONE
    from capplan.display import table_of

    rows = [(row["accelerator"], row["usd_per_hour"]) for row in accelerators]
    sys.stdout.write(f"{table_of(rows, ['accelerator', 'USD per hour'])}\n\n")
    sys.stdout.write("models: " + ", ".join(models) + "\n")
    return DONE
