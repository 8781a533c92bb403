"""A server of known delays on loopback, for as long as a module's tests run."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny_llama

from capplan.live import Target
from capplan.scenario.files import validate


class MockServer:
    """A running mock server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def target(self, **how: object) -> Target:
        """Return the target whose answers come as ``mock_server`` describes."""
        return Target(url=self.url, extra={"mock": how})

    def state(self) -> dict:
        """Return how many requests it works on, and has answered."""
        with urllib.request.urlopen(f"{self.url}/state", timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    script = Path(__file__).with_name("mock_server.py")
    process = subprocess.Popen([sys.executable, script, "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield MockServer(int(process.stdout.readline()))
    process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def service():
    """Return a function that builds a small service; a keyword is a field of its class."""

    def built(*, rate_rps: float = 20.0, duration_s: float = 1.0, traffic=None, **fields: object):
        one = {
            "name": "chat",
            "prompt_tokens": {"kind": "fixed", "tokens": 50},
            "output_tokens": {"kind": "fixed", "tokens": 10},
            **fields,
        }
        shape = {"kind": "steady", "rate_rps": rate_rps}
        data = {
            "name": "live",
            "drain_s": 10.0,
            "traffic": traffic or {"duration_s": duration_s, "shape": shape},
            "classes": [one],
            "pools": [
                {
                    "name": "llm",
                    "model": "meta-llama/Llama-3.1-8B",
                    "accelerator": "H100-SXM",
                    "batching": {"kind": "continuous"},
                }
            ],
        }
        return validate(data, where="test")

    return built


SLOTS = 4


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a server with 4 slots; give its URL and process id."""
    model = folder / "model.gguf"
    tiny_llama.write(model)
    script, port = Path(__file__).with_name("llama_server.py"), free_port()
    process = subprocess.Popen(
        [sys.executable, script, model, str(port), str(SLOTS)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline()
    yield f"http://127.0.0.1:{port}", process.pid
    process.terminate()
    process.communicate(timeout=20)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Iterator[str]:
    """Return the URL of a running server."""
    with running(tmp_path_factory.mktemp("llama")) as (url, _):
        yield url
