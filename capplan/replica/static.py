"""Static batching: a batch is padded to its longest prompt and runs until its longest answer.

For comparison with continuous batching. A batch of ``n`` computes ``n`` prompts of the longest
length at once, then as many decode steps as the longest answer needs, each of all ``n``
sequences; nobody joins, and all answers go back when the last is made.
Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models",
OSDI 2022, section 3.1 (challenge C1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.replica.dynamic import DynamicEngine
from capplan.replica.job import Job

if TYPE_CHECKING:
    from capplan.replica.latency import StepTime
    from capplan.scenario import StaticBatching


class StaticEngine(DynamicEngine):
    """The batching state of one replica; a step is a whole batch, tokens include the padding."""

    def __init__(self, batching: StaticBatching, *, step_time: StepTime) -> None:
        super().__init__(batching.as_dynamic)
        self._max_model_len = batching.max_model_len
        self._seconds = step_time.seconds
        self._first_token_s = 0.0

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        too_long = job.prompt_tokens + job.output_tokens > self._max_model_len
        return "max_model_len" if too_long else None

    def _service_s(self, batch: list[Job], now_s: float) -> float:
        n, prompt, output = _shape(batch)
        prefill_s = self._seconds(n * prompt, n * prompt * prompt / 2, 0, 0)
        self._first_token_s = now_s + prefill_s
        decode_s = sum(self._seconds(0, 0, n, n * (prompt + made)) for made in range(1, output))
        return prefill_s + decode_s

    def _count(self, job: Job) -> None:
        job.prefilled_tokens, job.generated_tokens = job.prompt_tokens, job.output_tokens
        job.streams = False

    def _served(self, batch: list[Job], now_s: float) -> None:
        n, prompt, output = _shape(batch)
        self.prefill_tokens += n * prompt
        self.output_tokens += n * output
        for job in batch:
            job.prefill_end_s, job.decode_end_s = self._first_token_s, now_s


def _shape(batch: list[Job]) -> tuple[int, int, int]:
    """Return how many there are, the longest prompt and the longest answer."""
    return (
        len(batch),
        max(job.prompt_tokens for job in batch),
        max(job.output_tokens for job in batch),
    )
