"""One measured run: its requests, its server, and what had to be assumed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from capplan.formatting import counted
from capplan.measured.repetition import Repetition, repetition
from capplan.measured.rows import read_rows
from capplan.measured.server import Origin, Server, read_server
from capplan.scenario.classes import SLOWEST_TOKEN_S
from capplan.schema import OUTCOMES, DataError, require_columns
from capplan.traffic.readers.doubts import DOUBTED_ROWS, SLOW_GAP_S

SERVER_FILE = "server.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """A measured run.

    Attributes
    ----------
    name
        Of the folder or file.
    requests
        One row per request in order of ``start_s``. ``start_s``: when it was sent, or meant to be
        (from the first); ``prompt_tokens``, ``output_tokens``; ``ttft_s``, ``e2e_s``: from the
        moment ``origin``, NaN where there was none; ``tpot_s``; ``outcome``; ``prompt``: number of
        the prompt where the run sent the same ones again, else -1.
    server
        What is known of the server and the client.
    origin
        The moment that latencies count from.
    repetition
        The cycle of prompts, None without one.
    series
        ``time_s``, ``running``, ``waiting`` as the engine logged them, None without a file
        ``timeseries.*``.
    notes
        Sentences that say what was assumed.
    """

    name: str
    requests: pd.DataFrame
    server: Server
    origin: Origin
    repetition: Repetition | None = None
    series: pd.DataFrame | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def succeeded(self) -> pd.DataFrame:
        """Return the requests that succeeded."""
        return self.requests[self.requests["outcome"] == "succeeded"]


def read_measured(path: str | Path, *, server: Server | None = None) -> Measured:
    """Read a measured run: a folder with ``requests.*`` and ``server.json``, or a file.

    A file's server is the ``server.json`` beside it, if there is one, else ``server``, else
    unknown. Raises :class:`DataError` naming file, field and rule.
    """
    place = Path(path)
    table = _table(place)
    beside = table.parent / SERVER_FILE
    if beside.is_file():
        server = read_server(beside)
    elif place.is_dir():
        raise DataError("an existing file", where=beside)
    server = server or Server()
    read = read_rows(table)
    rows, dropped = read.frame, Counter(read.dropped)
    origin = _origin(rows, server, table)
    frame = _kept(_latencies(rows, origin, server, table), dropped, table)
    again = repetition(frame["prompt_tokens"].where(frame["outcome"] == "succeeded"))
    frame, notes = _filled(frame.assign(prompt=-1 if again is None else again.ids), again, table)
    notes = [f"Latencies count from {origin}.", *notes]
    if read.tool:
        notes.insert(0, f"Read as a file of {read.tool}.")
    if dropped:
        total = len(frame) + dropped.total()
        reasons = ", ".join(f"{n} × {reason}" for reason, n in dropped.items())
        notes.append(f"{counted(dropped.total(), 'row')} of {total:,} dropped: {reasons}.")
    if read.unused:
        notes.append(f"Not used: {', '.join(read.unused)} of {table.name}.")
    if server.unused:
        notes.append(f"Not used: {', '.join(server.unused)} of {SERVER_FILE}.")
    return Measured(
        name=place.name if place.is_dir() else place.name.split(".")[0],
        requests=frame,
        server=server,
        origin=origin,
        repetition=again,
        series=_series(table.parent) if place.is_dir() else None,
        notes=tuple(notes),
    )


def _table(place: Path) -> Path:
    if not place.is_dir():
        return place
    found = sorted(p for p in place.glob("requests.*") if p.is_file())
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "nothing"
        raise DataError("one file requests.*", where=place, value=names)
    return found[0]


def _series(folder: Path) -> pd.DataFrame | None:
    found = sorted(folder.glob("timeseries.csv*"))
    if not found:
        return None
    try:
        frame = pd.read_csv(found[0])
    except (OSError, ValueError) as err:
        raise DataError(f"a readable CSV file ({err})", where=found[0]) from err
    frame = frame.rename(columns={"t": "time_s"})
    require_columns(frame, ("time_s", "running", "waiting"), where=found[0])
    return frame[["time_s", "running", "waiting"]].astype("float64")


def _origin(rows: pd.DataFrame, server: Server, table: Path) -> Origin:
    if (stated := server.origin) is not None:
        if stated not in rows and not {"intended_start_s", "sent_s"} & set(rows):
            raise DataError("a required column", where=table, field=stated, value="nothing")
        if stated in rows:
            return stated
    names: tuple[Origin, ...] = ("intended_start_s", "sent_s")
    for name in names:
        if name in rows:
            return name
    raise DataError("intended_start_s or sent_s", where=table, value="neither")


def _latencies(rows: pd.DataFrame, origin: Origin, server: Server, table: Path) -> pd.DataFrame:
    """Return start, lengths, latencies and outcome of each request."""
    for name in ("prompt_tokens", "output_tokens"):
        if name not in rows:
            raise DataError("a required column", where=table, field=name, value="nothing")
    capped = server.client_max_in_flight is not None and "intended_start_s" in rows
    start = rows["intended_start_s"] if capped else rows[origin]
    ttft = _latency(rows, "ttft_s", "first_token_s", origin)
    e2e = _latency(rows, "e2e_s", "finish_s", origin)
    if ttft.isna().all() and e2e.isna().all():
        raise DataError("ttft_s, first_token_s, e2e_s or finish_s", where=table, value="none")
    ended = e2e if e2e.notna().any() else ttft
    outcome = rows.get("outcome", pd.Series(np.where(ended.notna(), "succeeded", "failed")))
    if unknown := sorted(set(outcome.astype(str)) - set(OUTCOMES)):
        rule = f"one of {', '.join(OUTCOMES)}"
        raise DataError(rule, where=table, field="outcome", value=unknown[0])
    output = rows["output_tokens"]
    frame = pd.DataFrame(
        {
            "start_s": start - start.min(),
            "prompt_tokens": rows["prompt_tokens"],
            "output_tokens": output,
            "ttft_s": ttft,
            "e2e_s": e2e,
            "tpot_s": ((e2e - ttft) / (output - 1)).where(output > 1),
            "outcome": outcome.to_numpy(),
        }
    )
    ok = frame["outcome"] == "succeeded"
    frame.loc[~ok, ["ttft_s", "e2e_s", "tpot_s"]] = np.nan
    return frame.sort_values("start_s", kind="stable", ignore_index=True)


def _kept(frame: pd.DataFrame, dropped: Counter[str], table: Path) -> pd.DataFrame:
    """Return the requests that can be replayed; the others are counted in ``dropped``."""
    ok = frame["outcome"] == "succeeded"
    has_tokens = (frame[["prompt_tokens", "output_tokens"]] > 0).all(axis=1)
    faults = {
        "no start": frame["start_s"].isna(),
        "an answer without tokens": ok & ~has_tokens,
        "a first token after the last": ok & (frame["ttft_s"] > frame["e2e_s"]),
    }
    keep = pd.Series(data=True, index=frame.index)
    for reason, wrong in faults.items():
        if count := int((wrong & keep).sum()):
            dropped[reason] += count
        keep &= ~wrong
    if not keep.any():
        reasons = ", ".join(f"{n} × {reason}" for reason, n in dropped.items())
        raise DataError("at least one request with start and tokens", where=table, value=reasons)
    kept = frame[keep]
    _check_units(kept, table)
    return kept.assign(start_s=kept["start_s"] - kept["start_s"].min()).reset_index(drop=True)


def _check_units(kept: pd.DataFrame, table: Path) -> None:
    """Refuse starts and latencies that are milliseconds under the name of seconds."""
    start, token_s = kept["start_s"], (kept["e2e_s"] / kept["output_tokens"]).median()
    gap_s = (start.max() - start.min()) / max(len(start) - 1, 1)
    if len(kept) >= DOUBTED_ROWS and token_s > SLOWEST_TOKEN_S:
        rule = "latencies in s (name columns in ms so: ttft_ms, e2e_ms)"
        raise DataError(rule, where=table, value=f"{token_s:.3g} s for a token at the median")
    if len(kept) >= DOUBTED_ROWS and gap_s > SLOW_GAP_S and (start % 1 == 0).all():
        rule = "starts in s (name a column in ms so: sent_ms)"
        raise DataError(rule, where=table, value=f"whole numbers, {gap_s:,.4g} apart")


def _latency(rows: pd.DataFrame, latency: str, moment: str, origin: Origin) -> pd.Series[float]:
    if latency in rows:
        return rows[latency]
    if moment in rows:
        return rows[moment] - rows[origin]
    return pd.Series(np.nan, index=rows.index)


def _filled(
    frame: pd.DataFrame, again: Repetition | None, table: Path
) -> tuple[pd.DataFrame, list[str]]:
    """Return the frame with lengths where a failed request has none, and what was assumed."""
    notes = [again.note] if again is not None else []
    lengths = ["prompt_tokens", "output_tokens"]
    lost = (frame["outcome"] != "succeeded") & ~(frame[lengths] > 0).all(axis=1)
    if not lost.any():
        return frame.astype(dict.fromkeys(lengths, "int64")), notes
    known = frame[~lost]
    if known.empty:
        raise DataError("at least one request with its tokens", where=table, value=0)
    median = known[lengths].median()
    frame = frame.copy()
    for name in lengths:
        guess = frame["prompt"].map(known.groupby("prompt")[name].median())
        guess = guess.where(frame["prompt"] >= 0).fillna(median[name])
        frame[name] = frame[name].where(~lost, guess).round().astype("int64")
    notes.append(
        f"{counted(int(lost.sum()), 'request')} without tokens got those of the same prompt, "
        "else the median."
    )
    return frame, notes
