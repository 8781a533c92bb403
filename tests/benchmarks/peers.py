"""Requests a second of other simulators, where they are installed beside this one.

Run: ``python tests/benchmarks/peers.py``; ``simulate.py`` prints the same at its end. One replica,
Poisson arrivals of 512/128 tokens, CPU seconds of one process without start and set-up (the
difference between a long run and a short one). Each decides itself what a step costs, so the loads
differ; vllm-sr-sim 0.1 has no steps (a request holds a slot for a fixed time).
"""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

AISIMULATE = """\
traffic:
  source: {{type: synthetic, input_tokens: 512, output_tokens: 128}}
  load: {{type: poisson, requests_per_second: 20.0}}
  stop: {{requests: {requests}}}
engine:
  mode: aggregated
  model: meta-llama/Meta-Llama-3.1-8B
  hardware: h100_sxm
  backend: vllm
  workers:
    aggregated: {{}}
"""


def vllm_sr_sim(requests: int) -> float:
    """Return the CPU seconds of vLLM Semantic Router's fleet simulator, without set-up."""
    import numpy as np
    from fleet_sim import H100_80GB, Fleet, FleetConfig, PoolConfig, Request

    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / 55, requests)).tolist()
    fleet = Fleet(
        FleetConfig(
            [PoolConfig("llm", H100_80GB, 1, 8192)],
            router_type="LengthRouter",
            router_kwargs={"threshold": 8192},
        )
    )
    asked = [(at_s, Request(i, at_s, 512, 128)) for i, at_s in enumerate(arrivals)]
    began = time.process_time()
    fleet.run(asked)
    return time.process_time() - began


def aisimulate(requests: int) -> float:
    """Return the CPU seconds of a whole ``aisimulate predict``."""
    with TemporaryDirectory() as folder:
        config = Path(folder, "prediction.yaml")
        config.write_text(AISIMULATE.format(requests=requests), encoding="utf-8")
        command = [sys.executable, "-m", "aisimulate", "predict", "-c", str(config)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--output-dir", folder, "--overwrite"],
                       check=True, capture_output=True)  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


PEERS = {
    "vllm-sr-sim": ("fleet_sim", vllm_sr_sim, (0, 20_000)),
    "aisimulate": ("aisimulate", aisimulate, (1_000, 41_000)),
}
"""Module, measurement, and how many requests the short and the long run have."""


def main() -> None:
    """Print requests a second of each."""
    for name, (module, measure, (few, many)) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed")
            continue
        took = measure(many) - (measure(few) if few else 0.0)
        print(f"{name}: {(many - few) / took:,.0f} requests/s on one replica")


if __name__ == "__main__":
    main()
