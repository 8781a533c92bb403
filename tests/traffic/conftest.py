"""The chat service with laws of its requests, which its own trace leaves without effect."""

import pytest

from capplan.scenario.files import load_scenario

ONLINE = {
    "prompt_tokens": {
        "kind": "lognormal",
        "p50_tokens": 1020,
        "p95_tokens": 4083,
        "max_tokens": 14050,
    },
    "output_tokens": {
        "kind": "lognormal",
        "p50_tokens": 129,
        "p95_tokens": 451,
        "max_tokens": 1000,
    },
    "length_correlation": 0.09,
    "prefix_tokens": 512,
}
BATCH = {
    "prompt_tokens": {
        "kind": "lognormal",
        "p50_tokens": 1469,
        "p95_tokens": 7303,
        "max_tokens": 7437,
    },
    "output_tokens": {"kind": "lognormal", "p50_tokens": 13, "p95_tokens": 90, "max_tokens": 1899},
}
LAWS = {
    "chat": {"share": 65.0, **ONLINE},
    "assistant": {"share": 20.0, **ONLINE},
    "batch": {"share": 15.0, **BATCH},
}


@pytest.fixture(scope="session")
def chat():
    values = {f"classes.{c}.{name}": v for c, laws in LAWS.items() for name, v in laws.items()}
    return load_scenario("chat-service", values=values)
