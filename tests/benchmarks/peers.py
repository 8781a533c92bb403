"""Requests a second of other simulators, where they are installed beside this one.

Run: ``python tests/benchmarks/peers.py``; ``simulate.py`` prints the same at its end. One replica,
Poisson arrivals of 512/128 tokens, CPU seconds without start and set-up: a long run minus a short
one. Whole commands (draw, simulate, figures, verdict) are compared with whole commands; a peer
without a command is timed alone. Each decides itself what a step costs, so the loads differ;
vllm-sr-sim 0.1 has no steps (a request holds a slot for a fixed time). The ratio holds for one
machine with nothing else on it.
"""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import time
from collections.abc import Callable
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
        arguments = ["predict", "-c", str(config), "--output-dir", folder, "--overwrite"]
        return command_s(sys.executable, "-m", "aisimulate", *arguments)


def capplan(requests: int) -> float:
    """Return the CPU seconds of a whole ``capplan simulate``."""
    path = Path(sys.executable).with_name("capplan")
    return command_s(path, "simulate", "benchmark", "--set", f"requests={requests}")


def command_s(*command: str | Path) -> float:
    """Return the CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rate_rps(measure: Callable[[int], float], few: int, many: int, *, times: int = 3) -> float:
    """Return requests a CPU second, of the best long run minus the best short one."""
    short_s, long_s = (min(measure(n) for _ in range(times)) if n else 0.0 for n in (few, many))
    return (many - few) / (long_s - short_s)


PEERS = {
    "vllm-sr-sim": ("fleet_sim", vllm_sr_sim, (0, 20_000)),
    "aisimulate": ("aisimulate", aisimulate, (1_000, 41_000)),
}
"""Module, measurement, and how many requests the short and the long run have."""
COMMANDS = {"aisimulate"}
"""Peers that are timed as a whole command."""


def main() -> None:
    """Print requests a second of each, and how many times as many this one does."""
    own_rps = rate_rps(capplan, 20_000, 120_000)  # both runs load the compiled engine
    print(f"capplan simulate, the whole command: {own_rps:,.0f} requests/s on one replica")
    for name, (module, measure, (few, many)) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed")
            continue
        found_rps = rate_rps(measure, few, many)
        ratio = f"; capplan {own_rps / found_rps:.1f} times" if name in COMMANDS else ""
        print(f"{name}: {found_rps:,.0f} requests/s on one replica{ratio}")


if __name__ == "__main__":
    main()
