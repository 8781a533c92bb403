"""Where breakers can act, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from capplan.scenario.breakers import Action, Breaker, Refuse, Route, ShrinkBatch, StartStandby
from capplan.scenario.classes import RequestClass
from capplan.scenario.part import origin
from capplan.scenario.pools import Pool


def impossible(breaker: Breaker, pool: Pool, pools: Mapping[str, Pool]) -> str | None:
    """Return why a rule cannot act in a pool; None if it can."""
    return next((clash for act in breaker.then if (clash := _clash(act, pool, pools))), None)


def placements(
    breakers: Collection[Breaker], pools: Collection[Pool]
) -> Iterator[tuple[Breaker, Pool, str | None]]:
    """Yield each rule with each pool that it is meant for, and why it cannot act there."""
    by_name = {pool.name: pool for pool in pools}
    for breaker in breakers:
        for pool in pools:
            if breaker.pool in (None, pool.name):
                yield breaker, pool, impossible(breaker, pool, by_name)


def is_bundled(breaker: Breaker) -> bool:
    """Return whether a rule's limit is marked as a default: bundled rules are for any pool."""
    when = breaker.when
    return origin(when, "below" if when.above is None else "above") == "default"


def mistakes(
    breakers: Collection[Breaker],
    pools: Mapping[str, Pool],
    classes: Collection[RequestClass],
    served_by: Mapping[str, str],
) -> Iterator[str]:
    """Yield what is wrong with the rules of a scenario: names that nothing has, and impossible.

    A rule that can act in no pool is a mistake, unless it is a bundled one; so is one that names
    classes that never come to its pool. ``served_by`` are the pools of the classes.
    """
    for breaker in breakers:
        path = f"breakers.{breaker.name}"
        where = pools.values() if breaker.pool is None else (pools[breaker.pool],)
        clashes = [why for pool in where if (why := impossible(breaker, pool, pools))]
        if len(clashes) == len(where) and not (breaker.pool is None and is_bundled(breaker)):
            yield f"{path}.then: {clashes[0]}"
        yield from _strangers(breaker, breakers, served_by)
        sheds = any(isinstance(a, Refuse) and a.only_sheddable for a in breaker.then)
        if sheds and not any(c.sheddable for c in classes):
            yield f"{path}.then.only_sheddable: no class is sheddable: nothing is refused"
    yield from _tiers_without_a_lower(breakers, pools)


def _strangers(
    breaker: Breaker, breakers: Collection[Breaker], served_by: Mapping[str, str]
) -> Iterator[str]:
    """Yield the classes that a rule names but that never reach its pool."""
    when, passed_on = breaker.when, {a.to for b in breakers for a in b.then if isinstance(a, Route)}
    if breaker.pool is None or breaker.pool in passed_on:
        return
    named = [*breaker.acts_on, *([when.request_class] if when.of == "pool" else [])]
    for name in named:
        if name is not None and served_by[name] != breaker.pool:
            yield (
                f"breakers.{breaker.name}.classes: {name!r} is served by pool {served_by[name]}, "
                f"and no rule passes it on to {breaker.pool}"
            )


def _tiers_without_a_lower(
    breakers: Collection[Breaker], pools: Mapping[str, Pool]
) -> Iterator[str]:
    for pool in pools:
        here = [b for b in breakers if b.pool in (None, pool) and b.tier is not None]
        if here and min(b.tier for b in here if b.tier) > 1:
            names = ", ".join(b.name for b in here)
            yield f"breakers: tier 1 is needed in pool {pool}, where {names} wait for it"
            return


def _clash(action: Action, pool: Pool, pools: Mapping[str, Pool]) -> str | None:
    match action:
        case Route():
            return _no_route(action, pool, pools)
        case StartStandby():
            return _no_standby(action, pool)
        case ShrinkBatch():
            return _no_shrinking(action, pool)
        case _:
            return None


def _no_route(action: Route, pool: Pool, pools: Mapping[str, Pool]) -> str | None:
    if action.to == pool.name:
        return f"route to another pool than {pool.name} itself"
    if pools[action.to].models:
        return f"route to a pool of one model, {action.to} has several"
    return None


def _no_standby(action: StartStandby, pool: Pool) -> str | None:
    if pool.standby is None:
        return f"start_standby needs pools.{pool.name}.standby"
    ready, most = pool.standby.ready, action.ready_at_most_s
    ready_s = ready.seconds if ready.kind == "fixed" else ready.p95_s
    if most is not None and ready_s > most:
        return f"the standby of {pool.name} is ready after {ready_s:g} s, allowed are {most:g}"
    return None


def _no_shrinking(action: ShrinkBatch, pool: Pool) -> str | None:
    batching = pool.batching
    for name, value in action.stated.items():
        configured = getattr(batching, name, None)
        if configured is None:
            return f"{name} is none of the limits of {batching.kind} batching in pool {pool.name}"
        if value > configured:
            return f"{name}: shrunk to at most the configured {configured:g}, got {value:g}"
    tokens = action.max_num_batched_tokens
    if batching.kind == "continuous" and tokens is not None and not batching.chunked_prefill:
        return "max_num_batched_tokens shrinks with chunked_prefill alone: prompts must fit a step"
    if batching.kind == "continuous" and (action.max_num_seqs or batching.beam_width) < (
        batching.beam_width
    ):
        return f"max_num_seqs: at least beam_width {batching.beam_width}"
    return None
