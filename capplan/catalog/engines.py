"""Settings that an inference engine takes if a server states none."""

from __future__ import annotations

import re

from capplan.catalog.accelerators import Accelerator

GIB = 2**30
LARGE_DEVICE_BYTES = 70 * GIB
DEFAULTS_SOURCE = "defaults of vLLM 0.8 and later"
"""Source: vLLM, ``vllm/engine/arg_utils.py``, 2026-11."""
V1_SINCE = (0, 8)
"""Version of vLLM whose V1 engine, the default since, takes its batch limits by device."""


def vllm_version(engine: str) -> tuple[int, int] | None:
    """Return major and minor version of vLLM in an engine's name, None if it states none.

    >>> vllm_version("vllm 0.11.2"), vllm_version("vLLM"), vllm_version("sglang 0.5")
    ((0, 11), None, None)
    """
    found = re.search(r"vllm\D{0,3}(\d+)\.(\d+)", engine, re.IGNORECASE)
    return None if found is None else (int(found[1]), int(found[2]))


def vllm_batch_defaults(
    device: Accelerator | None, *, version: tuple[int, int] | None = None
) -> dict[str, int]:
    """Return ``max_num_seqs`` and ``max_num_batched_tokens`` of a vLLM API server that states none.

    A device of 70 GiB or more that is no A100 takes 1,024 sequences and 8,192 tokens, any other 256
    and 2,048; an unknown device counts as other, an unknown version as the newest.
    Source: vLLM, ``vllm/engine/arg_utils.py``, ``get_batch_defaults`` (usage context
    ``OPENAI_API_SERVER``), read 2026-11; before V1 (0.8) the limits did not depend on the device.

    >>> from capplan.catalog import accelerator
    >>> vllm_batch_defaults(accelerator("H100-SXM-80GB"))
    {'max_num_seqs': 1024, 'max_num_batched_tokens': 8192}
    >>> vllm_batch_defaults(accelerator("A100-SXM-80GB"))["max_num_seqs"]
    256
    """
    by_device = version is None or version >= V1_SINCE
    large = device is not None and device.memory_bytes >= LARGE_DEVICE_BYTES
    if by_device and large and device is not None and "a100" not in device.name.lower():
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
