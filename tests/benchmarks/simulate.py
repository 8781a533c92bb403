"""Requests a second, memory and latency of the simulator, on one core.

Run: ``python tests/benchmarks/simulate.py [--day]``. The scenario is the bundled ``benchmark``:
512/128 tokens at 70 % load, full request log, deadlines and retries on, compared with the
reference engine (Python, one event a step) behind the same control plane. ``protected`` adds to it
priorities, breakers, an autoscaler and a crash. Times are CPU seconds of one process, the best of
several, so that other work on the machine matters less; the trace is drawn beforehand. ``--day``
adds a day at 100 requests/s over 64 replicas (8.64 million requests). Peers are timed where they
are installed, on as many requests of the same lengths.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import peers

TARGET_RPS = {1: 60_000, 8: 50_000}
PROTECTED_RPS = 40_000
PROTECTED = {
    "classes": [
        {
            "name": name,
            "owner": "benchmark",
            "priority": priority,
            "promises": {"deadline_s": 60.0},
            "retry": {"max_attempts": 3, "backoff_s": 0.5, "jitter": True},
            "prompt_tokens": {"kind": "fixed", "tokens": 512},
            "output_tokens": {"kind": "fixed", "tokens": 128},
            "share": 1.0,
        }
        for priority, name in enumerate(("interactive", "batch"))
    ],
    "pools.llm.queue.order": "priority",
    "pools.llm.batching.scheduler.order": "priority",
    "pools.llm.lifecycle": {"model_load": {"kind": "fixed", "seconds": 30.0}},
    "pools.llm.autoscaler": {
        "min_replicas": 4,
        "max_replicas": 12,
        "metrics": [{"metric": "in_flight", "target": 60.0}],
    },
    "breakers": [
        {
            "name": "slow",
            "when": {"metric": "e2e_s", "quantile": 0.99, "above": 5.0},
            "then": [{"kind": "max_tokens", "tokens": 64}],
            "release": {"limit_factor": 0.8, "for_s": 5.0},
        },
        {
            "name": "overfull",
            "when": {"metric": "queue_length", "above": 200},
            "then": [{"kind": "refuse", "status": 503, "retry_after_s": 5.0}],
            "release": {"limit_factor": 0.8},
        },
    ],
    "faults": [{"pool": "llm", "at_s": 10.0, "down_s": 20.0}],
}
"""What the protected case adds: everything that acts while a run goes on."""
MANY, DAY = 1_000_000, 8_640_000
TARGETS = {"million_s": 25.0, "million_gb": 1.0, "day_s": 240.0, "interactive_s": 0.1}


def scenario(requests: int, replicas: int, **values: object):
    """Return the benchmark scenario with that many requests and replicas."""
    from capplan.scenario.files import load_scenario

    wanted = {"requests": requests, "pools.llm.replicas": replicas, **values}
    return load_scenario("benchmark", values=wanted)


def timed(built, trace, *, engine: str = "fast", times: int = 5) -> tuple[float, float]:
    """Return the least CPU time and the least wall time of a run, s."""
    from capplan.simulation import simulate

    found = []
    for _ in range(times):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        simulate(built, trace=trace, engine=engine)
        found.append((time.process_time() - cpu_s, time.perf_counter() - wall_s))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def speed(replicas: int, requests: int) -> None:
    """Print requests a second of both engines."""
    from capplan.traffic.draw import draw

    built = scenario(requests, replicas)
    trace = draw(built)
    cpu_s, wall_s = timed(built, trace)
    slow_s, _ = timed(built, trace, engine="reference", times=2)
    target = TARGET_RPS.get(replicas)
    print(
        f"{replicas:3d} replicas: {requests / cpu_s:9,.0f} requests/s"
        f" ({requests / wall_s:,.0f} by the clock), {slow_s / cpu_s:.2f} times the reference"
        + (f"; target {target:,}" if target else "")
    )


def cached(replicas: int, requests: int) -> None:
    """Print how much longer a run of long prompts takes with prefix caching than without."""
    from capplan.traffic.draw import draw

    values = {
        "classes.benchmark.prompt_tokens.tokens": 12_000,
        "classes.benchmark.prefix_tokens": 1_000,
        "traffic.shape.rate_rps": 3.0,
    }
    took = []
    for caching in (False, True):
        values["pools.llm.batching.prefix_caching"] = caching
        built = scenario(requests, replicas, **values)
        took.append(timed(built, draw(built))[0])
    print(f"{replicas:3d} replicas, prefix caching: {took[1] / took[0]:.2f} times; target 2")


def protected(replicas: int, requests: int) -> None:
    """Print requests a second with priorities, breakers, an autoscaler and a crash."""
    from capplan.traffic.draw import draw

    built = scenario(requests, replicas, **PROTECTED)
    cpu_s, wall_s = timed(built, draw(built))
    print(
        f"{replicas:3d} replicas, protected: {requests / cpu_s:9,.0f} requests/s"
        f" ({requests / wall_s:,.0f} by the clock); target {PROTECTED_RPS:,}"
    )


def growth(replicas: int, requests: int) -> None:
    """Print what twice and four times as many requests cost, against the first."""
    from capplan.traffic.draw import draw

    took = []
    for times in (1, 2, 4):
        built = scenario(times * requests, replicas)
        took.append(timed(built, draw(built), times=3)[0])
    ratios = ", ".join(f"{cpu_s / took[0]:.2f}" for cpu_s in took)
    print(f"{requests:,} requests on {replicas} replicas, twice and four times as many: {ratios}")


def once(name: str, requests: int, replicas: int) -> None:
    """Print time and peak memory of one long run; called in a process of its own."""
    from capplan.traffic.draw import draw

    values = {} if name == "million" else {
        "traffic.shape.rate_rps": 100.0, "traffic.shape.per_replica": False,
    }  # fmt: skip
    built = scenario(requests, replicas, **values)
    trace = draw(built)
    cpu_s, wall_s = timed(built, trace, times=1)
    status = Path("/proc/self/status").read_text()  # ru_maxrss would be the parent's, too
    peak_gb = int(status.split("VmHWM:")[1].split()[0]) / 1e6
    targets = ", ".join(f"{k} {v}" for k, v in TARGETS.items() if k.startswith(name))
    print(
        f"{name}: {requests:,} requests on {replicas} replicas in {cpu_s:.1f} s"
        f" ({wall_s:.1f} s by the clock), peak memory {peak_gb:.2f} GB; targets {targets}"
    )


def interactive() -> None:
    """Print how long a slider waits for 2,000 requests."""
    from capplan.traffic.draw import draw

    built = scenario(2000, 2)
    cpu_s, wall_s = timed(built, draw(built))
    print(f"2,000 requests: {cpu_s * 1e3:.0f} ms ({wall_s * 1e3:.0f} by the clock); target 100 ms")


def command(*arguments: str, target_s: float) -> None:
    """Print how long a whole command takes, the best of three."""
    path = Path(sys.executable).with_name("capplan")
    found = []
    for _ in range(3):
        wall_s = time.perf_counter()
        cpu_s = peers.command_s(path, *arguments)
        found.append((cpu_s, time.perf_counter() - wall_s))
    cpu_s, wall_s = min(found)
    name = " ".join(["capplan", *arguments])
    print(f"{name}: {cpu_s:.2f} s ({wall_s:.2f} by the clock); target {target_s} s")


def main() -> None:
    """Print everything."""
    if "--only" in sys.argv:
        name, requests, replicas = sys.argv[sys.argv.index("--only") + 1 :]
        once(name, int(requests), int(replicas))
        return
    for replicas, requests in ((1, 10_000), (8, 20_000), (64, 100_000)):
        speed(replicas, requests)
    cached(8, 10_000)
    protected(8, 20_000)
    growth(8, 20_000)
    interactive()
    command("--help", target_s=0.4)
    command("simulate", "benchmark", target_s=1.5)
    long_runs = [("million", MANY, 1)] + ([("day", DAY, 64)] if "--day" in sys.argv else [])
    for name, requests, replicas in long_runs:
        only = [sys.executable, __file__, "--only", name, str(requests), str(replicas)]
        subprocess.run(only, check=True)
    peers.main()


if __name__ == "__main__":
    main()
