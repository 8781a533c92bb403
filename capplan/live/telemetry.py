"""The server's own metrics, scraped while a run goes on, as rows of the timeline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp
import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from capplan.live.target import Target
from capplan.schema import TIMELINE, names

EVERY_S = 1.0
"""Between two scrapes, s. vLLM logs its queue every 10 s, a usual Prometheus scrapes every 15 s;
queues of seconds need less."""
SCRAPE_TIMEOUT_S = 5.0
QUEUE, DECODE, PREFILL = "scheduler_queue", "decode", "prefill"
METRICS: Mapping[str, tuple[str, str]] = {
    "vllm:num_requests_running": (DECODE, "running"),
    "vllm:num_requests_waiting": (QUEUE, "length"),
    "vllm:kv_cache_usage_perc": (DECODE, "kv_usage_fraction"),
    "vllm:gpu_cache_usage_perc": (DECODE, "kv_usage_fraction"),
    "vllm:num_preemptions_total": (QUEUE, "preemptions_per_s"),
    "vllm:prompt_tokens_total": (PREFILL, "tokens_per_s"),
    "vllm:generation_tokens_total": (DECODE, "tokens_per_s"),
    "sglang:num_running_reqs": (DECODE, "running"),
    "sglang:num_queue_reqs": (QUEUE, "length"),
    "sglang:token_usage": (DECODE, "kv_usage_fraction"),
    "sglang:prompt_tokens_total": (PREFILL, "tokens_per_s"),
    "sglang:generation_tokens_total": (DECODE, "tokens_per_s"),
    "tgi_batch_current_size": (DECODE, "running"),
    "tgi_queue_size": (QUEUE, "length"),
    "llamacpp:requests_processing": (DECODE, "running"),
    "llamacpp:requests_deferred": (QUEUE, "length"),
    "llamacpp:prompt_tokens_total": (PREFILL, "tokens_per_s"),
    "llamacpp:tokens_predicted_total": (DECODE, "tokens_per_s"),
    "nv_inference_pending_request_count": (QUEUE, "length"),
}
"""Name of a metric at the server -> layer and metric of the timeline; a total becomes a rate.

Source: vLLM, ``vllm/v1/metrics/loggers.py`` (``gpu_cache_usage_perc`` up to 0.10); SGLang,
``python/sglang/srt/metrics/collector.py``; text-generation-inference, "Metrics"; llama.cpp,
``tools/server/README.md``; Triton, "Metrics"."""


@dataclass(slots=True, eq=False)
class Telemetry:
    """Scrapes a server at even intervals; a scrape that fails is a gap, not zero.

    Attributes
    ----------
    scrapes, failed
        How often the server was asked, and did not answer with metrics.
    """

    target: Target
    read_s: Callable[[], float]
    scrapes: int = 0
    failed: int = 0
    _times: list[float] = field(default_factory=list)
    _values: list[dict[str, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Scrape until cancelled."""
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
        headers = self.target.all_headers()
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            while True:
                found = await self._scraped(session)
                self.scrapes += 1
                self.failed += not found
                self._times.append(self.read_s())
                self._values.append(found)
                await asyncio.sleep(EVERY_S - self.read_s() % EVERY_S)

    async def _scraped(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Return the known metrics of one scrape; empty if it failed."""
        address = f"{self.target.url.rstrip('/')}/metrics"
        try:
            async with session.get(address) as response:
                if response.status != 200:  # noqa: PLR2004
                    return {}
                return known_metrics(await response.text())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}

    def frame(self, replica: str) -> pd.DataFrame:
        """Return the rows of the timeline; a value holds until the next, NaN marks a gap."""
        found = {name for values in self._values for name in values}
        parts = [pd.DataFrame(columns=names(TIMELINE))]
        for name in METRICS:
            if name in found:
                layer, metric = METRICS[name]
                table = pd.DataFrame(self._rows(name), columns=["time_s", "value"])
                parts.append(table.assign(layer=layer, replica=replica, metric=metric))
        return pd.concat(parts[1:] or parts, ignore_index=True)[names(TIMELINE)]

    def _rows(self, name: str) -> Iterable[tuple[float, float]]:
        readings = [values.get(name, math.nan) for values in self._values]
        if not name.endswith("_total"):
            return zip(self._times, readings, strict=True)
        steps = zip(self._times, self._times[1:], readings, readings[1:], strict=False)
        return ((start, (after - before) / (end - start)) for start, end, before, after in steps)


def known_metrics(text: str) -> dict[str, float]:
    """Return the metrics of a scrape that are in :data:`METRICS`, summed over their labels.

    >>> known_metrics('vllm:num_requests_waiting{engine="0"} 3')
    {'vllm:num_requests_waiting': 3.0}
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in METRICS:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
