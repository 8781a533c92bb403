"""The service of a pool: running sequences, drain rate, batch window, service times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from capplan.budget.loads import ClassLoad, mix_of
from capplan.replica.capacity import Mix, ReplicaModel, batch_rate_rps, replica_model
from capplan.replica.compiled.step_laws import StepTime
from capplan.replica.multi_model import pool_of_model
from capplan.replica.step_time import batch_seconds
from capplan.replica.whole_batch import padded_s, static_step_time
from capplan.scenario.batching import DynamicBatching, StaticBatching
from capplan.scenario.classes import RequestClass
from capplan.scenario.pools import Pool

FEW = 0.05
"""Quantile of the lengths of requests that a replica serves fastest; bursts of shorter ones alone
are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """Bounds of one replica's service, for limits that must not refuse too early."""

    least_s: float
    """Service of a request of one token in a replica that is free, s."""
    replica_rps: float
    """Throughput of full batches of short requests, requests/s."""
    prompt_tokens_per_s: float = math.nan
    """Throughput of steps that prefill whole budgets; NaN unless batching is continuous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolService:
    """One pool at the rate of its classes."""

    pool: Pool
    mix: Mix
    rate_rps: float
    """Sum over the pool's classes; NaN if one is unknown."""
    running: int
    """Requests in service at once at one full replica."""
    max_num_seqs: int | None = None
    """The most sequences that keep every TPOT promise of the pool; None unless continuous."""
    replica_rps: float
    """Throughput of a full replica, requests/s."""
    fastest: Fastest
    running_now: float = math.nan
    """Sequences that run on one replica at the classes' rate, at least 1."""
    tpot_s: float = math.nan
    """Mean time per output token at that number; NaN unless batching is continuous."""
    tpot_full_s: float = math.nan
    """The same in a full replica."""
    tpot_alone_s: float = math.nan
    """The same of one sequence alone: no limit makes it shorter."""
    window_s: float
    """The batch window: one full step, or the queue delay, s."""
    replica: ReplicaModel | None = None
    padded: StepTime | None = None
    """Step time of static batches; None for other batching."""
    by_class: Mapping[str, PoolService] = field(default_factory=dict)
    """For a pool of several models: the service of each class's model."""

    @property
    def places(self) -> int:
        """Return the most requests in service at once, however little KV each takes."""
        return self.running if self.max_num_seqs is None else self.max_num_seqs

    @property
    def drain_rps(self) -> float:
        """Return the throughput of the full pool with the replicas of its start, requests/s.

        A queue drains at this rate until an autoscaler has added replicas.
        """
        return self.pool.replicas * self.replica_rps

    @property
    def most_replicas(self) -> int:
        """Return the most replicas that can be in service, with those of an autoscaler."""
        rules = self.pool.autoscaler
        return self.pool.replicas if rules is None else max(self.pool.replicas, rules.max_replicas)

    @property
    def overloaded(self) -> bool:
        """Return whether requests arrive at least as fast as the pool can serve them."""
        return self.rate_rps >= self.drain_rps

    def of(self, request_class: str) -> PoolService:
        """Return the service of a class's model; that of the pool if it has one model."""
        return self.by_class.get(request_class, self)

    def work_s(
        self, load: ClassLoad, *, prompt_quantile: float, output_quantile: float
    ) -> tuple[float, float]:
        """Return prefill and decode time of one request of a class at quantiles, s.

        A dynamic batch counts as prefill: its answer comes at once. A static one is padded to the
        request itself.
        """
        if own := self.by_class.get(load.request_class):
            return own.work_s(
                load, prompt_quantile=prompt_quantile, output_quantile=output_quantile
            )
        prompt, output = (
            load.prompt_quantile(prompt_quantile),
            load.output_quantile(output_quantile),
        )
        if self.padded is not None:
            return self._padded_s(prompt, output)
        if self.replica is None:
            return self._batch_s(load.size_quantile(prompt_quantile)), 0.0
        return self.replica.prefill_s(prompt, self.running_now), (output - 1) * self.tpot_s

    def mean_work_s(self, load: ClassLoad) -> tuple[float, float]:
        """Return prefill and decode time of a mean request of a class, s."""
        if own := self.by_class.get(load.request_class):
            return own.mean_work_s(load)
        if self.padded is not None:
            return self._padded_s(load.prompt_mean, load.output_mean)
        if self.replica is None:
            return self._batch_s(load.size_mean), 0.0
        decode = max(load.output_mean - 1, 0.0) * self.tpot_s
        return self.replica.prefill_s(load.prompt_mean, self.running_now), decode

    def _padded_s(self, prompt: float, output: float) -> tuple[float, float]:
        if self.padded is None:
            return math.nan, math.nan
        return padded_s(self.padded, self.running, prompt, output)

    def _batch_s(self, size: float) -> float:
        """Return the time of a full batch whose other items have the mean size, s."""
        batching = self.pool.batching
        if not isinstance(batching, DynamicBatching):
            return math.nan
        n = batching.max_batch_size
        return batch_seconds(batching.service, n, size + (n - 1) * self.mix.size)


def pool_service(
    pool: Pool, classes: Sequence[RequestClass], loads: Sequence[ClassLoad]
) -> PoolService:
    """Return the service of a pool for its classes."""
    mix, rate = mix_of(list(loads)), sum(load.rate_rps for load in loads)
    few = _short(loads)
    if isinstance(pool.batching, DynamicBatching):
        law = pool.batching.service
        return PoolService(
            pool=pool,
            mix=mix,
            rate_rps=rate,
            running=pool.batching.max_batch_size,
            replica_rps=batch_rate_rps(pool.batching, mix.size),
            fastest=Fastest(
                least_s=batch_seconds(law, 1, 0.0),
                replica_rps=batch_rate_rps(pool.batching, few.size),
            ),
            window_s=pool.batching.max_queue_delay_s,
        )
    if isinstance(pool.batching, StaticBatching):
        return _static(pool, pool.batching, mix, few, rate)
    if pool.models:
        return _several_models(pool, classes, loads)
    return _continuous(replica_model(pool, mix), pool, classes, few, rate)


def _short(loads: Sequence[ClassLoad]) -> Mix:
    """Return a short request of a pool: the least of its classes at a low quantile."""
    prompt = min(load.prompt_quantile(FEW) for load in loads)
    output = max(min(load.output_quantile(FEW) for load in loads), 1.0)
    return Mix(
        prompt_tokens=prompt,
        output_tokens=output,
        context_tokens=prompt + output / 2,
        size=min(load.size_quantile(FEW) for load in loads),
    )


@dataclass(frozen=True, slots=True)
class _InTurn:
    """Step time of a model whose every step waits for one of each other model."""

    own: StepTime
    others_s: float

    def seconds(
        self,
        tokens: float,
        pairs: float,
        sequences: float,
        context: float,
    ) -> float:
        own_s = self.own.seconds(tokens, pairs, sequences, context)
        return own_s + self.others_s


def _several_models(
    pool: Pool, classes: Sequence[RequestClass], loads: Sequence[ClassLoad]
) -> PoolService:
    """Return the service of a pool of several models while those of its classes are resident.

    Loading models is left out: a simulation shows its time. Each model works as if the others
    always had work; the throughput of all is the sum of the requests' shares of what each serves
    alone.
    """
    names = [c.model or pool.models[0].name for c in classes]
    members = {
        entry.name: [i for i, name in enumerate(names) if name == entry.name]
        for entry in pool.models
        if entry.name in names
    }
    entries = {entry.name: entry for entry in pool.models}
    alone: dict[str, tuple[ReplicaModel, PoolService]] = {}
    for name, own in members.items():
        view, asked = pool_of_model(pool, entries[name]), [loads[i] for i in own]
        one = replica_model(view, mix_of(asked))
        rate = sum(load.rate_rps for load in asked)
        few = _short(asked)
        alone[name] = one, _continuous(one, view, [classes[i] for i in own], few, rate)
    turn_s = {name: one.decode_step_s(s.running_now) for name, (one, s) in alone.items()}
    by_class: dict[str, PoolService] = {}
    for name, (one, s) in alone.items():
        others = _InTurn(one.steps, sum(turn_s.values()) - turn_s[name])
        own_classes = [classes[i] for i in members[name]]
        few = _short([loads[i] for i in members[name]])
        found = _continuous(replace(one, steps=others), s.pool, own_classes, few, s.rate_rps)
        by_class |= dict.fromkeys((c.name for c in own_classes), found)
    return _together(pool, mix_of(list(loads)), [s for _, s in alone.values()], by_class)


def _together(
    pool: Pool, mix: Mix, alone: Sequence[PoolService], by_class: Mapping[str, PoolService]
) -> PoolService:
    """Return the figures of a pool from those of its models: the weakest, or the sum."""
    rate = sum(s.rate_rps for s in alone)
    known = rate > 0
    shares = [s.rate_rps / rate if known else 1 / len(alone) for s in alone]
    parts = list({id(s): s for s in by_class.values()}.values())
    return PoolService(
        pool=pool,
        mix=mix,
        rate_rps=rate,
        running=sum(s.running for s in parts),
        max_num_seqs=min(s.max_num_seqs for s in parts if s.max_num_seqs is not None),
        replica_rps=1 / sum(share / s.replica_rps for share, s in zip(shares, alone, strict=True)),
        fastest=Fastest(
            least_s=min(s.fastest.least_s for s in alone),
            replica_rps=max(s.fastest.replica_rps for s in alone),
        ),
        running_now=sum(s.running_now for s in parts),
        tpot_s=max(s.tpot_s for s in parts),
        tpot_full_s=max(s.tpot_full_s for s in parts),
        tpot_alone_s=max(s.tpot_alone_s for s in parts),
        window_s=max(s.window_s for s in parts),
        replica=parts[0].replica,
        by_class=by_class,
    )


def _static(pool: Pool, batching: StaticBatching, mix: Mix, few: Mix, rate: float) -> PoolService:
    """Return the service of static batches of mean requests; the longest of each lowers it."""
    law, n = static_step_time(pool), batching.max_batch_size
    return PoolService(
        pool=pool,
        mix=mix,
        rate_rps=rate,
        running=n,
        replica_rps=n / sum(padded_s(law, n, mix.prompt_tokens, mix.output_tokens)),
        fastest=Fastest(
            least_s=sum(padded_s(law, 1, 1, 1)),
            replica_rps=n / sum(padded_s(law, n, few.prompt_tokens, few.output_tokens)),
        ),
        window_s=batching.max_queue_delay_s,
        padded=law,
    )


def _continuous(
    one: ReplicaModel, pool: Pool, classes: Sequence[RequestClass], few: Mix, rate: float
) -> PoolService:
    promised = [c.promises.tpot_s for c in classes if c.streaming and c.promises.tpot_s is not None]
    within = one.most_running_within(min(promised)) if promised else one.batching.max_num_seqs
    # No limit keeps a promise that one sequence alone breaks: the setting stays.
    max_num_seqs = min(one.batching.max_num_seqs, within) or one.batching.max_num_seqs
    running = min(one.most_running(), max_num_seqs)
    each = 0.0 if math.isnan(rate) else rate / pool.replicas
    now = max(1.0, min(one.running_at(each), float(running)))
    return PoolService(
        pool=pool,
        mix=one.mix,
        rate_rps=rate,
        running=running,
        max_num_seqs=max_num_seqs,
        replica_rps=one.rate_rps(running),
        fastest=_fastest(one, few, max_num_seqs),
        running_now=now,
        tpot_s=one.tpot_s(now),
        tpot_full_s=one.tpot_s(one.most_running()),
        tpot_alone_s=one.tpot_s(1),
        window_s=_full_step_s(one, running),
        replica=one,
    )


def _fastest(one: ReplicaModel, few: Mix, max_num_seqs: int) -> Fastest:
    """Return the bounds of a replica; a cached prompt takes one token of prefill."""
    tokens = one.batching.max_num_batched_tokens
    if one.batching.prefix_caching:
        few = replace(few, prompt_tokens=1.0)
    short = replace(one, mix=few)
    return Fastest(
        least_s=one.prefill_s(1.0, 0.0),
        replica_rps=short.rate_rps(min(short.most_running(), max_num_seqs)),
        prompt_tokens_per_s=tokens / one.steps.seconds(tokens, tokens / 2, 0.0, 0.0),
    )


def _full_step_s(one: ReplicaModel, running: int) -> float:
    """Return the duration of a step that uses the whole token budget, s."""
    chunk = max(one.batching.max_num_batched_tokens - running, 1)
    chunk = chunk if one.batching.chunked_prefill else one.batching.max_num_batched_tokens
    context = running * one.mix.context_tokens
    return one.steps.seconds(chunk, chunk**2 / 2, running, context)
