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
from capplan.replica.memory import kv_blocks
from capplan.replica.step_time import step_time
from capplan.scenario.batching import StaticBatching
from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.replica.step_time import StepTime
    from capplan.scenario.pools import Pool


def static_step_time(pool: Pool) -> StepTime:
    """Return the step time of a statically batching pool whose memory holds its batches.

    Raises :class:`DataError` if it is known not to, saying by how much; ``ValueError`` for a pool
    that batches otherwise.
    """
    batching = pool.batching
    if not isinstance(batching, StaticBatching):
        msg = f"pool {pool.name}: a pool of static batching, got {batching.kind}"
        raise ValueError(msg)
    alike = pool.model_copy(update={"batching": batching.as_continuous})
    if pool.model is not None and pool.accelerator is not None:
        most = kv_blocks(alike) * batching.as_continuous.block_size
        need = batching.max_batch_size * batching.max_model_len
        if need > most:
            rule = (
                f"KV for max_batch_size · max_model_len = {need} tokens in memory for {most}, "
                f"{need - most} too many"
            )
            raise DataError(rule, where=f"pool {pool.name}", field="batching")
    return step_time(alike)


def padded_s(law: StepTime, n: int, prompt: float, output: float) -> tuple[float, float]:
    """Return how long the prompts and the answers of a batch take that is padded to these, s."""
    prefill_s = law.seconds(n * prompt, n * prompt * prompt / 2, 0, 0)
    made = range(1, round(output))
    return prefill_s, sum(law.seconds(0, 0, n, n * (prompt + done)) for done in made)


class StaticEngine(DynamicEngine):
    """The batching state of one replica; a step is a whole batch, tokens include the padding."""

    def __init__(self, batching: StaticBatching, *, step_time: StepTime) -> None:
        super().__init__(batching.as_dynamic)
        self._max_model_len = batching.max_model_len
        self._law = step_time
        self._begun_s = self._prefill_s = self._whole_s = 0.0

    def refusal(self, job: Job) -> str | None:
        """Return why a job can never run here, None if it can."""
        too_long = job.prompt_tokens + job.output_tokens > self._max_model_len
        return "max_model_len" if too_long else None

    def _service_s(self, batch: list[Job], now_s: float) -> float:
        n, prompt, output = _shape(batch)
        prefill_s, decode_s = padded_s(self._law, n, prompt, output)
        self._begun_s, self._prefill_s, self._whole_s = now_s, prefill_s, prefill_s + decode_s
        return self._whole_s

    def _count(self, job: Job) -> None:
        job.prefilled_tokens, job.generated_tokens = job.prompt_tokens, job.output_tokens
        job.streams = False

    def _served(self, batch: list[Job], now_s: float) -> None:
        n, prompt, output = _shape(batch)
        self.prefill_tokens += n * prompt
        self.output_tokens += n * output
        took_s, prefill_s = now_s - self._begun_s, self._prefill_s
        if now_s != self._begun_s + self._whole_s:  # its speed was another, or changed on the way
            prefill_s *= took_s / self._whole_s
        first_token_s = self._begun_s + prefill_s
        for job in batch:
            job.prefill_end_s, job.decode_end_s = first_token_s, now_s


def _shape(batch: list[Job]) -> tuple[int, int, int]:
    """Return how many there are, the longest prompt and the longest answer."""
    return (
        len(batch),
        max(job.prompt_tokens for job in batch),
        max(job.output_tokens for job in batch),
    )
