"""Running notebooks through papermill, one after the other, in the run folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capplan.report.cells import forget_paths, own_cells

KERNEL_START_S = 120.0


class NotebookError(Exception):
    """A notebook that failed: which, in which cell, and why; the message is one line."""

    told_in_full = True

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

    Each runs with the run folder as its working directory. What a notebook has done so far is on
    the disk after each cell, so a failing one is kept half executed. Raises :class:`NotebookError`.
    """
    on_terminal = sys.stderr.isatty()
    columns, lines = shutil.get_terminal_size()
    look = {"disable": not on_terminal, "leave": False, "ncols": columns, "nrows": lines}
    with tqdm(total=len(notebooks), **look) as bar:
        for number, notebook in enumerate(notebooks, start=1):
            bar.set_description(notebook.stem)
            with _line(f"[{number}/{len(notebooks)}] {notebook.stem}", shown=not on_terminal):
                execute(notebook, into / notebook.name, values[notebook], cwd=run_folder)
            bar.update()
    return [into / notebook.name for notebook in notebooks]


def execute(notebook: Path, target: Path, values: Mapping[str, Any], *, cwd: Path) -> None:
    """Run one notebook with values for its parameters; :class:`NotebookError` where it fails.

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
                extra_arguments=["--log-level=CRITICAL"],
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
    """Return how people find the code cell that ran last: its number from 1, and its id."""
    found = "before its first cell"
    for number, cell in enumerate(own_cells(target), start=1):
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time"):
            found = f"cell {number} ({cell.id})"
    return found


@contextmanager
def _line(text: str, *, shown: bool) -> Iterator[None]:
    """Write a line that says what runs and, at its end, how long it took."""
    start = time.perf_counter()
    if shown:
        sys.stderr.write(f"{text} … ")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write(f"{time.perf_counter() - start:.1f} s\n")
