"""How exactly the load client sees a server of known delays, and how late it sends.

Run: ``python tests/benchmarks/live_client.py`` on a machine with nothing else to do. The server of
the tests writes into each token when it was sent; the clock is that of all processes of a machine.
For each load: streams at once, chunks, and at the 99th percentile the delay of the first token and
of the gaps between tokens, and how late requests were sent.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

MOCK = Path(__file__).resolve().parents[1] / "live" / "mock_server.py"
LOADS = ((420, 0.02, 50, 100.0), (830, 0.02, 50, 200.0), (1600, 0.005, 5, 200.0))
"""Requests, time between tokens (s), tokens, requests/s."""


def service(requests: int, tokens: int, rate_rps: float):
    """Return a service whose requests all have that many output tokens."""
    from capplan.scenario.files import validate

    shape = {"kind": "steady", "rate_rps": rate_rps}
    one = {
        "name": "stream",
        "prompt_tokens": {"kind": "fixed", "tokens": 100},
        "output_tokens": {"kind": "fixed", "tokens": tokens},
    }
    pool = {"name": "mock", "batching": {"kind": "dynamic", "service": {"base_s": 1.0}}}
    traffic = {"duration_s": requests / rate_rps, "shape": shape}
    data = {"name": "mock", "traffic": traffic, "classes": [one], "pools": [pool]}
    return validate(data, where="benchmark")


def main() -> None:
    import capplan.live.run as live
    from capplan.live import Target, measure

    process = subprocess.Popen([sys.executable, MOCK, "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
    seen: list = []
    table = live.exchange_table
    live.exchange_table = lambda found: (seen.extend(found.values()), table(found))[1]
    for requests, itl_s, tokens, rate_rps in LOADS:
        seen.clear()
        target = Target(url=url, extra={"mock": {"ttft_s": 0.05, "itl_s": itl_s}})
        result = measure(service(requests, tokens, rate_rps), target)
        delays = [np.array(x.chunk_s) - np.array("".join(x.text).split(), float) for x in seen]
        offset = min(delay.min() for delay in delays)
        first = np.quantile([delay[0] - offset for delay in delays], 0.99)
        gaps = np.quantile(np.abs(np.concatenate([np.diff(delay) for delay in delays])), 0.99)
        late = result.client.send_lag_s.quantile(0.99)
        level = result.timeline.query("layer == 'gateway' and metric == 'in_flight'")["value"].max()
        print(
            f"{level:.0f} streams, {sum(map(len, delays)):,} chunks: TTFT {1e3 * first:.2f} ms, "
            f"ITL {1e3 * gaps:.2f} ms, sent {1e3 * late:.2f} ms late; "
            f"{result.client.cpu_fraction:.0%} of a core"
        )
    process.kill()
    process.communicate()


if __name__ == "__main__":
    main()
