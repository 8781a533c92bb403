"""The table of a measured run, from the files it may come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.schema import DataError

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = (
    "intended_start_s", "sent_s", "scheduler_queue_in_s", "batch_in_s", "prompt_tokens",
    "output_tokens", "ttft_s", "first_token_s", "e2e_s", "finish_s",
)  # fmt: skip
"""The columns of ``schema.REQUESTS`` that are read, and latencies in their place."""

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".json": "json"}


def read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a measured file: CSV, Parquet, JSONL, or a load tester's result.

    The kind is that of the file's name (``.gz`` and the like aside). A JSON file is the result of
    ``vllm bench serve --save-result --save-detailed``, or of a tool that writes the same keys.
    Columns are ``NUMBERS`` (as float64, those that are there) and ``outcome``.
    """
    kinds = [SUFFIXES[suffix] for suffix in path.suffixes if suffix in SUFFIXES]
    if not kinds:
        raise DataError(f"a file that ends in one of {', '.join(SUFFIXES)}", where=path)
    if not path.is_file():
        raise DataError("an existing file", where=path)
    try:
        frame = _frame(path, kinds[-1])
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError) as err:
        told = " ".join(str(err).split())
        raise DataError(f"a readable {kinds[-1]} file ({told})", where=path) from err
    return _typed(frame, path)


def _frame(path: Path, kind: str) -> pd.DataFrame:
    import pandas as pd

    if kind == "csv":
        return pd.read_csv(path)
    if kind == "parquet":
        return pd.read_parquet(path)
    if kind == "jsonl":
        return pd.read_json(path, lines=True, precise_float=True)
    return _load_tester(json.loads(path.read_text(encoding="utf-8")), path)


def _load_tester(record: Any, path: Path) -> pd.DataFrame:
    """Return the rows of ``vllm bench serve``: lists by request.

    Source: vllm-project/vllm, ``vllm/benchmarks/serve.py``, 2026: ``start_times``, ``input_lens``,
    ``output_lens``, ``ttfts`` and ``itls`` in s, ``errors``.
    """
    import pandas as pd

    keys = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
    lists: dict[str, Any] = {
        key: record.get(key) if isinstance(record, dict) else None for key in keys
    }
    for key, values in lists.items():
        if not isinstance(values, list):
            raise DataError("a list by request (--save-detailed)", where=path, field=key)
    if len({len(values) for values in lists.values()}) > 1:
        raise DataError("lists of one length", where=path)
    errors = record.get("errors") or [""] * len(lists["ttfts"])
    failed = pd.Series([bool(error) for error in errors], dtype=bool)
    ttft = pd.Series(lists["ttfts"], dtype="float64").mask(failed)
    gaps = pd.Series([sum(gaps) for gaps in lists["itls"]], dtype="float64")
    return pd.DataFrame(
        {
            "sent_s": lists["start_times"],
            "prompt_tokens": lists["input_lens"],
            "output_tokens": lists["output_lens"],
            "ttft_s": ttft,
            "e2e_s": ttft + gaps,
            "outcome": failed.map({True: "failed", False: "succeeded"}),
        }
    )


def _typed(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    import numpy as np

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
