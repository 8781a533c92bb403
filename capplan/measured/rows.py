"""The table of a measured run, from the files it may come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capplan.measured.testers import from_lines, from_record, refuse
from capplan.schema import DataError

NUMBERS = (
    "intended_start_s", "sent_s", "scheduler_queue_in_s", "batch_in_s", "prompt_tokens",
    "output_tokens", "ttft_s", "first_token_s", "e2e_s", "finish_s",
)  # fmt: skip
"""The columns of ``schema.REQUESTS`` that are read, and latencies in their place."""

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".json": "json"}


def read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a measured file: CSV, Parquet, JSONL, or a load tester's result.

    The kind is that of the file's name (``.gz`` and the like aside). JSON files, and JSONL files of
    whole runs, are those of the load testers in ``capplan.measured.testers``.
    Columns are ``NUMBERS`` (as float64, those that are there) and ``outcome``.
    """
    kinds = [SUFFIXES[suffix] for suffix in path.suffixes if suffix in SUFFIXES]
    if not path.is_file():
        raise DataError("an existing file, or a folder of a measured run", where=path)
    if not kinds:
        raise DataError(f"a file that ends in one of {', '.join(SUFFIXES)}", where=path)
    try:
        frame = _frame(path, kinds[-1])
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError) as err:
        told = " ".join(str(err).split())
        raise DataError(f"a readable {kinds[-1]} file ({told})", where=path) from err
    return _typed(frame, path)


def _frame(path: Path, kind: str) -> pd.DataFrame:
    if kind == "csv":
        frame = pd.read_csv(path)
        refuse(frame.columns, path)
        return frame
    if kind == "parquet":
        return pd.read_parquet(path)
    if kind == "jsonl":
        lines = _lines(path)
        found = from_lines(lines, path)
        return pd.DataFrame(lines) if found is None else found
    return from_record(json.loads(path.read_text(encoding="utf-8")), path)


def _lines(path: Path) -> list[Any]:
    """Return the objects of a file of JSON lines, packed or not."""
    import bz2
    import gzip
    import lzma

    packers: dict[str, Any] = {".gz": gzip, ".bz2": bz2, ".xz": lzma}
    packed = packers.get(path.suffix)
    with (
        packed.open(path, "rt", encoding="utf-8")
        if packed
        else path.open(encoding="utf-8") as lines
    ):
        found = [json.loads(line) for line in lines if line.strip()]
    for line in found:
        if not isinstance(line, dict):
            raise DataError("an object a line", where=path, value=type(line).__name__)
    return found


def _typed(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    if frame.empty:
        raise DataError("at least one request", where=path, value=0)
    typed = frame[[name for name in (*NUMBERS, "outcome") if name in frame]].copy()
    for name in typed.columns.drop("outcome", errors="ignore"):
        try:
            typed[name] = typed[name].astype("float64")
        except (TypeError, ValueError) as err:
            raise DataError("numbers", where=path, field=name, value=str(err)) from err
        if np.isinf(typed[name]).any() or (typed[name] < 0).any():
            bad = typed[name][np.isinf(typed[name]) | (typed[name] < 0)].iloc[0]
            rule = "finite numbers, not negative"
            raise DataError(rule, where=path, field=name, value=float(bad))
    return typed
