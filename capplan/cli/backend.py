"""The options that choose what runs a scenario: the simulation, or a real server."""

from __future__ import annotations

import argparse
from typing import Any

from capplan.cli.parsing import Parser


def add_backend(parser: Parser) -> None:
    """Add the options that choose what runs a scenario."""
    parser.add_argument(
        "--backend",
        default="simulated",
        metavar="simulated|live",
        help="what runs the scenario (simulated)",
    )
    parser.add_argument(
        "--launch",
        metavar="COMMAND",
        help="start a server for each run; {max_num_seqs}, {pools.NAME.replicas} and {port} in it "
        "are replaced by the fields of the scenario and the port of --url",
    )
    add_target(parser, required=False)


def backend_of(args: argparse.Namespace) -> Any:
    """Return the :class:`capplan.simulation.backend.Backend` that the options choose."""
    from capplan.schema import DataError

    if args.backend not in {"simulated", "live"}:
        raise DataError("simulated or live", field="--backend", value=args.backend)
    if args.backend == "simulated":
        from capplan.simulation.backend import SIMULATION

        if given := args.url or args.launch:
            raise DataError("--backend live, for --url and --launch", value=given)
        return SIMULATION

    from capplan.live import Launcher, RunningServer

    if args.url is None:
        raise DataError("required with --backend live", field="--url", value="nothing")
    target = target_of(args)
    if args.launch is None:
        return RunningServer(target=target, confirmed=args.confirmed)
    return Launcher(target=target, confirmed=args.confirmed, command=args.launch)


def add_target(parser: Parser, *, required: bool) -> None:
    """Add the options that name a server."""
    parser.add_argument(
        "--url", required=required, metavar="URL", help="of the server, without a path"
    )
    parser.add_argument(
        "--api",
        default="completions",
        metavar="completions|chat",
        help="what the server is asked for (completions)",
    )
    parser.add_argument("--model", metavar="NAME", help="the model's name at the server")
    parser.add_argument(
        "--key-variable", metavar="NAME", help="the environment variable that holds the API key"
    )
    parser.add_argument(
        "--extra",
        metavar="JSON",
        help='fields added to each request ({"ignore_eos": true}); {} adds none',
    )
    parser.add_argument(
        "--yes-this-is-my-server",
        dest="confirmed",
        action="store_true",
        help="load a server that is neither on loopback nor in a private network",
    )


def target_of(args: argparse.Namespace) -> Any:
    """Return the :class:`capplan.live.Target` that the options name."""
    import json

    from capplan.live import Target
    from capplan.schema import DataError

    named: dict[str, Any] = {}
    if args.extra is not None:
        try:
            named["extra"] = json.loads(args.extra)
        except ValueError as err:
            raise DataError("a JSON object", field="--extra", value=args.extra) from err
        if not isinstance(named["extra"], dict):
            raise DataError("a JSON object", field="--extra", value=args.extra)
    return Target(
        url=args.url, api=args.api, model=args.model, key_variable=args.key_variable, **named
    )
