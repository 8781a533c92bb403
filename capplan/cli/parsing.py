"""Arguments and options that commands share, and the one form of their errors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.scenario import Scenario

Handler = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """A command line that breaks a rule; the message is complete."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors have the form ``command: option: rule, got value``."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def offer(self, *names: str, required: str = "") -> None:
        """Add arguments and options that several commands share; keys of :data:`SHARED`."""
        for name in names:
            options = dict(SHARED[name])
            if name == required:
                options["required"] = True
            self.add_argument(name, **options)

    def error(self, message: str) -> NoReturn:
        """Raise :class:`UsageError` in place of printing the usage and leaving."""
        raise UsageError(f"{self.prog}: {_one_form(message)}")


def add_command(commands: Any, name: str, help_text: str, run: Handler, notes: str = "") -> Parser:
    """Return the parser of a new command that ``run`` handles."""
    summary = f"{help_text[0].upper()}{help_text[1:]}."
    parser: Parser = commands.add_parser(
        name, help=help_text, description=f"{summary}\n\n{notes}".strip()
    )
    parser.set_defaults(run=run)
    return parser


def scenario_of(args: argparse.Namespace) -> Scenario:
    """Return the scenario that SCENARIO, ``--set`` and ``--trace`` ask for."""
    from capplan.scenario.files import load_scenario

    return load_scenario(args.scenario, values=values_of(args))


def values_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that ``--set`` and ``--trace`` set, by dotted path."""
    from capplan.catalog.tables import placed_trace
    from capplan.scenario.yaml_text import parse_value

    if absent := [field for field, text in args.values if not text.strip()]:
        raise DataError("a value (null for none)", field=f"--set {absent[0]}", value="")
    values = {field: parse_value(text) for field, text in args.values}
    trace = getattr(args, "trace", None)
    if trace is not None:
        values["traffic.trace"] = placed_trace(trace)
    return values


def assignment(text: str) -> tuple[str, str]:
    """Return field and value of ``FIELD=VALUE``."""
    field, sign, value = text.partition("=")
    if not sign or not field.strip():
        msg = f"FIELD=VALUE, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return field.strip(), value


def natural(text: str) -> int:
    """Return a whole number that is not negative."""
    if not re.fullmatch(r"\d{1,18}", text):
        msg = f"a whole number, not negative, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        msg = f"a whole number of at least 1, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def check_names(option: str, name: str, known: Sequence[str]) -> str:
    """Return the name if it is known; DataError naming the option if not."""
    if name not in known:
        raise DataError(f"one of {', '.join(known)}", field=option, value=name)
    return name


def _backend(text: str) -> str:
    if text == "live":
        msg = "simulated (the live backend is not available yet), got 'live'"
        raise argparse.ArgumentTypeError(msg)
    if text != "simulated":
        msg = f"simulated or live, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text


def _one_form(message: str) -> str:
    """Return argparse's message as ``option: rule, got value``."""
    text = " ".join(message.split())
    if found := re.fullmatch(r"the following arguments are required: (.+)", text):
        return f"{found[1]}: required, got nothing"
    if found := re.fullmatch(r"unrecognized arguments: (.+)", text):
        return f"an option or argument of this command, got {found[1]!r}"
    text = re.sub(r"^argument ([^:]+): ", lambda m: f"{m[1].split('/')[-1]}: ", text)
    return re.sub(
        r"invalid choice: (.+) \(choose from (.+)\)",
        lambda m: f"one of {m[2].replace(chr(39), '')}, got {m[1]}",
        text,
    )


SHARED: Mapping[str, Mapping[str, Any]] = {
    "scenario": {
        "metavar": "SCENARIO",
        "help": "a YAML file, or the name of a bundled scenario",
    },
    "--set": {
        "dest": "values",
        "metavar": "FIELD=VALUE",
        "action": "append",
        "default": [],
        "type": assignment,
        "help": "set a field by its dotted path, entries of lists by name; may be given again",
    },
    "--trace": {
        "metavar": "TRACE",
        "help": "a trace file or a name of `data list`, in place of the scenario's own",
    },
    "--seed": {"metavar": "N", "type": natural, "default": 0, "help": "seed of all randomness (0)"},
    "--jobs": {"metavar": "N", "type": positive, "default": 1, "help": "processes (1)"},
    "--backend": {
        "metavar": "simulated|live",
        "type": _backend,
        "default": "simulated",
        "help": "what runs the scenario (simulated; live is not available yet)",
    },
    "--out": {
        "metavar": "DIR",
        "help": "the run folder: a new or empty one, or one that holds this very run",
    },
    "--check": {
        "action": "store_true",
        "help": "exit with 1 when the verdict is anything but pass",
    },
    "--json": {"action": "store_true", "help": "print one JSON document and nothing else"},
}
"""Arguments and options that several commands share, by name, as argparse takes them."""
