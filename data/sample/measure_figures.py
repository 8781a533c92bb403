"""Measure the figures that the sample is made from: ``measure_figures.py FOLDER`` → figures.csv.

FOLDER holds the Azure LLM inference trace 2023 (AzureLLMInferenceTrace_conv.csv and _code.csv),
from github.com/Azure/AzurePublicDataset, CC-BY 4.0.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
HOURS = {"conversation": "conv", "code": "code"}
SOURCE = (
    "Azure LLM inference trace 2023, AzureLLMInferenceTrace_{}.csv at commit b469a113 of "
    "github.com/Azure/AzurePublicDataset, CC-BY 4.0; see Patel et al., Splitwise, ISCA 2024"
)
LENGTH_QUANTILES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)
PROMPT_GROUPS = (0, 0.25, 0.5, 0.75, 0.9, 1)
GROUP_QUANTILES = (
    *(0, 0.01, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.85, 0.9),
    *(0.925, 0.95, 0.965, 0.98, 0.99, 0.999, 1),
)
GAP_QUANTILES = (0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.998, 0.999, 0.9995, 1)
PARTS_OF_THE_HOUR = 12

Row = tuple[str, str, float, str]


def figures(folder: Path) -> list[tuple[str, str, str, str, str]]:
    """Return one row per figure: hour, figure, value, unit, source."""
    rows = []
    for hour, suffix in HOURS.items():
        source = SOURCE.format(suffix)
        for name, value, unit in measured(folder / f"AzureLLMInferenceTrace_{suffix}.csv"):
            rows.append((hour, name, f"{value:.6g}", unit, source))
    return rows


def measured(path: Path) -> list[tuple[str, float, str]]:
    """Return name, value and unit of each figure of one hour."""
    table = pd.read_csv(path)
    time = pd.to_datetime(table["TIMESTAMP"])
    arrival = (time - time.min()).dt.total_seconds().to_numpy()
    prompt = table["ContextTokens"].to_numpy()
    output = table["GeneratedTokens"].to_numpy()
    return [
        ("requests", len(table), "requests"),
        *_arrivals(arrival),
        *[(f"prompt_tokens.q{q:g}", np.quantile(prompt, q), "tokens") for q in LENGTH_QUANTILES],
        *[(f"output_tokens.q{q:g}", np.quantile(output, q), "tokens") for q in LENGTH_QUANTILES],
        *_output_by_prompt(prompt, output),
        ("length_rank_correlation", _rank_correlation(prompt, output), ""),
    ]


def _arrivals(arrival: np.ndarray) -> list[tuple[str, float, str]]:
    gaps = np.diff(arrival)
    counts, _ = np.histogram(arrival, bins=PARTS_OF_THE_HOUR)
    return [
        ("rate_rps", len(arrival) / arrival[-1], "requests/s"),
        ("gap_cv", gaps.std() / gaps.mean(), ""),
        *[(f"gap.q{q:g}", np.quantile(gaps, q) / gaps.mean(), "mean gaps") for q in GAP_QUANTILES],
        *[
            (f"rate.part{i}", n / counts.mean(), "of the mean rate")
            for i, n in enumerate(counts, start=1)
        ],
    ]


def _output_by_prompt(prompt: np.ndarray, output: np.ndarray) -> list[tuple[str, float, str]]:
    """Output quantiles where the prompt lies between two of its own quantiles: the joint law."""
    edges = np.quantile(prompt, PROMPT_GROUPS)
    rows = []
    for i in range(len(PROMPT_GROUPS) - 1):
        above = prompt > edges[i] if i else np.ones(len(prompt), bool)
        inside = output[above & (prompt <= edges[i + 1])]
        rows += [
            (f"output_tokens.prompt{i + 1}.q{q:g}", np.quantile(inside, q), "tokens")
            for q in GROUP_QUANTILES
        ]
    return rows


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(pd.Series(x).corr(pd.Series(y), method="spearman"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "figures.csv")
    args = parser.parse_args()
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("hour", "figure", "value", "unit", "source"))
        writer.writerows(figures(args.folder))


if __name__ == "__main__":
    main()
