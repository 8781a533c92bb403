"""How long a step takes, as a function of what it computes.

These functions exist once: the reference engine and the budget call them as they are, and
:mod:`capplan.replica.compiled.laws` compiles the same ones. They therefore take what numba can
compile: numbers, attributes of ``self``, and tuples (compiled: slices of an array) of numbers; no
methods call each other. This module does not import numba.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

THIRD = 1.0 / 3.0

TILE_ROWS = 128.0
"""Tokens of a step that large matrix products compute together; a started tile takes as long as a
full one. Source: NVIDIA, "Matrix Multiplication Background User's Guide", 2023, section 3 (tile
quantization); aiconfigurator-core 0.12, H100 and H200: products of 1,025 rows take 9 to 12 % longer
than those of 1,024, nine tiles in place of eight."""

TILED_FROM = 256.0
"""Tokens of a step from which that counts. Source: likewise, rows of 128, 160 and 192 against one
more: 2 to 4 % on H100; products of fewer rows use smaller tiles."""


class StepTime(Protocol):
    """How long one step of a replica takes."""

    def seconds(self, tokens: float, pairs: float, sequences: float, context: float) -> float:
        """Return the duration of a step, s.

        Parameters
        ----------
        tokens
            Prompt tokens computed in this step, over all its prefill chunks. Tokens found in the
            prefix cache are not computed and do not count.
        pairs
            Pairs of a prefilled token and a token it attends to: the sum over the step's chunks of
            ``chunk × (context before it + chunk / 2)``, in tokens². Context found in the prefix
            cache does count as context before the chunk. For one whole prompt: ``tokens² / 2``.
        sequences
            Sequences that decode one token each in this step.
        context
            Sum of their context lengths (prompt and output so far), tokens.
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """Step time linear in what the step computes; pairs of prefilled tokens take no time."""

    base_s: float
    per_prefill_token_s: float
    per_sequence_s: float
    per_context_token_s: float

    def seconds(self, tokens: float, pairs: float, sequences: float, context: float) -> float:
        """Return the duration of a step, s; see :meth:`StepTime.seconds`.

        >>> round(LinearStepTime(4e-3, 1e-5, 1e-5, 1e-8).seconds(100, 0, 10, 1000), 6)
        0.00511
        """
        return (
            self.base_s
            + self.per_prefill_token_s * tokens
            + self.per_sequence_s * sequences
            + self.per_context_token_s * context
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineStepTime:
    """Step time as a sum of kernels, each bound by compute or memory; coefficients in s."""

    host_s: float
    """The host's work for a step."""
    host_per_sequence_s: float
    host_hidden: bool
    """Whether the host works while the accelerator does, so that the longer of the two counts."""
    kernels_s: float
    """What a step's kernels take beside their work, all-reduces and stages included."""
    weights_s: float
    """Reading the weights that every step reads."""
    per_token_s: float
    """Matrix products of one decoded token, without the output head."""
    per_prompt_token_s: float
    """Those of a prefilled one: the same, unless calibrated."""
    head_weights_s: float
    head_per_token_s: float
    moved_per_token_s: float
    """Element-wise kernels and all-reduces of one token."""
    per_prefill_token_s: float
    """What a prefilled token's attention takes besides its pairs."""
    per_pair_s: float
    """Attention of a prefilled token to one token before it, in layers without a window."""
    per_sequence_s: float
    """What a decoding sequence's attention takes besides its context."""
    per_context_token_s: float
    """Attention of a decoded token to one token of context, in layers without a window."""
    window_tokens: float
    per_window_pair_s: float
    per_window_token_s: float
    """The same two in layers that attend to ``window_tokens`` at most; 0 without such layers."""
    experts_s: float
    """Reading every expert once; 0 in a dense model."""
    experts_fraction: float
    """Share of a token's products that its experts take."""
    untouched_fraction: float
    """Chance that one token leaves a given expert untouched."""
    stages: float = 1.0
    """Of the pipeline."""
    mixed_fraction: float = 0.0
    """By how much longer a decoding sequence's attention takes in a step that also prefills."""
    narrow_tokens: float = 0.0
    """Prefilled tokens of a step up to which it does not."""
    tile_fraction: float = 0.0
    """Share of the products of a large step that take whole tiles of rows."""

    def seconds(self, tokens: float, pairs: float, sequences: float, context: float) -> float:
        """Return the duration of a step, s; see :meth:`StepTime.seconds`.

        A pipeline splits the prompts over as many micro-batches as there seem to be prompts:
        ``k`` equal prompts without context before them have ``tokens² / 2 k`` pairs. Under a window
        ``W``, tokens at ``m`` on average, spread evenly from the first, see ``W - W² / 4 m`` each.
        """
        prompt, decoding = tokens, sequences
        if self.stages > 1.0:
            prompts = prompt * prompt / (2.0 * pairs) if pairs > 0.0 else 1.0
            prompts = min(max(prompts, 1.0), self.stages)
            prompt, pairs = prompt / prompts, pairs / prompts
            sequences, context = sequences / self.stages, context / self.stages
        tokens = prompt + sequences
        moved, grouped, chosen = self.weights_s, 0.0, 0.0
        computed = self.per_token_s * sequences + self.per_prompt_token_s * prompt
        if self.tile_fraction and tokens > TILED_FROM:
            empty = -(-tokens // TILE_ROWS) * TILE_ROWS - tokens - TILE_ROWS / 2.0
            computed += self.tile_fraction * self.per_prompt_token_s * empty
        if self.experts_s:
            grouped = self.experts_fraction * computed
            computed -= grouped
            chosen = self.experts_s * (1.0 - self.untouched_fraction**tokens)
        head, read = self.head_per_token_s * sequences, self.head_weights_s
        attention = self.per_sequence_s * sequences + self.per_context_token_s * context
        if self.per_window_token_s:
            window = self.window_tokens * sequences
            seen = context if context < window else window
            attention += self.per_window_token_s * seen
        if prompt > self.narrow_tokens:
            attention += self.mixed_fraction * attention
        busy: float = (
            self.kernels_s
            + (moved * moved * moved + computed * computed * computed) ** THIRD
            + (chosen * chosen * chosen + grouped * grouped * grouped) ** THIRD
            + (read * read * read + head * head * head) ** THIRD
            + self.moved_per_token_s * tokens
            + self.per_prefill_token_s * prompt
            + self.per_pair_s * pairs
            + attention
        )
        if self.per_window_pair_s and prompt > 0.0:
            seen, window = pairs / prompt, self.window_tokens
            if 2.0 * seen > window:
                seen = window - window * window / (4.0 * seen)
            busy += self.per_window_pair_s * prompt * seen
        host = self.host_s + self.host_per_sequence_s * decoding
        if self.host_hidden:
            return host if host > busy else busy
        return busy + host


class Curve(NamedTuple):
    """A function of one number, straight between points; see :func:`curve`."""

    axis: Sequence[float] = ()
    levels: Sequence[float] = ()


def curve(axis: Sequence[float], levels: Sequence[float]) -> Curve:
    """Return the function through points; ValueError for fewer than two, or an axis that falls.

    >>> at_point(curve((0.0, 10.0), (1.0, 2.0)), 5.0)
    1.5
    """
    check_axis(axis)
    if len(levels) != len(axis):
        raise ValueError(f"one value per point, got {len(levels)} for {len(axis)}")
    return Curve(tuple(axis), tuple(levels))


def check_axis(axis: Sequence[float]) -> None:
    """Raise ValueError unless an axis has at least two points and rises."""
    if len(axis) < 2 or any(b <= a for a, b in pairwise(axis)):  # noqa: PLR2004
        raise ValueError(f"an axis of at least two rising points, got {tuple(axis)[:5]}")


def place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """Return the interval of a value on an axis, and how far along it lies.

    Before the first point it is 0 along; after the last the final interval goes on straight.

    >>> place([1.0, 2.0, 4.0], 3.0), place([1.0, 2.0, 4.0], 8.0), place([1.0, 2.0, 4.0], 0.0)
    ((1, 0.5), (1, 3.0), (0, 0.0))
    """
    low = bisect_right(axis, value) - 1
    if low < 0:
        return 0, 0.0
    low = min(low, len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


def at_point(curve: Curve, x: float) -> float:
    """Return the value of a curve at a point; 0 for a curve without points."""
    if len(curve.axis) == 0:
        return 0.0
    low, part = place(curve.axis, x)
    left = curve.levels[low]
    return left + part * (curve.levels[low + 1] - left)


class MixTable(NamedTuple):
    """Seconds over what a step mixes: a chunk, the tokens before it, a decode batch, its context.

    Built by :func:`capplan.replica.kernel_tables.mix_table`; the last three hold one row after the
    other, and are empty where there is no table.
    """

    per_prompt: float = 0.0
    """Whether several short prompts take as many times one of them; else they take as much less
    than one chunk as their pairs are fewer: on a straight line through the first two befores."""
    chunks: Sequence[float] = ()
    befores: Sequence[float] = ()
    """Tokens before a chunk."""
    sequences: Sequence[float] = ()
    contexts: Sequence[float] = ()
    """Mean context of a decode batch."""
    decode: Sequence[float] = ()
    """A decode batch alone, over sequences and contexts."""
    alone: Sequence[float] = ()
    """A prefill chunk alone, over chunks and befores."""
    beside: Sequence[float] = ()
    """What a decode batch adds beside a chunk, over all four axes."""


def between(  # noqa: PLR0917
    rows: Sequence[float], start: int, width: int, i: int, along: float, j: int, across: float
) -> float:
    """Return the value in a cell of a plane, so far along and across it.

    The plane's rows of ``width`` values begin at ``start``.

    >>> between((0.0, 1.0, 2.0, 3.0), 0, 2, 0, 0.5, 0, 0.5)
    1.5
    """
    here = start + i * width + j
    there = here + width
    left = rows[here] + across * (rows[here + 1] - rows[here])
    right = rows[there] + across * (rows[there + 1] - rows[there])
    return left + along * (right - left)


def of_mix(table: MixTable, chunk: float, before: float, sequences: float, context: float) -> float:
    """Return the time of a mix, s; 0 for a table without points.

    Parameters
    ----------
    chunk
        Prefilled tokens of the step.
    before
        Mean tokens before them; negative where several short prompts make up the chunk.
    sequences, context
        Decoding sequences, and the mean of their contexts.
    """
    if len(table.chunks) == 0 or (chunk <= 0.0 and not sequences):
        return 0.0
    width = len(table.contexts)
    n, up = place(table.sequences, sequences)
    k, on = place(table.contexts, context)
    if chunk <= 0.0:
        return between(table.decode, 0, width, n, up, k, on)
    prompts = 1.0
    if before < 0.0 and table.per_prompt:
        prompts = chunk / (chunk + 2 * before)
        chunk, before = chunk / prompts, 0.0
    i, along = place(table.chunks, chunk)
    j, across = place(table.befores, before)
    if before < 0.0:
        across = before / table.befores[1]
    total = prompts * between(table.alone, 0, len(table.befores), i, along, j, across)
    if not sequences:
        return total
    along, across = min(along, 1.0), min(max(across, 0.0), 1.0)
    size = width * len(table.sequences)
    here = (i * len(table.befores) + j) * size
    there = here + size * len(table.befores)
    left = between(table.beside, here, width, n, up, k, on)
    left += across * (between(table.beside, here + size, width, n, up, k, on) - left)
    right = between(table.beside, there, width, n, up, k, on)
    right += across * (between(table.beside, there + size, width, n, up, k, on) - right)
    return total + left + along * (right - left)


class TableStepTime(NamedTuple):
    """Step time from tables, s: dense kernels and output head, a mix, and what is not tabulated.

    What a source of step times does not have is empty or 0.
    """

    host_s: float
    host_per_sequence_s: float
    host_hidden: float = False
    """Whether the host works while the accelerator does."""
    dense: Curve = Curve()
    """Dense kernels of all layers, over the step's tokens."""
    head: Curve = Curve()
    """Output head and sampler, over the sequences that get a token."""
    mix: MixTable = MixTable()
    """Attention, or whole steps."""
    per_prefill_token_s: float = 0.0
    """This and the next three: attention without a table."""
    per_pair_s: float = 0.0
    per_sequence_s: float = 0.0
    per_context_token_s: float = 0.0

    def seconds(self, tokens: float, pairs: float, sequences: float, context: float) -> float:
        """Return the duration of a step, s; see :meth:`StepTime.seconds`."""
        before = pairs / tokens - tokens / 2 if tokens else 0.0
        mean = context / sequences if sequences else 0.0
        attention = (
            self.per_prefill_token_s * tokens
            + self.per_pair_s * pairs
            + self.per_sequence_s * sequences
            + self.per_context_token_s * context
        ) + of_mix(self.mix, tokens, before, sequences, mean)
        done = sequences + (1.0 if tokens else 0.0)
        busy = at_point(self.dense, tokens + sequences) + at_point(self.head, done) + attention
        host = self.host_s + self.host_per_sequence_s * sequences
        if self.host_hidden:
            return max(busy, host)
        return busy + host


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStepTime:
    """The step time of a base with its terms scaled; see :mod:`capplan.replica.step_time`."""

    base: StepTime
    dense_scale: float
    context_scale: float
    prefill_scale: float
    fixed_s: float
    mixed_fraction: float = 0.0
    """As of :class:`RooflineStepTime`, with the next."""
    narrow_tokens: float = 0.0

    def seconds(self, tokens: float, pairs: float, sequences: float, context: float) -> float:
        """Return the duration of a step, s; see :meth:`StepTime.seconds`."""
        base = self.base.seconds
        decode_s = base(0, 0, sequences, context) if sequences else 0.0
        bare_s = base(0, 0, sequences, 0) if sequences else 0.0
        whole_s = decode_s
        if tokens:
            whole_s = base(tokens, pairs, sequences, context)
        return scaled(self, tokens, sequences, bare_s, decode_s, whole_s)


def scaled(  # noqa: PLR0917
    scales: ScaledStepTime,
    tokens: float,
    sequences: float,
    bare_s: float,
    decode_s: float,
    whole_s: float,
) -> float:
    """Return the scaled duration of a step of so many prefilled tokens and decoding sequences, s.

    ``whole_s`` is the duration of its base, ``decode_s`` without the prefill, ``bare_s`` also
    without context.
    """
    scale = scales.prefill_scale if sequences else scales.dense_scale
    attention_s = scales.context_scale * (decode_s - bare_s)
    if tokens > scales.narrow_tokens:
        attention_s += scales.mixed_fraction * attention_s
    return (
        scales.fixed_s + (scales.dense_scale * bare_s + attention_s) + scale * (whole_s - decode_s)
    )
