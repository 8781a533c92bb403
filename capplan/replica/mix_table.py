"""Times over what a step mixes: a prefill chunk, what it follows, a decode batch, its context.

Measured or sampled times come on a grid of these four. They are kept as what a chunk takes alone,
what a decode batch takes alone, and what the batch adds beside a chunk, because the three are
straight over most of the grid, and because a grid is never whole: where the batch was not measured
beside a long chunk, it adds what it adds beside a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capplan.replica.grid import Plane, place

Time = Callable[[float, float, float, float], float | None]
"""Chunk, tokens before it, decoding sequences, context of each: seconds, None if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixTable:
    """Seconds over the four; see :func:`mix_table`."""

    decode: Plane
    """A decode batch alone, over sequences and their mean context."""
    alone: Plane
    """A prefill chunk alone, over its tokens and those before it."""
    beside: tuple[tuple[Plane, ...], ...]
    """By chunk and tokens before: what a decode batch adds, over the axes of ``decode``."""
    per_prompt: bool
    """Whether several short prompts take as many times one of them; else as one chunk."""

    def seconds(self, chunk: float, before: float, sequences: float, context: float) -> float:
        """Return the time of a mix, s.

        Parameters
        ----------
        chunk
            Prefilled tokens of the step.
        before
            Mean tokens before them; negative where several short prompts make up the chunk.
        sequences, context
            Decoding sequences, and the mean of their contexts.
        """
        if chunk <= 0:
            return self.decode.at(sequences, context) if sequences else 0.0
        prompts = 1.0
        if before < 0:
            if self.per_prompt:
                prompts = chunk / (chunk + 2 * before)
            chunk, before = chunk / prompts, 0.0
        i, along = place(self.alone.first, chunk)
        j, across = place(self.alone.second, before)
        total = prompts * self.alone.between(i, along, j, across)
        if not sequences:
            return total
        n, k = place(self.decode.first, sequences), place(self.decode.second, context)
        here, there = self.beside[i], self.beside[i + 1]
        along, across = min(along, 1.0), min(across, 1.0)
        left = here[j].between(*n, *k)
        left += across * (here[j + 1].between(*n, *k) - left)
        right = there[j].between(*n, *k)
        right += across * (there[j + 1].between(*n, *k) - right)
        return total + left + along * (right - left)


def mix_table(
    time: Time,
    *,
    chunks: Sequence[float],
    befores: Sequence[float],
    sequences: Sequence[float],
    contexts: Sequence[float],
    per_prompt: bool,
    empty: bool,
) -> MixTable:
    """Return the table of a function that is known on a grid.

    Parameters
    ----------
    time
        The function; must be known for chunks alone and for decode batches alone.
    chunks, befores, sequences, contexts
        The grid, rising; chunks, sequences and contexts from above 0, befores from 0.
    per_prompt
        Whether several short prompts take as many times one of them.
    empty
        Whether nothing takes no time (a kernel), or as much as the least (a whole step).

    Raises
    ------
    ValueError
        Where the function is not known for a chunk or a decode batch alone.
    """
    alone = [[_known(time, c, b, 0, 0) for b in befores] for c in chunks]
    decode = [[_known(time, 0, 0, n, k) for k in contexts] for n in sequences]
    batches = (0.0, *sequences)
    nothing = tuple([0.0] * len(contexts))
    lone = Plane(
        batches, tuple(contexts), (nothing if empty else tuple(decode[0]), *map(tuple, decode))
    )
    added: list[tuple[Plane, ...]] = []
    for row, chunk in enumerate(chunks):
        planes = []
        for column, before in enumerate(befores):
            shorter = added[-1][column].rows[1:] if added else lone.rows[1:]
            rows = [
                tuple(
                    _added(time(chunk, before, n, k), alone[row][column], other)
                    for k, other in zip(contexts, others, strict=True)
                )
                for n, others in zip(sequences, shorter, strict=True)
            ]
            planes.append(Plane(batches, tuple(contexts), (nothing, *rows)))
        added.append(tuple(planes))
    sizes, levels, beside = tuple(chunks), [tuple(row) for row in alone], added
    if empty:
        sizes = (0.0, *chunks)
        levels = [tuple([0.0] * len(befores)), *levels]
        beside = [tuple([lone] * len(befores)), *added]
    return MixTable(
        decode=lone,
        alone=Plane(sizes, tuple(befores), tuple(levels)),
        beside=tuple(beside),
        per_prompt=per_prompt,
    )


def _known(time: Time, chunk: float, before: float, sequences: float, context: float) -> float:
    seconds = time(chunk, before, sequences, context)
    if seconds is None:
        msg = f"no time for chunk, before, sequences, context = {chunk, before, sequences, context}"
        raise ValueError(msg)
    return seconds


def _added(seconds: float | None, alone_s: float, otherwise_s: float) -> float:
    return otherwise_s if seconds is None else seconds - alone_s
