"""The response cache of a gateway: whole answers that need not be made again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from capplan.scenario.part import Count, Part, PositiveSeconds, Seconds


class ResponseCache(Part):
    """Answers that the gateway keeps, and gives to whoever asks the same again.

    A request asks the same as an earlier one if the ids of prefix blocks in the trace cover both
    prompts and agree, and so do class and length. Where the trace has no ids, the class's
    ``response_cached_fraction`` of its requests is found, whatever is kept. An answer is kept when
    it is made, for ``ttl_s`` (None = for good) whether it is asked for or not, the least recently
    asked for going first when there are more than ``capacity`` (None = no limit). Answers that were
    degraded are not kept.
    Source: RFC 9111, "HTTP Caching", 2022, section 4.2 (freshness counts from when it was made).
    """

    owner: str = ""
    capacity: Count | None = None
    ttl_s: PositiveSeconds | None = None
    lookup_s: Seconds = 0.0
    """What every request spends on being looked up, found or not."""
    per_tenant: bool = False
    """Whether tenants get only answers of their own."""
    bytes_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    """Memory of an entry, per token of prompt and answer: text of about four characters a token in
    English (OpenAI, "What are tokens and how to count them?", 2025), one byte each."""
