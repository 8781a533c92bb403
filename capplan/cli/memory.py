"""``capplan memory`` and ``capplan catalog``: what fits, and which models and devices are known."""

from __future__ import annotations

import argparse
import sys
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
        sys.stdout.write(plan.as_text())
    return DONE


def _catalog(args: argparse.Namespace) -> int:
    from capplan.catalog import accelerator_names, model_names
    from capplan.catalog.accelerators import price
    from capplan.formatting import in_words

    accelerators = [
        {"accelerator": name, "usd_per_hour": price(name)} for name in accelerator_names()
    ]
    models = [_model_figures(name) for name in model_names()]
    if args.json:
        from capplan.encoding import plain

        names = [row["model"] for row in models]
        print_json(plain({"models": names, "model_figures": models, "accelerators": accelerators}))
        return DONE
    from capplan.display import table_of

    for rows in (accelerators, models):
        headings = [in_words(name) for name in rows[0]]
        sys.stdout.write(f"{table_of([tuple(row.values()) for row in rows], headings)}\n\n")
    return DONE


def _model_figures(name: str) -> dict[str, Any]:
    """Return what a model's config.json decides, at its own types."""
    from capplan.catalog import model
    from capplan.replica.memory import kv_bytes_per_token

    found = model(name)
    return {
        "model": name,
        "parameters": found.parameters,
        "dtype": found.dtype,
        "kv_bytes_per_token": int(kv_bytes_per_token(found)),
        "full_layers": found.full_layers,
        "window_layers": found.sliding_layers,
        "window_tokens": found.sliding_window,
        "linear_layers": found.linear_layers,
    }
