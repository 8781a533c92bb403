"""``capplan schema`` and ``capplan data``: what can be written, bundled files, public traces."""

from __future__ import annotations

import argparse
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.cli.output import DONE, print_json, print_table
from capplan.cli.parsing import add_command
from capplan.schema import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capplan.traffic.public_traces import PublicTrace


def add(commands: Any) -> None:
    """Offer the commands."""
    schema = add_command(commands, "schema", "print the JSON Schema of a scenario file", _schema)
    schema.offer("--json")
    data = add_command(commands, "data", "list and fetch bundled files and public traces", _list)
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_command(actions, "list", "list the bundled files and the public traces", _list)
    listing.offer("--json")
    fetch = add_command(
        actions, "get", "copy a bundled file here, or fetch a public trace into the cache", _get
    )
    fetch.add_argument("name", metavar="NAME", help="a name that capplan data list prints")
    fetch.add_argument(
        "--out", metavar="FILE", help="where to (a bundled file: its own name, here)"
    )


def _schema(args: argparse.Namespace) -> int:
    from capplan.scenario import Scenario

    print_json(_with_docstrings(Scenario.model_json_schema()))
    return DONE


def _with_docstrings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the docstring below each field as its description."""
    from capplan.scenario.part import part_classes

    known = {kind.__name__: _field_docstrings(kind) for kind in part_classes()}
    for name, part in {**schema["$defs"], schema["title"]: schema}.items():
        for field, text in known.get(name, {}).items():
            if field in part.get("properties", {}):
                part["properties"][field].setdefault("description", text)
    return schema


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields: the text that follows each annotation."""
    import ast
    import inspect
    import textwrap

    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, str] = {}
    for field, after in pairwise(getattr(body, "body", [])):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    found[field.target.id] = " ".join(text.replace("``", "").split())
    return found


def _list(args: argparse.Namespace) -> int:
    from capplan.traffic.public_traces import list_traces

    rows = [
        {"name": name, "kind": kind, "bytes": path.stat().st_size, "about": _about(path)}
        for name, kind, path in _files()
    ] + [
        {
            "name": trace.name,
            "kind": "public trace",
            "bytes": trace.size_bytes,
            "about": f"{trace.what}; {trace.licence}, {trace.attribution}",
        }
        for trace in list_traces()
    ]
    if args.json:
        print_json(rows)
    else:
        print_table([tuple(row.values()) for row in rows], ["name", "kind", "bytes", "about"])
    return DONE


def _get(args: argparse.Namespace) -> int:
    from capplan.traffic.public_traces import list_traces

    found = {name: path for name, _, path in _files()}
    public = {trace.name: trace for trace in list_traces()}
    if args.name in public:
        return _get_public(public[args.name], args.out)
    if args.name not in found:
        known = ", ".join((*found, *public))
        raise DataError(f"one of {known}", field="NAME", value=args.name)
    return _copied(found[args.name], Path(args.out or found[args.name].name))


def _get_public(trace: PublicTrace, out: str | None) -> int:
    from capplan.traffic.public_traces import fetch

    path = fetch(trace)
    sys.stderr.write(f"{trace.name}: licence {trace.licence}; {trace.attribution}\n")
    if out is not None:
        return _copied(path, Path(out))
    sys.stdout.write(f"{path}\n")
    return DONE


def _copied(path: Path, target: Path) -> int:
    from capplan.evidence.folders import check_place

    if target.exists():
        raise DataError("a file that is not there yet", where=target, field="--out", value="a file")
    check_place(target)
    shutil.copyfile(path, target)
    sys.stdout.write(f"{target}\n")
    return DONE


def _files() -> Iterator[tuple[str, str, Path]]:
    from capplan.bundled import data_path

    for path in sorted(data_path("scenarios").glob("*.yaml")):
        yield path.stem, "scenario", path
    for path in sorted(data_path().glob("sample/trace.*")):
        yield "sample", "trace", path


def _about(path: Path) -> str:
    if path.suffix != ".yaml":
        return ""
    from capplan.scenario.yaml_text import read_yaml

    text = " ".join(str(read_yaml(path).get("description", "")).split())
    return text.split(". ")[0].rstrip(".")
