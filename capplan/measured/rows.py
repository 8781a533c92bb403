"""The table of a measured run, from the files it may come in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from capplan.measured.testers import TOOLS, UNITS, Rows, read_form
from capplan.schema import REQUESTS, DataError
from capplan.traffic.readers import files, recordings, tabular

NUMBERS = (
    "intended_start_s", "sent_s", "scheduler_queue_in_s", "batch_in_s", "prompt_tokens",
    "output_tokens", "ttft_s", "first_token_s", "e2e_s", "finish_s",
)  # fmt: skip
"""The columns of ``schema.REQUESTS`` that are read, and latencies in their place."""

SUFFIXES = {".csv": "csv", ".jtl": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".json": "json"}


def read_rows(path: Path) -> Rows:
    """Return the rows of a measured file: CSV, Parquet, JSONL, or a load tester's result.

    The kind is that of the file's name (``.gz`` and the like aside); the load testers are those of
    :mod:`capplan.measured.testers`. Columns are ``NUMBERS`` (as float64, those that are there) and
    ``outcome``. A row that is not readable, or holds a number that cannot be, is dropped and
    counted.
    """
    kinds = [SUFFIXES[suffix] for suffix in path.suffixes if suffix in SUFFIXES]
    if not path.is_file():
        raise DataError("an existing file, or a folder of a measured run", where=path)
    if not kinds:
        raise DataError(f"a file that ends in one of {', '.join(SUFFIXES)}", where=path)
    try:
        return _typed(_rows(path, kinds[-1]), path)
    except DataError:
        raise
    except (OSError, ValueError, TypeError, EOFError) as err:
        cause = " ".join(str(err).split())
        raise DataError(f"a readable {kinds[-1]} file ({cause})", where=path) from err


def _rows(path: Path, kind: str) -> Rows:
    if kind == "parquet":
        return Rows(frame=pd.read_parquet(path))
    if kind == "csv":
        frame = _csv(path)
        return read_form(frame.to_dict("records"), path) or Rows(frame=frame)
    content: Any = _lines(path) if kind == "jsonl" else _json(path)
    found = read_form(content, path)
    if found is not None:
        return found
    if kind == "jsonl" and content:
        return Rows(frame=pd.DataFrame(content))
    raise DataError(f"a file of {', '.join(TOOLS)}", where=path, value=_keys(content))


def _csv(path: Path) -> pd.DataFrame:
    """Return a table of text; between semicolons, numbers have a decimal comma."""
    delimiter = tabular.header(files.head(path), path)[1]
    return pd.read_csv(path, sep=delimiter, decimal="," if delimiter == ";" else ".")


def _json(path: Path) -> Any:
    """Return the content of a JSON file; JSON lines under a name that says ``.json`` too."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as err:
        if not err.msg.startswith("Extra data"):
            raise
        return _lines(path)


def _keys(content: Any) -> str:
    first = content[0] if isinstance(content, list) and content else content
    return f"keys {', '.join(list(first)[:6])}" if isinstance(first, Mapping) else str(first)[:40]


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


def _typed(rows: Rows, path: Path) -> Rows:
    """Return the known columns as numbers, without the rows that hold an impossible one."""
    frame = _in_seconds(rows.frame)
    if frame.empty:
        reasons = _named(rows.dropped) or "none"
        raise DataError("at least one readable request", where=path, value=reasons)
    for name in recordings.columns_of((str(c), str(c).lower()) for c in frame).values():
        recordings.check_column(name, frame[name], path)
    typed = frame[[name for name in (*NUMBERS, "outcome") if name in frame]].copy()
    dropped = Counter(rows.dropped)
    keep = np.ones(len(typed), dtype=bool)
    for name in typed.columns.drop("outcome", errors="ignore"):
        numbers = pd.to_numeric(typed[name], errors="coerce").astype("float64")
        parts = name.endswith("_tokens") & (numbers % 1 != 0) & numbers.notna()
        faults = {
            f"{name} is no whole number": parts.to_numpy(),
            f"{name} is no number": (numbers.isna() & typed[name].notna()).to_numpy(),
            f"{name} is negative": (numbers < 0).to_numpy(),
            f"{name} is infinite": np.isinf(numbers.to_numpy()),
        }
        for reason, wrong in faults.items():
            dropped[reason] += int((wrong & keep).sum())
            keep &= ~wrong
        typed[name] = numbers
    if not keep.any():
        raise DataError("at least one readable request", where=path, value=_named(dropped))
    kept = typed[keep].reset_index(drop=True)
    if starts := [name for name in ("intended_start_s", "sent_s") if name in kept]:
        recordings.check_times(kept[starts[0]].dropna().to_numpy(), path)
    return Rows(
        frame=kept,
        tool=rows.tool,
        dropped={r: n for r, n in dropped.items() if n},
        unused=_unused(rows.frame),
    )


def _unused(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns that nothing is made of, but for those of our own request log."""
    own = {column.name for column in REQUESTS}
    read = {*NUMBERS, *own, *(f"{name.removesuffix('_s')}_ms" for name in NUMBERS)}
    return tuple(str(name) for name in frame if str(name) not in read)


def _in_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns that state ms (``ttft_ms``) in s, under our names."""
    found = {
        name: pd.to_numeric(frame[ms], errors="coerce") * UNITS["ms"]
        for name in NUMBERS
        if name not in frame and (ms := f"{name.removesuffix('_s')}_ms") in frame
    }
    return frame.assign(**found)


def _named(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{n} × {reason}" for reason, n in dropped.items() if n)
