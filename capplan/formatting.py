"""Figures, names and counts as text, in one way for CLI, notebooks and report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

UNITS: tuple[tuple[str, float, str], ...] = (
    ("_fraction", 100.0, " %"),
    ("_rps", 1.0, " requests/s"),
    ("_tokens_per_s", 1.0, " tokens/s"),
    ("_tokens", 1.0, " tokens"),
    ("_usd_per_hour", 1.0, " USD/h"),
    ("_usd_per_success", 1.0, " USD"),
    ("_bytes", 2.0**-30, " GiB"),
)
"""How a quantity is printed, by the suffix of its name: suffix, factor, unit."""
ABBREVIATIONS = ("ttft", "tpot", "e2e")
PLACES = {
    "caller": "at the caller",
    "network": "on the network",
    "gateway": "at the gateway",
    "prefill": "in prefill",
    "decode": "in decode",
}
"""Layers whose position does not read "in the …"."""


def format_value(value: Any, name: str = "") -> str:
    """Return a value as text; the suffix of ``name`` gives the unit. Not measured is ``unknown``.

    >>> format_value(0.0123, "ttft_s"), format_value(0.995, "availability_fraction")
    ('12.3 ms', '99.5 %')
    >>> format_value(float("inf"), "e2e_s"), format_value(12.345, "rate_rps"), format_value(None)
    ('no bound', '12.3 requests/s', 'unknown')
    >>> format_value(1234567), format_value(1234567.0), format_value(True), format_value("chat")
    ('1,234,567', '1,230,000', 'yes', 'chat')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value != "inf":
        return value
    if isinstance(value, int) and not name:
        return f"{value:,}"
    number = math.nan if value is None else float(value)
    if not math.isfinite(number):
        return "unknown" if math.isnan(number) else "no bound"
    for suffix, factor, unit in UNITS:
        if name.endswith(suffix):
            return f"{_digits(number * factor)}{unit}"
    return _time(number) if name.endswith("_s") else _digits(number)


def percent(share: float, places: int = 1) -> str:
    """Return a share in percent, with so many decimal places.

    >>> percent(0.99876, 2)
    '99.88 %'
    """
    return f"{100 * share:.{places}f} %"


def _time(value_s: float) -> str:
    for factor, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if abs(value_s) >= factor:
            return f"{_digits(value_s / factor)} {unit}"
    return f"{_digits(1000 * value_s)} ms"


def _digits(value: float) -> str:
    """Return three significant digits without an exponent."""
    if value == 0:
        return "0"
    places = 2 - math.floor(math.log10(abs(value)))
    text = f"{round(value, places):,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if places > 0 else text


def format_nested(value: Any) -> str:
    """Return a value in one line: nothing for None, lists and mappings written out.

    >>> format_nested({"model": "8B", "load_rps": [1, 2], "tokens": {"p50": 10, "max": 99}})
    'model: 8B; load_rps: 1, 2; tokens: (p50: 10; max: 99)'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        inner = ((k, v, isinstance(v, Mapping)) for k, v in value.items())
        return "; ".join(
            f"{k}: ({format_nested(v)})" if nested else f"{k}: {format_nested(v)}"
            for k, v, nested in inner
        )
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(format_nested, value))
    return format_value(value)


def listed(words: Iterable[object], *, none: str = "none") -> str:
    """Return words as a list in a sentence.

    >>> listed(["chat", "assistant", "batch"]), listed([]), listed(["chat"])
    ('chat, assistant and batch', 'none', 'chat')
    """
    *first, last = [str(word) for word in words] or [none]
    return f"{', '.join(first)} and {last}" if first else last


def named(names: Iterable[str], *, none: str) -> str:
    """Return the models or accelerators of pools as a list; a pool may name none.

    >>> named(["Llama-3.1-8B", "unnamed"], none="no model")
    'Llama-3.1-8B and a pool that names none'
    """
    return listed(("a pool that names none" if n == "unnamed" else n for n in names), none=none)


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun; ``plural`` if it is not the noun with an s.

    >>> counted(1, "replica"), counted(1200, "request"), counted(0, "queue")
    ('1 replica', '1,200 requests', '0 queues')
    >>> counted(2, "entry", "entries"), counted(1.0, "turn")
    ('2 entries', '1 turn')
    """
    count = f"{number:,.15g}"
    return f"{count} {noun}" if number == 1 else f"{count} {plural or noun + 's'}"


def does(number: float, one: str, several: str) -> str:
    """Return the verb's form for a number of things.

    >>> does(1, "was", "were"), does(0, "was", "were")
    ('was', 'were')
    """
    return one if number == 1 else several


RULES = {
    "double_queue": "two queues without a bound",
    "double_queueing": "two waits over half the budget",
}
"""Rules whose names say too little of what they check."""


def rule_words(rule: str) -> str:
    """Return the name of a promise or another rule in words.

    >>> rule_words("timeout_rate_fraction"), rule_words("ttft_s"), rule_words("stability")
    ('timeout rate', 'TTFT', 'stability')
    >>> rule_words("cost_usd_per_success")
    'cost per success'
    """
    if rule in RULES:
        return RULES[rule]
    return in_words(rule.replace("_usd", "").removesuffix("_fraction").removesuffix("_s"))


def in_layer(layer: str) -> str:
    """Return the words for a request's position in a layer.

    >>> in_layer("decode"), in_layer("service_queue"), in_layer("gateway")
    ('in decode', 'in the service queue', 'at the gateway')
    """
    return PLACES.get(layer, f"in the {in_words(layer)}")


def axis_title(name: str) -> str:
    """Return a field's name in words with its unit, as an axis is titled.

    >>> axis_title("max_queue_delay_s"), axis_title("load_rps"), axis_title("max_num_seqs")
    ('max queue delay (s)', 'load (requests/s)', 'max num seqs')
    """
    units = ((suffix, unit.strip()) for suffix, _, unit in (*UNITS, ("_s", 1.0, "s")))
    for suffix, unit in units:
        if name.endswith(suffix):
            return f"{in_words(name.removesuffix(suffix))} ({unit})"
    return in_words(name)


def in_words(name: str) -> str:
    """Return a name in words, the field's abbreviations in capitals.

    >>> in_words("service_queue"), in_words("ttft_censored")
    ('service queue', 'TTFT censored')
    """
    words = name.replace("_", " ").split(" ")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)
