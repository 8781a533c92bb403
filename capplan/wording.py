"""Numbers and names of things, in sentences."""

from __future__ import annotations

ABBREVIATIONS = ("ttft", "tpot", "e2e")
PLACES = {
    "caller": "at the caller",
    "network": "on the network",
    "gateway": "at the gateway",
    "prefill": "in prefill",
    "decode": "in decode",
}
"""Layers that one is not "in the"."""


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return a number of things; ``plural`` where it is not the noun with an s.

    >>> counted(1, "replica"), counted(1200, "request"), counted(0, "queue")
    ('1 replica', '1,200 requests', '0 queues')
    >>> counted(2, "entry", "entries"), counted(1.0, "turn")
    ('2 entries', '1 turn')
    """
    told = f"{number:,.15g}"
    return f"{told} {noun}" if number == 1 else f"{told} {plural or noun + 's'}"


def does(number: float, one: str, several: str) -> str:
    """Return the verb's form for a number of things.

    >>> does(1, "was", "were"), does(0, "was", "were")
    ('was', 'were')
    """
    return one if number == 1 else several


def rule_words(rule: str) -> str:
    """Return the name of a promise or another rule in words.

    >>> rule_words("timeout_rate_fraction"), rule_words("ttft_s"), rule_words("stability")
    ('timeout rate', 'TTFT', 'stability')
    >>> rule_words("cost_usd_per_success")
    'cost per success'
    """
    return in_words(rule.replace("_usd", "").removesuffix("_fraction").removesuffix("_s"))


def in_layer(layer: str) -> str:
    """Return where a request is that is in a layer.

    >>> in_layer("decode"), in_layer("service_queue"), in_layer("gateway")
    ('in decode', 'in the service queue', 'at the gateway')
    """
    return PLACES.get(layer, f"in the {in_words(layer)}")


def in_words(name: str) -> str:
    """Return a name in words, the field's abbreviations in capitals.

    >>> in_words("service_queue"), in_words("ttft_censored")
    ('service queue', 'TTFT censored')
    """
    words = name.replace("_", " ").split(" ")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)
