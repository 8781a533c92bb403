"""``capplan init``: a first scenario of at most 30 commented lines that runs as it is."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from capplan.cli.output import DONE
from capplan.cli.parsing import add_command, positive
from capplan.schema import DataError


def add(commands: Any) -> None:
    """Offer the command."""
    parser = add_command(
        commands,
        "init",
        "write a first scenario, from a use case or a trace",
        _run,
        "What a use case brings are published defaults, and the file marks them so.",
    )
    parser.add_argument("file", metavar="NAME.yaml", help="the file to write; it must not exist")
    parser.add_argument(
        "--from",
        dest="trace",
        metavar="TRACE",
        help="a recording to replay, or a name of `data list`",
    )
    parser.add_argument(
        "--use-case", metavar="KIND", default="chat",
        help="chat, code, rag, summary, agent or batch (chat)",
    )  # fmt: skip
    parser.add_argument("--users", metavar="N", type=positive, help="people who have access")
    parser.add_argument("--rps", metavar="R", type=float, help="planned peak in place of --users")
    parser.add_argument("--model", metavar="M", help="in the catalogue (Llama-3.1-8B)")
    parser.add_argument("--accelerator", metavar="A", help="in the catalogue (H100-SXM-80GB)")


def _run(args: argparse.Namespace) -> int:
    from capplan.catalog.tables import placed_trace
    from capplan.evidence.folders import check_place
    from capplan.starter import starter

    target = Path(args.file)
    if target.suffix not in (".yaml", ".yml"):
        raise DataError("a name that ends in .yaml", field="NAME.yaml", value=args.file)
    if target.exists():
        raise DataError("a file that does not exist yet", where=target, value="an existing file")
    check_place(target)
    named = {n: getattr(args, n) for n in ("model", "accelerator") if getattr(args, n) is not None}
    text = starter(
        name=target.stem,
        use_case=args.use_case,
        users=args.users,
        rps=args.rps,
        trace=args.trace and placed_trace(args.trace),
        **named,
    )
    if args.trace is not None:
        place = placed_trace(args.trace)
        text = text.replace(f'trace: "{place}"', f'trace: "{_seen_from(target, place)}"')
    target.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{target}\n")
    return DONE


def _seen_from(target: Path, trace: str) -> str:
    """Return a trace as the file names it: relative if it lies below the file's folder."""
    folder = target.resolve().parent
    return os.path.relpath(trace, folder) if Path(trace).is_relative_to(folder) else trace
