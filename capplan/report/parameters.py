"""The typed parameters of a notebook, and values given for them on the command line.

A notebook declares them in its one cell tagged ``parameters``, a line each:
``name: type = literal  # meaning, unit``. papermill itself drops what it can't parse without a
word and only warns of an unknown name, so both are checked here, before anything runs.
"""

from __future__ import annotations

import ast
import io
import math
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capplan.report.cells import read_notebook, tags
from capplan.schema import DataError

SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One declared parameter; ``type`` is a name of :data:`SCALARS`, or ``list[...]`` of one."""

    name: str
    type: str
    default: Any
    meaning: str

    def value(self, text: str) -> Any:
        """Return the value that a text means; ValueError naming the type where it means none."""
        if not self.type.startswith("list["):
            return _scalar(text, self.type)
        inner = self.type[len("list[") : -1]
        return [_scalar(item.strip(), inner) for item in text.split(",") if item.strip()]


def declared(notebook: Path) -> dict[str, Parameter]:
    """Return the parameters of a notebook by name; DataError for a line of another form."""
    cells = [cell for cell in read_notebook(notebook).cells if "parameters" in tags(cell)]
    if len(cells) > 1:
        raise DataError("one cell tagged parameters", where=notebook, value=len(cells))
    source = cells[0].source if cells else ""
    comments = _comments(source)
    found = [
        _parameter(node, comments.get(node.end_lineno or 0, ""), notebook)
        for node in ast.parse(source).body
    ]
    return {parameter.name: parameter for parameter in found}


def chosen(
    notebooks: Sequence[Path], texts: Iterable[tuple[str, str]], given: Mapping[str, Any]
) -> dict[Path, dict[str, Any]]:
    """Return the values for each notebook: of ``given`` and ``texts`` what it declares.

    Parameters
    ----------
    notebooks
        Files, all of which are read before anything is returned.
    texts
        Names and values as text, from the command line.
    given
        Values that the report itself passes; they can't be given as texts.

    Raises
    ------
    DataError
        For a name that no notebook declares or that the report sets, or a value of another type.
    """
    known = {notebook: declared(notebook) for notebook in notebooks}
    every = sorted({name for parameters in known.values() for name in parameters})
    values: dict[Path, dict[str, Any]] = {
        notebook: {name: given[name] for name in parameters if name in given}
        for notebook, parameters in known.items()
    }
    for name, text in texts:
        if name in given or name not in every:
            rule = f"one of {', '.join(n for n in every if n not in given) or 'no parameters'}"
            raise DataError(rule, field="-p", value=name)
        for notebook, parameters in known.items():
            if name in parameters:
                values[notebook][name] = _typed(parameters[name], text, notebook)
    return values


def _typed(parameter: Parameter, text: str, notebook: Path) -> Any:
    try:
        return parameter.value(text)
    except ValueError as err:
        rule = f"{parameter.type} ({parameter.meaning})" if parameter.meaning else parameter.type
        raise DataError(
            rule, where=notebook.name, field=f"-p {parameter.name}", value=text
        ) from err


def _scalar(text: str, kind: str) -> Any:
    if kind == "bool":
        if text.lower() not in BOOLEANS:
            msg = f"true or false, got {text!r}"
            raise ValueError(msg)
        return BOOLEANS[text.lower()]
    value = SCALARS[kind](text)
    if kind == "float" and not math.isfinite(value):
        msg = f"a finite number, got {text!r}"
        raise ValueError(msg)
    return value


def _parameter(node: ast.stmt, comment: str, notebook: Path) -> Parameter:
    rule = "name: type = literal  # meaning, unit"
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        raise DataError(rule, where=notebook, field="parameters", value=ast.unparse(node))
    kind = ast.unparse(node.annotation)
    known = {*SCALARS, *(f"list[{inner}]" for inner in SCALARS)}
    try:
        default = ast.literal_eval(node.value) if node.value is not None else None
    except ValueError as err:
        raise DataError(
            rule, where=notebook, field=node.target.id, value=ast.unparse(node)
        ) from err
    if kind not in known or not _fits(default, kind):
        raise DataError(rule, where=notebook, field=node.target.id, value=ast.unparse(node))
    return Parameter(name=node.target.id, type=kind, default=default, meaning=comment)


def _fits(default: Any, kind: str) -> bool:
    if kind.startswith("list["):
        inner = kind[len("list[") : -1]
        return isinstance(default, list) and all(_fits(item, inner) for item in default)
    return type(default) is SCALARS[kind] or (kind == "float" and type(default) is int)


def _comments(source: str) -> dict[int, str]:
    """Return the comment that ends each line, by line number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }
