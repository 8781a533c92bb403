"""From raw batches to a trace: each row is checked once and counted in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from capplan.formatting import counted, format_value
from capplan.schema import TRACE, DataError, names
from capplan.traffic.readers import doubts, recordings, repeats, unserved
from capplan.traffic.readers import times as t
from capplan.traffic.readers import values as v
from capplan.traffic.readers.grid import spread_times
from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.values import RawBatch
from capplan.traffic.trace import REASONS, Ledger, Trace, from_frame

LABELS = ("request_id", "request_class", "tenant", "session")
REALS = ("deadline_s", "size", "observed_e2e_s")
LENGTHS = ("prompt_tokens", "output_tokens")
LACKS, TRY = "lacks:", "try"
"""Keys of a part beside its columns: the lengths that a row lacks, and the number of its try."""
FORMS = "times in ISO 8601 or as numbers, whole token counts"
Mask = npt.NDArray[np.bool_]


class Cleaner:
    """Collects the usable rows of raw batches; :meth:`trace` puts them in order."""

    def __init__(self, layout: Layout, path: Path) -> None:
        self.layout = layout
        self.path = path
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self._unread = ""
        self._times: list[t.Times] = []
        self._parts: list[dict[str, Any]] = []
        self._runs: dict[str, list[Any]] = {}

    def add(self, batch: RawBatch) -> None:
        """Check the rows of a batch and keep the usable ones."""
        self.read += batch.rows + sum(batch.lost.values())
        self.dropped.update(batch.lost)
        if not batch.rows:
            return
        repeats.check_counts(batch.columns, self.path)
        for name in (n for n in batch.columns if n.startswith(recordings.PREFIX)):
            self._runs.setdefault(name, []).extend(v.plain(batch.columns[name]).to_pylist())
        commas = batch.decimal_commas or v.decimal_commas(v.plain(batch.columns["arrival_s"]))
        self._count("decimal_comma", commas)
        times = t.read_times(batch.columns["arrival_s"])
        prompt = v.token_counts(batch.columns["prompt_tokens"])
        output = v.token_counts(batch.columns["output_tokens"])
        self._count("thousands_separator", prompt.grouped + output.grouped)
        lengths = {"prompt_tokens": prompt, "output_tokens": output}
        lost = self._unserved(batch, prompt, output)
        alive = self._usable(batch, times, prompt, output, lost)
        part = {name: found.data[alive] for name, found in lengths.items()}
        part |= {f"{LACKS}{name}": (lost & ~_is_length(found))[alive]
                 for name, found in lengths.items()}  # fmt: skip
        part |= self._optional(batch, alive)
        part[TRY] = repeats.tries(batch.columns, batch.rows)[alive]
        self._times.append(times.keep(alive))
        self._parts.append(part)

    def _unserved(self, batch: RawBatch, prompt: v.Parsed, output: v.Parsed) -> Mask:
        """Return which rows are calls that were refused or failed, or whose answer is empty."""
        found = unserved.failed(batch.columns, batch.rows)
        if batch.drops is not None:
            found |= batch.drops == "failed"
        if self.layout.zero_reason == "failed":
            found |= _is_zero(prompt) | _is_zero(output)
        elif self.layout.zero_reason is not None:
            found |= _is_length(prompt) & _is_zero(output)
        return found

    def _usable(
        self, batch: RawBatch, times: t.Times, prompt: v.Parsed, output: v.Parsed, lost: Mask
    ) -> Mask:
        alive = np.ones(batch.rows, np.bool_)

        def drop(reason: str, mask: Mask) -> None:
            self.dropped[reason] += int((alive & mask).sum())
            alive[mask] = False

        if batch.drops is not None:
            for reason in sorted(set(batch.drops) - {"", "failed"}):
                drop(reason, batch.drops == reason)
        drop("missing_time", times.kind == t.GONE)
        drop("unparseable", times.kind == t.BROKEN)
        missing = (prompt.state == v.MISSING) | (output.state == v.MISSING)
        drop("missing_tokens", missing & ~lost)
        drop("unparseable", ((prompt.state == v.BAD) | (output.state == v.BAD)) & ~lost)
        self._show("arrival_s", batch, times.kind == t.BROKEN)
        self._show("prompt_tokens", batch, prompt.state == v.BAD)
        self._show("output_tokens", batch, output.state == v.BAD)
        drop("negative", times.negative() | (prompt.data < 0) | (output.data < 0))
        if self.layout.zero_reason is not None:
            zero = (prompt.data == 0) | (output.data == 0)
            if "size" in batch.columns:
                zero &= v.numbers(batch.columns["size"]).state != v.OK
            drop(self.layout.zero_reason, zero & ~lost)
        return alive

    def _show(self, name: str, batch: RawBatch, unread: Mask) -> None:
        """Keep the first value that cannot be read, for the error of a file without usable rows."""
        if not self._unread and unread.any():
            shown = v.plain(batch.columns[name])[int(unread.argmax())].as_py()
            self._unread = f" ({name} such as {str(shown)[:40]!r})"

    def _optional(self, batch: RawBatch, alive: Mask) -> dict[str, Any]:
        part: dict[str, Any] = {}
        keep = pa.array(alive)
        for name, array in batch.columns.items():
            if name in LABELS:
                part[name] = v.labels(array).filter(keep)
            elif name in REALS or name == "priority":
                part[name] = self._reals(name, array, alive)
            elif name == "streaming":
                parsed = v.flags(array)
                self._count("streaming_unparseable", int((parsed.state[alive] == v.BAD).sum()))
                known = parsed.data.astype(object)
                known[parsed.state != v.OK] = None
                part[name] = known[alive]
            elif name == "prefix_blocks":
                part[name] = v.plain(array).filter(keep)
        return part

    def _reals(self, name: str, array: Any, alive: Mask) -> npt.NDArray[np.float64]:
        parsed = v.numbers(array)
        values = np.where(parsed.state == v.OK, parsed.data, np.nan).astype(np.float64)
        self._count(f"{name}_unparseable", int((parsed.state[alive] == v.BAD).sum()))
        if name != "priority":
            below = values < 0
            self._count(f"{name}_negative", int((below & alive).sum()))
            values[below] = np.nan
        else:
            values[values != np.floor(values)] = np.nan
        kept: npt.NDArray[np.float64] = (
            values[alive] / doubts.UNITS_PER_S[self.layout.units.get(name, "s")]
        )
        return kept

    def _count(self, change: str, n: int) -> None:
        if n:
            self.changed[change] += n

    def trace(self, *, seed: int, spread: bool | float | None, sha256: str | None) -> Trace:
        """Return the kept rows in order of arrival.

        Raises :class:`DataError` if no row is left; the message lists the reasons.
        """
        self._need_rows(sum(len(part["prompt_tokens"]) for part in self._parts))
        lacks = {name: np.concatenate([part.pop(f"{LACKS}{name}") for part in self._parts])
                 for name in LENGTHS}  # fmt: skip
        further = repeats.further(np.concatenate([part.pop(TRY) for part in self._parts]))
        arrivals = self._arrivals()
        table = self._table(arrivals.seconds)
        self._check_one_recording(table, arrivals)
        keep = {"other_time_unit": arrivals.good, "retry": ~further}
        table, lacks = self._kept(table, lacks, keep)
        table, lacks, again = repeats.of_first_ids(table, lacks, self.path)
        table, lacks = self._kept(table, lacks, {"duplicate_id": ~again})
        table, lost = self._with_lengths(table, lacks, seed=seed)
        notes = [*self.layout.notes, *arrivals.notes, *lost, *repeats.copies(table, self.path)]
        signs = {"decimal_comma": "numbers", "thousands_separator": "token counts"}
        notes += [f"{name.capitalize().replace('_', ' ')} in {what}."
                  for name, what in signs.items() if self.changed[name]]  # fmt: skip
        ordered = from_frame(table, source=self.path.name)
        frame = ordered.frame
        notes += doubts.silence(frame["arrival_s"].to_numpy())
        if not self.layout.exact_times or spread not in (None, False):
            frame, note = spread_times(frame, spread=spread, seed=seed)
            notes += [note] if note else []
            self._count("times_spread", len(frame) if note else 0)
        return replace(
            ordered,
            frame=frame,
            ledger=self._ledger(len(frame), ordered.ledger.changed),
            format=self.layout.format,
            start=arrivals.start,
            duration_s=self.layout.duration_s,
            notes=(*notes, *self._losses(len(frame))),
            sha256=sha256,
            prefix_block_tokens=self.layout.prefix_block_tokens,
        )

    def _kept(
        self, table: pd.DataFrame, lacks: Mapping[str, Mask], keep: Mapping[str, Mask]
    ) -> tuple[pd.DataFrame, dict[str, Mask]]:
        """Return the rows to keep; the others are dropped for the first reason that applies."""
        alive = np.ones(len(table), np.bool_)
        for reason, mask in keep.items():
            self.dropped[reason] += int((alive & ~mask).sum())
            alive &= mask
        self._need_rows(int(alive.sum()))
        if not alive.all():
            table = table[alive].reset_index(drop=True)
        return table, {name: mask[alive] for name, mask in lacks.items()}

    def _check_one_recording(self, table: pd.DataFrame, arrivals: t.ArrivalTimes) -> None:
        for name, values in self._runs.items():
            recordings.check_column(name.removeprefix(recordings.PREFIX), values, self.path)
        if "deadline_s" in table and "deadline_s" not in self.layout.units:
            doubts.check_deadlines(table["deadline_s"].to_numpy(np.float64), self.path)
        if arrivals.start is None:
            groups = [table[name] for name in LABELS if name in table]
            recordings.check_times(arrivals.seconds, self.path, groups=groups)

    def _with_lengths(
        self, table: pd.DataFrame, lacks: Mapping[str, Mask], *, seed: int
    ) -> tuple[pd.DataFrame, list[str]]:
        """Return the table with the lengths of unserved calls, and what was imputed."""
        if all(mask.all() for mask in lacks.values()):
            self.dropped["missing_tokens"] += len(table)
            self._need_rows(0)
        found, notes = unserved.imputed(table, lacks, seed=seed)
        self._count("imputed_tokens", int(found["imputed"].sum()) if notes else 0)
        return found, notes

    def _ledger(self, kept: int, changed: Mapping[str, int]) -> Ledger:
        dropped = {reason: self.dropped[reason] for reason in REASONS if self.dropped[reason]}
        return Ledger(
            read=self.read, kept=kept, dropped=dropped, changed={**changed, **self.changed}
        )

    def _losses(self, kept: int) -> tuple[str, ...]:
        lost = self.read - kept
        if not lost:
            return ()
        why = ", ".join(f"{REASONS[r]}: {self.dropped[r]:,}" for r in REASONS if self.dropped[r])
        share = format_value(lost / self.read, "_fraction")
        return (f"{counted(lost, 'row')} ({share}) dropped ({why}); rates leave them out.",)

    def _need_rows(self, kept: int) -> None:
        if kept:
            return
        why = ", ".join(f"{reason} {n}" for reason, n in self.dropped.items() if n)
        value = f"{counted(self.read, 'row')}, dropped: {why}" if self.read else "0 rows"
        if not self._unread:
            raise DataError("at least one usable request", where=self.path, value=value)
        rule = f"at least one usable request ({FORMS})"
        raise DataError(rule, where=self.path, value=f"{value}{self._unread}")

    def _arrivals(self) -> t.ArrivalTimes:
        times = t.joined([part for part in self._times if len(part.kind)])
        self._times.clear()
        unit = self.layout.units.get("arrival_s")
        proven = unit is not None and not self.layout.unit_is_assumed
        exact = self.layout.exact_times
        return t.arrivals(
            times,
            unit=unit,
            proven=proven,
            exact=exact,
            guessed=self.layout.guessed and unit is None,
            where=str(self.path),
        )

    def _table(self, seconds: npt.NDArray[np.float64]) -> pd.DataFrame:
        present = self._parts[0].keys()
        columns: dict[str, Any] = {}
        for name in names(TRACE):
            if name == "arrival_s":
                columns[name] = seconds
            elif name in present:
                columns[name] = _joined(name, [part.pop(name) for part in self._parts])
        self._parts.clear()
        return pd.DataFrame(columns, copy=False)


def _is_zero(found: v.Parsed) -> Mask:
    return np.asarray((found.state == v.OK) & (found.data == 0), np.bool_)


def _is_length(found: v.Parsed) -> Mask:
    return np.asarray((found.state == v.OK) & (found.data > 0), np.bool_)


def _joined(name: str, pieces: list[Any]) -> Any:
    """Return one column from its pieces, one of each batch."""
    if name in LABELS:
        return pd.Series(pd.array(pa.chunked_array(pieces, pa.string()), dtype="str"))
    return _blocks(pieces) if name == "prefix_blocks" else np.concatenate(pieces)


def _blocks(pieces: list[Any]) -> pd.Series[Any]:
    """Return one int64 array of block ids per row; ids that are text are numbered."""
    rows = np.empty(sum(map(len, pieces)), object)
    numbered: dict[Any, int] = {}
    at = 0
    for piece in pieces:
        nested = pa.types.is_list(piece.type)
        flat = piece.flatten() if nested else None
        if flat is not None and pa.types.is_integer(flat.type) and not flat.null_count:
            flat = flat.cast(pa.int64(), safe=False).to_numpy()
            ends = (piece.offsets.to_numpy() - piece.offsets[0].as_py()).tolist()
            for row, (start, end) in enumerate(pairwise(ends), start=at):
                rows[row] = flat[start:end]
        else:
            lists = piece.to_pylist() if nested else [None] * len(piece)
            for i, ids in enumerate(lists):
                found = [numbered.setdefault(x, len(numbered)) for x in ids or []]
                rows[at + i] = np.array(found, np.int64)
        at += len(piece)
    return pd.Series(rows, dtype=object)
