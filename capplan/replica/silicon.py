"""Step time from a database of measured kernels: aiconfigurator-core, the extra ``silicon``.

The database answers for one step at a time, in accelerator time. Its kernels are sampled once:
dense ones over the tokens of a step, attention over a grid (400 numbers, after a few seconds of
loading). They are kept for this process and in the user's cache folder.

Trust it for the engine version it was measured with (``backend_version``), which is not always the
one that runs; how far off it is by family of models: ``data/validation/kernels.csv``. It answers
for the accelerator alone: what scheduler and launch leave idle is ``overhead_s`` and
``per_sequence_s``. See :mod:`capplan.replica.kernel_database` for what it lacks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from functools import lru_cache
from pathlib import Path

from capplan.replica.compiled.step_laws import Curve, MixTable, TableStepTime, at_point, curve
from capplan.replica.kernel_database import KernelDatabase, request
from capplan.replica.kernel_tables import mix_table
from capplan.replica.roofline import hides_host
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import SiliconStep

TOKENS = tuple(
    float(rows)
    for rows in sorted(
        {1, 2, 4, 8, 24, 320, 384, 6144, 8192, 12288, 16384, 32768}
        | {rows + more for rows in (16, 32, 48, 64, 80, 96, 112, 128) for more in (0, 1)}
        | {rows + more for rows in (160, 192, 224, 256) for more in (0, 1)}
        | {rows + more for rows in range(512, 4353, 256) for more in (0, 1)}
    )
)
"""Of dense kernels: the rows at which the database measured products, on both sides of where their
tiles begin (from 1,024 to 1,025 rows a step of Qwen3-14B on H100 takes 17 % longer)."""
CHUNKS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
BEFORES = (0.0, 1024.0, 4096.0, 16384.0, 65536.0)
SEQUENCES = (
    1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0,
)  # fmt: skip
CONTEXTS = (64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0)
FORM = 5
"""Of the cached files; raised when the grid or its meaning changes."""


def silicon(pool: Pool, law: SiliconStep) -> TableStepTime:
    """Return the step time of a pool's model and accelerator from the database.

    Raises :class:`DataError` if the extra is not installed, or the database does not know the
    model, accelerator or engine.
    """
    dense, mix = _tables(json.dumps({"form": FORM, **request(pool, law)}, sort_keys=True))
    return TableStepTime(
        host_s=law.overhead_s,
        host_per_sequence_s=law.per_sequence_s,
        host_hidden=hides_host(pool),
        dense=dense,
        mix=mix,
    )


@lru_cache(maxsize=64)
def _tables(asked: str) -> tuple[Curve, MixTable]:
    """Return the dense kernels, and what comes on top of them in a step."""
    times = iter(_sampled(asked))
    dense = curve(TOKENS, tuple(next(times) for _ in TOKENS))
    prefill = {(c, b): next(times) for c in CHUNKS for b in BEFORES}
    beside, alone = ({(n, k): next(times) for n in SEQUENCES for k in CONTEXTS} for _ in range(2))

    def on_top(chunk: float, before: float, sequences: float, context: float) -> float:
        if not chunk:
            return alone[sequences, context] - at_point(dense, sequences)
        return prefill[chunk, before] + (beside[sequences, context] if sequences else 0.0)

    axes = (
        ("chunks", CHUNKS),
        ("befores", BEFORES),
        ("sequences", SEQUENCES),
        ("contexts", CONTEXTS),
    )
    grid = {name: tuple(map(float, axis)) for name, axis in axes}
    return dense, mix_table(on_top, per_prompt=False, empty=False, **grid)


def _sampled(asked: str) -> list[float]:
    """Return the seconds at every point: from the cache, or asked and then put there."""
    file = _cache_file(asked)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return [float(seconds) for seconds in kept["seconds"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    seconds = _ask(asked)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"asked": asked, "seconds": seconds}), encoding="utf-8")
        part.replace(file)
    except OSError as err:
        logging.getLogger(__name__).info("step times are not kept: %s", err)
    return seconds


def _ask(asked: str) -> list[float]:
    database = KernelDatabase(json.loads(asked))
    decodes = [(n, k) for n in SEQUENCES for k in CONTEXTS]
    return [
        *(database.dense_s(tokens) for tokens in TOKENS),
        *(database.prefill_s(chunk, before) for chunk in CHUNKS for before in BEFORES),
        *(database.beside_s(*point) for point in decodes),
        *(database.decode_s(*point) for point in decodes),
    ]


def _cache_file(asked: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return root / "capplan" / "silicon" / f"{name}.json"
