"""What a decision sets: replicas, accelerators, their price, and the settings of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from capplan.catalog import accelerator, prices
from capplan.encoding import plain
from capplan.formatting import counted, format_value, listed
from capplan.scenario import Scenario
from capplan.scenario.part import Part
from capplan.scenario.pools import Pool

ALWAYS = ("replicas", "max_num_seqs", "max_num_batched_tokens", "max_batch_size")
"""Settings that are stated even at their default."""
NO_SETTING = ("name", "owner", "model", "accelerator", "price_usd_per_accelerator_hour", "kind",
              "cold_start_s", "overhead_s", "overhead_per_in_flight_s", "bytes", "step_time",
              "service", "lifecycle", "model_load", "step_factors", "hf_config",
              "replicas_per_node")  # fmt: skip
"""Fields of gateway and pools that stand elsewhere in the decision, or describe and set nothing."""


def pool_words(pool: Pool) -> str:
    """Return a pool's replicas, models and accelerators in words.

    >>> from capplan.scenario.files import load_scenario
    >>> pool_words(load_scenario("chat-service").pool("llm"))
    '3 replicas of meta-llama/Llama-3.1-8B (`llm`) on 3 × A100-SXM-80GB'
    """
    model = listed(name for name in pool.model_names if name != "unnamed")
    what = f"`{pool.name}`" if model == "none" else f"{model} (`{pool.name}`)"
    warm = "" if pool.standby is None else f", {pool.standby.replicas} more on standby,"
    kind = accelerator(pool.accelerator).name if pool.accelerator else "unnamed accelerator"
    number = f"{pool.accelerators_at_start:,} × {kind}"
    return f"{counted(pool.replicas, 'replica')} of {what}{warm} on {number}"


def price_words(pool: Pool) -> str:
    """Return a pool's price and where it comes from."""
    if (stated := pool.price_usd_per_accelerator_hour) is not None:
        price = format_value(stated, "_usd_per_hour")
        return f"`{pool.name}` at {price} an accelerator, as the scenario states, undated"
    known = () if pool.accelerator is None else prices(pool.accelerator)
    if not known:
        return f"`{pool.name}`: price unknown"
    price = format_value(known[0].usd_per_hour, "_usd_per_hour")
    return f"`{pool.name}` at {price} an accelerator, {known[0].kind} price of {known[0].date}"


def settings(scenario: Scenario) -> dict[str, Any]:
    """Return what the scenario states of gateway and pools as they are to be set, by path."""
    parts: dict[str, Part] = {"gateway": scenario.gateway}
    parts |= {f"pools.{pool.name}": pool for pool in scenario.pools}
    return {path: plain(v) for start, part in parts.items() for path, v in _stated(part, start)}


def _stated(part: Part, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting that a part and those in it state."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if name not in {*part.model_fields_set, *ALWAYS} - {*NO_SETTING} or value is None:
            continue
        entries = dict(enumerate(value)) if isinstance(value, tuple) else {"": value}
        inner = {
            f"{path}.{name}" + (f".{getattr(one, 'name', None) or key}" if key != "" else ""): one
            for key, one in entries.items()
            if isinstance(one, Part)
        }
        for place, one in inner.items():
            yield from _stated(one, place)
        if not inner:
            yield f"{path}.{name}", value


def setting_words(settings: Mapping[str, Any]) -> str:
    """Return settings as they are written, gateway and pools apart.

    >>> setting_words({"gateway.overhead_s": 0.0125, "pools.a.replicas": 3, "pools.a.x.y": "z"})
    'gateway: overhead_s 0.0125; `a`: replicas 3, x.y z'
    """
    parts: dict[str, list[str]] = {}
    for path, value in settings.items():
        place, _, name = path.partition(".")
        if place == "pools":
            place, _, name = name.partition(".")
            place = f"`{place}`"
        parts.setdefault(place, []).append(f"{name} {value}")
    return "; ".join(f"{place}: {', '.join(each)}" for place, each in parts.items())
