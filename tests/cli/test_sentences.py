"""What commands print is words and figures: no nan, no inf, no None, no minus nought."""

import re

import pytest

from capplan.bundled import data_path
from capplan.cli import main

DRILLS = data_path("scenarios", "drills")
ODD = re.compile(
    r"\bnan\b|\binf\b|\bNone\b|unknown (to|times|arrive)|(after|with|of) unknown\b"
    r"|(?<![\w.-])-0(\.0+)?(?![\w.-])"
)


def test_the_pattern_finds_each_of_them():
    for text in ("Retry-After nan s", "109 and inf", "not with None", "knee unknown to unknown",
                 "after unknown, the", "grows by -0 %"):  # fmt: skip
        assert ODD.search(text), text
    for text in ("no bound", "is unknown", "2026-12-01", "Qwen3-0.6B", "sm-0"):
        assert not ODD.search(text), text


@pytest.mark.parametrize(
    "words",
    [
        ("budget", f"{DRILLS}/cold-cache.yaml"),
        ("budget", "benchmark"),
        ("budget", "mixed-modality"),
        ("simulate", f"{DRILLS}/retry-storm.yaml"),
        ("simulate", f"{DRILLS}/cold-cache.yaml"),
        ("memory", "mixed-modality"),
        ("profile", "sample"),
        ("size", "benchmark", "--set", "requests=300", "--most", "2"),
    ],
)
def test_no_command_prints_them(words, capsys):
    assert main(list(words)) == 0
    printed = capsys.readouterr().out
    assert printed
    found = [line for line in printed.splitlines() if ODD.search(line)]
    assert found == []
