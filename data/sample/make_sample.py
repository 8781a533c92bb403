"""Make the sample trace from figures.csv: ``make_sample.py`` → trace.parquet.

One hour, three classes, four tenants. Lengths, their joint law, the rate and the burstiness are
those of the Azure 2023 hours (figures.csv); who asks, sessions, prefixes, deadlines and the split
of the rate over classes are ours (README.md). Same figures and seed → the same rows.
"""

from __future__ import annotations

import argparse
import csv
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
SEED = 20231116
DURATION_S = 3600.0
BLOCK_TOKENS = 128
PARTS_OF_THE_HOUR = 12

THINK_S = (5.0, 300.0)
"""A session goes on if its next prompt comes this long after the last: our assumption."""
FOLLOW_UP_SHARE = 0.5
"""Share of prompts that may continue a session. With it a conversation has about two turns, the
mean of LMSYS-Chat-1M (Zheng et al., ICLR 2024, table 1: 2.0 turns per conversation)."""
JOB_GAP_S = 10.0
"""Batch requests closer together than this belong to one job: our assumption."""


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The requests of one class: which hour gives their law, and what is ours."""

    hour: str
    share: float
    """Of the whole rate, which is the conversation hour's."""
    tenants: Mapping[str, float]
    priority: int
    streaming_share: float


CROWDS = {
    "chat": Crowd(
        hour="conversation",
        share=0.65,
        tenants={"web-shop": 0.64, "mobile-app": 0.36},
        priority=0,
        streaming_share=1.0,
    ),
    "assistant": Crowd(
        hour="conversation",
        share=0.20,
        tenants={"engineering": 0.6, "back-office": 0.4},
        priority=1,
        streaming_share=0.7,
    ),
    "batch": Crowd(
        hour="code",
        share=0.15,
        tenants={"engineering": 0.3, "back-office": 0.7},
        priority=10,
        streaming_share=0.0,
    ),
}
SYSTEM_PROMPT_TOKENS = {"web-shop": 512, "mobile-app": 256, "engineering": 768, "back-office": 384}
DEADLINE_S = {("chat", "mobile-app"): 20.0, ("batch", "back-office"): 900.0}
"""Deadlines that a caller sends itself; the others have the promise of their class."""


class Figures:
    """The figures of one hour by name."""

    def __init__(self, path: Path, hour: str) -> None:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["hour"] == hour]
        self.values = {row["figure"]: float(row["value"]) for row in rows}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def quantiles(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the levels and values of the figures ``name.q…``, in order of the level."""
        start = f"{name}.q"
        found = [(float(k[len(start) :]), v) for k, v in self.values.items() if k.startswith(start)]
        levels, values = zip(*sorted(found), strict=True)
        return np.array(levels), np.array(values)

    def drawn(self, name: str, levels: np.ndarray) -> np.ndarray:
        """Return the law's values at the levels: log-linear between the figures."""
        known, values = self.quantiles(name)
        return np.exp(np.interp(levels, known, np.log(values)))

    def rate_by_part(self) -> np.ndarray:
        """Return the rate of each twelfth of the hour, relative to the mean."""
        parts = [self[f"rate.part{i}"] for i in range(1, PARTS_OF_THE_HOUR + 1)]
        return np.array(parts)


def sample() -> pd.DataFrame:
    """Return the trace, one row per request in order of arrival."""
    seeds = np.random.SeedSequence(SEED).spawn(len(CROWDS))
    total_rps = Figures(HERE / "figures.csv", "conversation")["rate_rps"]
    frames = [
        _requests(name, crowd, crowd.share * total_rps, np.random.default_rng(seed))
        for (name, crowd), seed in zip(CROWDS.items(), seeds, strict=True)
    ]
    table = pd.concat(frames).sort_values("arrival_s", kind="stable", ignore_index=True)
    table.insert(0, "request_id", [f"s{i:05d}" for i in range(len(table))])
    table["prefix_blocks"] = _prefix_blocks(table)
    return table


def _requests(name: str, crowd: Crowd, rate_rps: float, rng: np.random.Generator) -> pd.DataFrame:
    figures = Figures(HERE / "figures.csv", crowd.hour)
    arrivals = _renewal_by_part if crowd.hour == "conversation" else _bursts
    arrival_s = np.round(arrivals(figures, rate_rps, rng), 3)
    prompt, output = _lengths(figures, len(arrival_s), rng)
    job = _job_of(arrival_s) if name == "batch" else np.arange(len(arrival_s))
    tenant = _choice(crowd.tenants, job[-1] + 1, rng)[job]
    session = job if name == "batch" else _conversations(arrival_s, prompt, output, tenant, rng)
    return pd.DataFrame(
        {
            "arrival_s": arrival_s,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "request_class": name,
            "tenant": tenant,
            "session": [f"{name}-{i}" for i in session],
            "priority": crowd.priority,
            "streaming": rng.random(len(arrival_s)) < crowd.streaming_share,
            "deadline_s": [DEADLINE_S.get((name, t), np.nan) for t in tenant],
        }
    )


def _renewal_by_part(figures: Figures, rate_rps: float, rng: np.random.Generator) -> np.ndarray:
    """Gamma gaps whose rate follows the hour; together they have the hour's CV of gaps.

    With n_i = share of the gaps in part i, proportional to its rate r_i, and gaps of CV c there,
    1 + CV² = (1 + c²) · mean(r) · mean(1/r): the second moment over parts of equal length.
    """
    parts = figures.rate_by_part()
    cv2 = (1 + figures["gap_cv"] ** 2) / (parts.mean() * (1 / parts).mean()) - 1
    expected = rate_rps * DURATION_S
    gaps = rng.gamma(1 / cv2, cv2, size=int(expected + 10 * np.sqrt(expected)))
    edges = np.linspace(0, DURATION_S, PARTS_OF_THE_HOUR + 1)
    by_edge = np.concatenate([[0], np.cumsum(parts / parts.sum()) * expected])
    count = np.cumsum(gaps)
    return np.interp(count[count < expected], by_edge, edges)


def _bursts(figures: Figures, rate_rps: float, rng: np.random.Generator) -> np.ndarray:
    """Gaps with the hour's own law, each stratum once, in random order: short jobs, long pauses."""
    n = int(rate_rps * DURATION_S)
    gaps = rng.permutation(figures.drawn("gap", (np.arange(n) + 0.5) / n))
    return np.cumsum(gaps) / gaps.sum() * DURATION_S * (1 - 1 / n)


def _lengths(figures: Figures, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Prompt from its law, output from its law given the prompt's group: the joint law."""
    level = rng.random(n)
    prompt = np.rint(figures.drawn("prompt_tokens", level)).astype(np.int64)
    group = np.searchsorted([0.25, 0.5, 0.75, 0.9], level)
    output = np.zeros(n, np.int64)
    for i in range(5):
        inside = group == i
        drawn = figures.drawn(f"output_tokens.prompt{i + 1}", rng.random(inside.sum()))
        output[inside] = np.rint(drawn)
    return prompt, output


def _choice(shares: Mapping[str, float], n: int, rng: np.random.Generator) -> np.ndarray:
    names, weights = np.array(list(shares)), np.array(list(shares.values()))
    return names[rng.choice(len(names), size=n, p=weights / weights.sum())]


def _job_of(arrival_s: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.diff(arrival_s) > JOB_GAP_S)])


def _conversations(
    arrival_s: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    tenant: np.ndarray,
    rng: np.random.Generator,
) -> list[int]:
    """Session of each request: a prompt may go on with one that fits into it, answer included."""
    waiting: dict[str, deque[tuple[float, int, int]]] = {t: deque() for t in set(tenant)}
    follows = rng.random(len(arrival_s)) < FOLLOW_UP_SHARE
    sessions: list[int] = []
    new = 0
    for i, now in enumerate(arrival_s):
        open_ones = waiting[tenant[i]]
        while open_ones and now - open_ones[0][0] > THINK_S[1]:
            open_ones.popleft()
        fits = [
            k
            for k, (last, context, _) in enumerate(open_ones)
            if now - last >= THINK_S[0] and context <= prompt[i]
        ]
        if follows[i] and fits:
            k = fits[int(rng.integers(len(fits)))]
            session = open_ones[k][2]
            del open_ones[k]
        else:
            session, new = new, new + 1
        sessions.append(session)
        open_ones.append((float(now), int(prompt[i] + output[i]), session))
    return sessions


def _prefix_blocks(table: pd.DataFrame) -> list[list[int]]:
    """Ids of each prompt's complete blocks: the tenant's system prompt, then the session's own."""
    free = 0
    system: dict[str, list[int]] = {}
    for tenant, tokens in SYSTEM_PROMPT_TOKENS.items():
        system[tenant] = list(range(free, free + tokens // BLOCK_TOKENS))
        free += len(system[tenant])
    chains: dict[str, list[int]] = {}
    blocks = []
    for row in table.itertuples():
        one_by_one = row.request_class == "batch"  # documents share no more than the instruction
        chain = list(system[row.tenant]) if one_by_one else chains.get(row.session)
        chain = list(system[row.tenant]) if chain is None else chain
        missing = (row.prompt_tokens + row.output_tokens) // BLOCK_TOKENS - len(chain)
        chain.extend(range(free, free + max(missing, 0)))
        free += max(missing, 0)
        blocks.append(chain[: row.prompt_tokens // BLOCK_TOKENS])
        chains[row.session] = chain
    return blocks


def write(table: pd.DataFrame, path: Path) -> None:
    """Write the trace as Parquet; ids of blocks are runs of numbers, so they go as differences."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata({"prefix_block_tokens": str(BLOCK_TOKENS)})
    by_difference = {
        "prefix_blocks.list.element": "DELTA_BINARY_PACKED",
        "request_id": "DELTA_BYTE_ARRAY",
        "session": "DELTA_BYTE_ARRAY",
    }
    pq.write_table(
        arrow,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=["request_class", "tenant", "prompt_tokens", "output_tokens"],
        column_encoding=by_difference,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "trace.parquet")
    write(sample(), parser.parse_args().out)


if __name__ == "__main__":
    main()
