"""What one replica serves: requests per second at a load, and the time one request takes.

A continuously batching replica with ``n`` running sequences makes one token for each of them per
step, and the prompts that come in with the finished requests' places are prefilled in between. So

    tpot(n) = step(n decoding) + n / output · (time that one prompt adds to the steps it joins)
    rate(n) = n / (output · tpot(n))

with mean lengths. Source: Little's law over the batch (Little, "A proof for the queuing formula
L = λW", Operations Research 9, 1961); mean-value reasoning as in Agrawal et al., "Taming
Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, section 3. It says
nothing of the spread around the mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from capplan.replica.compiled.step_laws import StepTime
from capplan.replica.kv_capacity import NO_ROOM, SequenceRoom, kv_blocks, sequence_room
from capplan.replica.step_time import batch_seconds, step_time
from capplan.scenario.batching import ContinuousBatching, DynamicBatching
from capplan.scenario.pools import Pool
from capplan.schema import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The mean request of a pool."""

    prompt_tokens: float
    output_tokens: float
    context_tokens: float
    """Mean context of a decoding sequence over its decode steps, tokens."""
    size: float
    """Mean size of a request, for a service law by size."""


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """One continuously batching replica under a mix of requests."""

    steps: StepTime
    batching: ContinuousBatching
    mix: Mix
    kv_tokens: float
    """Tokens of the KV that grows."""
    room: SequenceRoom = NO_ROOM

    def decode_step_s(self, n: float) -> float:
        """Return the duration of a step that decodes ``n`` sequences and prefills nothing, s."""
        return self.steps.seconds(0.0, 0.0, n, n * self.mix.context_tokens)

    def prefill_s(self, prompt_tokens: float, n: float) -> float:
        """Return the time from the first to the last prefill step of a prompt, s.

        Each step also decodes ``n`` sequences. Prompts that share the steps are left out: they
        are waiting, not service.
        """
        chunk = prompt_tokens
        if self.batching.chunked_prefill:
            chunk = max(self.batching.max_num_batched_tokens - n, 1.0)
        whole = math.floor(prompt_tokens / chunk)
        context = n * self.mix.context_tokens
        done = [k * chunk for k in range(whole)]
        total = sum(self.steps.seconds(chunk, chunk * (d + chunk / 2), n, context) for d in done)
        rest, before = prompt_tokens - whole * chunk, whole * chunk
        if rest > 0:
            total += self.steps.seconds(rest, rest * (before + rest / 2), n, context)
        return total

    def added_s(self, n: float) -> float:
        """Return the time that the prefill of a mean prompt adds to the steps it joins, s."""
        chunk = self.mix.prompt_tokens
        if self.batching.chunked_prefill:
            chunk = max(self.batching.max_num_batched_tokens - n, 1.0)
        steps = math.ceil(self.mix.prompt_tokens / chunk)
        return self.prefill_s(self.mix.prompt_tokens, n) - steps * self.decode_step_s(n)

    def tpot_s(self, n: float) -> float:
        """Return the mean time per output token with ``n`` running sequences, s."""
        return self.decode_step_s(n) + n / self.mix.output_tokens * self.added_s(n)

    def rate_rps(self, n: float) -> float:
        """Return the requests per second that ``n`` running sequences complete."""
        return n / (self.mix.output_tokens * self.tpot_s(n))

    def most_running(self) -> int:
        """Return how many sequences run at once: ``max_num_seqs``, or what the KV blocks hold."""
        stored = self.mix.prompt_tokens + self.mix.output_tokens
        by_kv = self.kv_tokens / (self.mix.context_tokens + self.room.tokens(stored))
        return max(1, math.floor(min(self.batching.max_num_seqs, by_kv)))

    def running_at(self, rate_rps: float) -> float:
        """Return how many sequences run at a rate; at most :meth:`most_running`."""
        high = float(self.most_running())
        if self.rate_rps(high) <= rate_rps:
            return high
        low = 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.rate_rps(middle) >= rate_rps else (middle, high)
        return high

    def most_running_within(self, tpot_s: float) -> int:
        """Return the most sequences up to ``max_num_seqs`` that keep a TPOT promise; 0 if none."""
        low, high = 0, self.batching.max_num_seqs
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.tpot_s(middle) <= tpot_s else (low, middle - 1)
        return low


def replica_model(pool: Pool, mix: Mix) -> ReplicaModel:
    """Return one replica of a continuously batching pool under a mix of requests.

    Raises :class:`DataError` if a mean request does not fit into the KV blocks.
    """
    batching = pool.continuous
    kv_tokens = kv_blocks(pool) * batching.block_size
    room = sequence_room(pool)
    if kv_tokens < mix.context_tokens + room.tokens(mix.prompt_tokens + mix.output_tokens):
        rule = f"KV blocks for one mean request ({mix.context_tokens:.0f} tokens)"
        raise DataError(rule, where=f"pool {pool.name}", value=f"{kv_tokens} tokens")
    return ReplicaModel(step_time(pool), batching, mix, float(kv_tokens), room)


def batch_rate_rps(batching: DynamicBatching, size: float) -> float:
    """Return the requests per second of a dynamically batching replica at full batches.

    >>> from capplan.scenario.batching import ServiceLaw
    >>> batch_rate_rps(DynamicBatching(max_batch_size=4, service=ServiceLaw(base_s=0.5)), 1)
    8.0
    """
    n = batching.max_batch_size
    return n / batch_seconds(batching.service, n, n * size)
