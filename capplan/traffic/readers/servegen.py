"""ServeGen client profiles: per-client rate, burstiness and length laws, drawn as requests.

A profile lists no requests: the reader draws them, reproducibly, for a span of the profile.
A client becomes a tenant (``m-small/chunk-3``), its folder the class (``m-small``). In each window
the gaps follow the client's Gamma or Weibull law with the window's own rate and CV, in equilibrium
from its start; each length comes from the law of the enclosing window, input and output
independently, as the profile has no joint one. The law's two fitted parameters are not used: the
Gamma shape is 1/CV² in the published files, and the Weibull fit misses the recorded CV by 20 %.

Source: Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model
Serving in Production", 2025; alibaba/ServeGen, data/ and servegen/clientpool.py.
"""

from __future__ import annotations

import ast
import io
import json
import lzma
import math
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capplan.scenario.traffic import GammaGaps, WeibullGaps
from capplan.schema import DataError
from capplan.traffic.arrivals import first_gap, gaps
from capplan.traffic.readers.layouts import Layout
from capplan.traffic.readers.values import RawBatch

_NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)$")
_BROKEN = (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)
_NOT_LAWS = (ValueError, SyntaxError, TypeError, AttributeError, KeyError, OverflowError,
             RecursionError, MemoryError)  # fmt: skip
_COLUMNS = 6
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "request_class", "tenant")
SPAN_S = (0.0, 600.0)
MOST_REQUESTS = 10_000_000
CV_RANGE = (0.01, 1000.0)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """Rate and gap law of a client from ``start_s`` on; rate 0 = silent."""

    start_s: float
    rate_rps: float
    cv: float
    law: str

    @property
    def gaps(self) -> GammaGaps | WeibullGaps:
        """The gap law with the window's CV; published CVs exceed those that a scenario allows."""
        law = GammaGaps if self.law == "Gamma" else WeibullGaps
        return law.model_construct(cv=self.cv)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Client:
    """One client: its windows and, by window start, its length laws (None where absent)."""

    name: str
    group: str
    windows: tuple[RateWindow, ...]
    laws: dict[float, tuple[Law, Law]] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Law:
    """A discrete distribution of lengths."""

    tokens: npt.NDArray[np.int64]
    cumulative: Floats

    def draw(self, rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        """Return ``n`` lengths."""
        at = np.searchsorted(self.cumulative, rng.uniform(size=n), side="right")
        drawn: npt.NDArray[np.int64] = self.tokens[np.minimum(at, len(self.tokens) - 1)]
        return drawn


def layout(span_s: tuple[float, float], seed: int) -> Layout:
    """Return the layout of drawn requests, with notes on how they are drawn."""
    return Layout(
        format="servegen",
        columns=dict(zip(COLUMNS, COLUMNS, strict=True)),
        units={"arrival_s": "s"},
        exact_times=True,
        duration_s=span_s[1] - span_s[0],
        notes=(
            f"Requests are drawn from per-client profiles for {span_s[0]:g}–{span_s[1]:g} s "
            f"with seed {seed}; each client is a tenant.",
            "Rates are read as requests per second; the source does not state their unit.",
            "Input and output lengths are drawn independently: the source has no joint law.",
            "Requests of clients without length laws are dropped as missing_tokens.",
        ),
    )


def batches(
    path: Path, *, span_s: tuple[float, float], seed: int, only: str | None = None
) -> Iterator[RawBatch]:
    """Yield the drawn requests of each client, or of those whose folder is called ``only``.

    Raises :class:`DataError` if there is no client, a file is broken, or the span needs too many
    requests.
    """
    clients = [c for c in read_clients(path, span_s) if only in (None, c.group)]
    if not clients:
        raise DataError("a folder of the profile", where=path, field="only", value=only)
    expected = sum(_expected(client, span_s) for client in clients)
    if expected > MOST_REQUESTS:
        rule = f"a span of at most {MOST_REQUESTS:,} requests"
        raise DataError(rule, where=path, value=round(expected))
    seeds = np.random.SeedSequence([seed]).spawn(len(clients))
    yield _together(
        [
            _drawn(client, span_s, np.random.default_rng(child))
            for client, child in zip(clients, seeds, strict=True)
        ]
    )


def _together(drawn: list[pa.Table]) -> RawBatch:
    """Return the requests of all clients in order of arrival."""
    table = pa.concat_tables(drawn).sort_by("arrival_s").combine_chunks()
    columns = {name: table.column(name) for name in table.column_names}
    return RawBatch(columns=columns, rows=table.num_rows)


def read_clients(path: Path, span_s: tuple[float, float]) -> list[Client]:
    """Return the clients of a folder or archive, ordered by folder and number.

    Only the length laws of the span are read.
    Raises :class:`DataError` if there is no client, or a file of one is broken.
    """
    found: dict[tuple[str, int], dict[str, bytes]] = {}
    for name, data in _members(path):
        match = _NAME.search(name)
        if match:
            key = (PurePosixPath(name).parent.as_posix(), int(match[1]))
            found.setdefault(key, {})[match[2]] = data
    clients = [
        _client(folder, number, parts, path, span_s)
        for (folder, number), parts in sorted(found.items())
        if "trace.csv" in parts
    ]
    if not clients:
        raise DataError("chunk-<n>-trace.csv and chunk-<n>-dataset.json of clients", where=path)
    return clients


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("chunk-*")):
            if file.is_file():
                yield file.relative_to(path.parent).as_posix(), _content(file)
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield member.name, stream.read()
    except _BROKEN as err:
        raise DataError("a complete tar archive", where=path, value=str(err)) from err


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as err:
        raise DataError("a readable file", where=file, value=str(err)) from err


def _client(
    folder: str, number: int, parts: dict[str, bytes], path: Path, span_s: tuple[float, float]
) -> Client:
    group = PurePosixPath(folder).name
    name = f"{group}/chunk-{number}"
    where = f"{path}: {folder}/chunk-{number}"
    windows = _windows(parts["trace.csv"], f"{where}-trace.csv")
    data = parts.get("dataset.json")
    laws = None if data is None else _laws(data, f"{where}-dataset.json", span_s)
    return Client(name=name, group=group, windows=windows, laws=laws)


def _windows(data: bytes, where: str) -> tuple[RateWindow, ...]:
    windows: list[RateWindow] = []
    for i, line in enumerate(io.StringIO(data.decode("utf-8", "replace")), start=1):
        if not line.strip():
            continue
        fields = line.strip().split(",")
        try:
            if len(fields) != _COLUMNS:
                raise ValueError(f"{len(fields)} fields")
            start, rate, cv = (float(fields[j]) for j in (0, 1, 2))
            window = RateWindow(start_s=start, rate_rps=rate, cv=cv, law=fields[3].strip())
            _check(window, windows[-1].start_s if windows else -math.inf)
        except ValueError as err:
            rule = "start, rate, cv, Gamma|Weibull or nothing, two parameters"
            raise DataError(rule, where=where, field=f"line {i}", value=str(err)) from err
        windows.append(window)
    if not windows:
        raise DataError("at least one window", where=where)
    return tuple(windows)


def _check(window: RateWindow, after_s: float) -> None:
    good = all(map(math.isfinite, (window.start_s, window.rate_rps, window.cv)))
    if not good or window.rate_rps < 0 or window.start_s <= after_s:
        raise ValueError("windows in order of time, finite rates, none negative")
    if window.law not in ("Gamma", "Weibull", ""):
        raise ValueError(f"unknown law {window.law!r}")
    if window.law and not CV_RANGE[0] <= window.cv <= CV_RANGE[1]:
        raise ValueError(f"a CV from {CV_RANGE[0]} to {CV_RANGE[1]}, got {window.cv}")


def _laws(data: bytes, where: str, span_s: tuple[float, float]) -> dict[float, tuple[Law, Law]]:
    try:
        document = json.loads(data)
        starts = sorted((float(key), key) for key, _ in document.items())
        found: dict[float, tuple[Law, Law]] = {}
        for start, key in reversed([pair for pair in starts if pair[0] < span_s[1]]):
            prompt, output = _input(document[key]), _law(document[key]["output_tokens"])
            if prompt is not None and output is not None:
                found[start] = (prompt, output)
                if start <= span_s[0]:
                    break
    except _NOT_LAWS as err:
        rule = "a {length: probability} table for input and output per window"
        raise DataError(rule, where=where, value=str(err)) from err
    return found


def _input(fields: dict[str, Any]) -> Law | None:
    """Return the input law; a multimodal client's is that of the sum of its parts."""
    if "input_tokens" in fields:
        return _law(fields["input_tokens"])
    parts = [
        _law(fields[key])
        for key in ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")
        if key in fields
    ]
    if not parts or any(part is None for part in parts):
        return None
    return _sum([part for part in parts if part is not None])


def _law(text: str) -> Law | None:
    """Return the law of a table written as a Python dictionary; None for an empty one."""
    table = ast.literal_eval(text)
    tokens = np.array(list(table), dtype=np.int64)
    weights = np.array(list(table.values()), dtype=np.float64)
    if (weights < 0).any() or not np.isfinite(weights).all() or (tokens < 0).any():
        raise ValueError("lengths and probabilities that are not negative")
    if not weights.sum() > 0:
        return None
    return Law(tokens=tokens, cumulative=np.cumsum(weights) / weights.sum())


def _sum(parts: list[Law]) -> Law:
    """Return the law of a sum of independent parts, from 4,096 even quantiles of each."""
    rng = np.random.default_rng(0)
    levels = (np.arange(4096) + 0.5) / 4096
    total = np.zeros(len(levels), np.int64)
    for part in parts:
        at = np.searchsorted(part.cumulative, levels, side="right")
        total += rng.permutation(part.tokens[np.minimum(at, len(part.tokens) - 1)])
    tokens, sizes = np.unique(total, return_counts=True)
    return Law(tokens=tokens, cumulative=np.cumsum(sizes) / sizes.sum())


def _spans(
    client: Client, span_s: tuple[float, float]
) -> Iterator[tuple[RateWindow, float, float]]:
    """Yield the windows inside the span, cut to it."""
    starts = [w.start_s for w in client.windows]
    last = starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else math.inf)
    for window, end in zip(client.windows, [*starts[1:], last], strict=True):
        begin, stop = max(window.start_s, span_s[0]), min(end, span_s[1])
        if begin < stop and window.law and window.rate_rps > 0:
            yield window, begin, stop


def _expected(client: Client, span_s: tuple[float, float]) -> float:
    return sum(w.rate_rps * (stop - begin) for w, begin, stop in _spans(client, span_s))


def _drawn(client: Client, span_s: tuple[float, float], rng: np.random.Generator) -> pa.Table:
    arrival = _arrivals(client, span_s, rng)
    n = len(arrival)
    prompt, output = _lengths(client, arrival, rng)
    columns = {
        "arrival_s": pa.array(arrival - span_s[0], pa.float64()),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "request_class": pa.array([client.group] * n, pa.string()),
        "tenant": pa.array([client.name] * n, pa.string()),
    }
    return pa.table(columns)


def _arrivals(client: Client, span_s: tuple[float, float], rng: np.random.Generator) -> Floats:
    """Return the arrivals of all windows; their expected number is the integral of the rate."""
    parts = [
        begin + _renewals(window, window.rate_rps * (stop - begin), rng) / window.rate_rps
        for window, begin, stop in _spans(client, span_s)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _renewals(window: RateWindow, load: float, rng: np.random.Generator) -> Floats:
    """Return renewal moments in ``[0, load)`` of gaps with mean one, started in equilibrium."""
    block = int(load + 4 * math.sqrt(load)) + 64
    moments = np.array([first_gap(window.gaps, rng)])
    while moments[-1] < load:
        more = moments[-1] + np.cumsum(gaps(window.gaps, block, rng))
        moments = np.concatenate([moments, more])
        if len(moments) > MOST_REQUESTS:
            rule = f"windows of at most {MOST_REQUESTS:,} requests"
            raise DataError(rule, field="cv", value=window.cv)
    return moments[moments < load]


def _lengths(client: Client, arrival: Floats, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return input and output lengths as Arrow arrays, null where the client has no law."""
    if not client.laws or not len(arrival):
        return (pa.nulls(len(arrival), pa.int64()),) * 2
    starts = np.array(sorted(client.laws))
    slot = np.searchsorted(starts, arrival, side="right") - 1
    drawn = np.full((2, len(arrival)), -1, np.int64)
    for i in np.unique(slot[slot >= 0]):
        inside = slot == i
        for side, law in enumerate(client.laws[float(starts[i])]):
            drawn[side, inside] = law.draw(rng, int(inside.sum()))
    absent = slot < 0
    return pa.array(drawn[0], mask=absent), pa.array(drawn[1], mask=absent)
