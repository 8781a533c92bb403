"""A notebook of a report: the cells its author wrote, its typed parameters, and running it.

A notebook declares its parameters in its one cell tagged ``parameters``, a line each:
``name: type = literal  # meaning, unit``. papermill itself drops a line it can't parse in silence
and only warns of an unknown name, so both are checked here, before anything runs.
"""

from __future__ import annotations

import ast
import io
import math
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from capplan.progress import work
from capplan.schema import DataError

ADDED = {"injected-parameters", "papermill-error-cell-tag"}
"""Tags of the cells that papermill adds to an executed notebook."""
SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
BOOLEANS = {"true": True, "false": False}
KERNEL_START_S = 120.0
WITHOUT_IRIS = "--IPKernelApp.exec_lines=import sys; sys.modules.setdefault('rfc3987_syntax', None)"
"""Spares each kernel 1.3 s: jsonschema, which altair loads, builds a grammar of IRIs where that
package is installed, to check texts of a format that no chart has."""


def read_notebook(path: Path) -> Any:
    """Return the notebook in the current form of nbformat 4."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def tags(cell: Any) -> set[str]:
    """Return the tags of a cell."""
    return set(cell.get("metadata", {}).get("tags", []))


def own_cells(path: Path) -> list[Any]:
    """Return the cells that the author wrote, so that their numbers are those of the source."""
    return [cell for cell in read_notebook(path).cells if not tags(cell) & ADDED]


def forget_paths(path: Path) -> None:
    """Remove the paths of its run from an executed notebook."""
    notebook = read_notebook(path)
    for place in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(place, None)
    path.write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One declared parameter; ``type`` is a name of :data:`SCALARS`, or ``list[...]`` of one."""

    name: str
    type: str
    default: Any
    meaning: str

    def value(self, text: str) -> Any:
        """Return the value of a text; ValueError names the type if the text has another form."""
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


class NotebookError(Exception):
    """A notebook that failed: which, in which cell, and why; the message is one line."""

    is_complete = True
    """The message needs no type before it."""

    def __init__(self, notebook: Path, cell: str, cause: str) -> None:
        self.notebook = notebook
        self.cell = cell
        self.cause = cause
        super().__init__(f"{notebook.name}: {cell}: {cause}")


def execute_all(
    notebooks: Sequence[Path],
    values: Mapping[Path, Mapping[str, Any]],
    *,
    into: Path,
    run_folder: Path,
) -> list[Path]:
    """Run the notebooks in order and return the executed ones, in the folder ``into``.

    Each runs with the run folder as its working directory. Executed cells are written after each
    cell, so a failing notebook is kept half executed. Raises :class:`NotebookError`.
    """
    on_terminal = sys.stderr.isatty()
    with work("", total=len(notebooks)) as under_way:
        for number, notebook in enumerate(notebooks, start=1):
            under_way.name = notebook.stem
            with _line(f"[{number}/{len(notebooks)}] {notebook.stem}", shown=not on_terminal):
                execute(notebook, into / notebook.name, values[notebook], cwd=run_folder)
            under_way.step()
    return [into / notebook.name for notebook in notebooks]


def execute(notebook: Path, target: Path, values: Mapping[str, Any], *, cwd: Path) -> None:
    """Run one notebook with values for its parameters; :class:`NotebookError` if it fails.

    The kernel is reached through sockets in a folder of its own: no port is opened, and the path
    of a socket stays as short as the system demands.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    try:
        with tempfile.TemporaryDirectory(prefix="capplan-") as sockets:
            ipc = {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
            papermill.execute_notebook(
                str(notebook),
                str(target),
                dict(values),
                cwd=str(cwd),
                progress_bar=False,
                store_widget_state=False,
                start_timeout=KERNEL_START_S,
                extra_arguments=["--log-level=CRITICAL", WITHOUT_IRIS],
                config=Config({"ConnectionFileMixin": ipc, "KernelManager": ipc}),
            )
        forget_paths(target)
    except PapermillExecutionError as err:
        raise NotebookError(notebook, _failed_cell(target), _cause(err)) from err
    except DeadKernelError as err:
        raise NotebookError(notebook, _failed_cell(target), "the kernel died") from err


def _cause(err: Any) -> str:
    lines = [line.strip() for line in str(err.evalue).splitlines() if line.strip()]
    return f"{err.ename}: {lines[0]}" if lines else str(err.ename)


def _failed_cell(target: Path) -> str:
    """Return the number, from 1, and the id of the code cell that ran last."""
    found = "before its first cell"
    for number, cell in enumerate(own_cells(target), start=1):
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time"):
            found = f"cell {number} ({cell.id})"
    return found


@contextmanager
def _line(text: str, *, shown: bool) -> Iterator[None]:
    """Write what runs and, at its end, how long it took."""
    start = time.perf_counter()
    if shown:
        sys.stderr.write(f"{text} … ")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write(f"{time.perf_counter() - start:.1f} s\n")
