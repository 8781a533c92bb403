"""Reading notebooks as the report sees them: the cells their author wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

ADDED = {"injected-parameters", "papermill-error-cell-tag"}
"""Tags of the cells that papermill adds to an executed notebook."""


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
    """Take out of an executed notebook where it lay while it ran."""
    notebook = read_notebook(path)
    for place in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(place, None)
    path.write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]
