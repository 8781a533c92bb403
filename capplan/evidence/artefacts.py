"""What a notebook leaves in the run folder for the pages after it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd

from capplan.encoding import to_text
from capplan.evidence.folders import write_file
from capplan.schema import DataError

TEXTS = (".yaml", ".yml", ".txt", ".md", ".csv")


def artefact(folder: str | Path, name: str, payload: Any) -> Path:
    """Write an artefact of a notebook into the run folder and return its path.

    The suffix of ``name`` says the form: ``.json`` (NaN as null, infinity as ``"inf"``),
    ``.parquet`` (a frame), or a text file. An artefact of that name is replaced as a whole.
    Raises ValueError for another suffix, a name outside the folder, or a payload without that form.
    """
    path = _inside(Path(folder), name)
    write_file(path, _encoded(path, payload))
    return path


def read_artefact(folder: str | Path, name: str) -> Any:
    """Return the JSON value, frame or text of an artefact; DataError where it is not readable."""
    path = _inside(Path(folder), name)
    if not path.is_file():
        raise DataError("an artefact that an earlier notebook leaves", where=path, value="nothing")
    try:
        return _decoded(path)
    except (OSError, ValueError) as err:
        raise DataError(f"a readable artefact ({err})", where=path) from err


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not name or not path.resolve().is_relative_to(folder.resolve()):
        msg = f"name must lie inside the run folder, got {name!r}"
        raise ValueError(msg)
    return path


def _encoded(path: Path, payload: Any) -> bytes:
    if path.suffix == ".json":
        return to_text(payload).encode()
    if path.suffix == ".parquet" and hasattr(payload, "to_parquet"):
        return _parquet(payload)
    if path.suffix in TEXTS and isinstance(payload, str):
        return payload.encode()
    msg = (
        f"name must end in .json, .parquet (a frame) or {', '.join(TEXTS)} (text), got {path.name}"
    )
    raise ValueError(msg)


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def _decoded(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return path.read_text(encoding="utf-8")
