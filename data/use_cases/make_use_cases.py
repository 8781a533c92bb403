"""Write use_cases.csv: what a use case brings, each number with its source.

Lengths and gaps of ``chat``, ``code`` and ``batch`` are measured here on public traces, found
through CAPPLAN_DATA; the others are published figures, spread as the nearest trace is.
Run: CAPPLAN_DATA=/path/to/data python data/use_cases/make_use_cases.py
"""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd

import capplan as cp

DATA = Path(os.environ["CAPPLAN_DATA"]) / "traces"
PLANNER = "llm-d-planner {}", "llm-d-planner usecase_slo_workload.json, {}: {}, read 2026-11"
AZURE = (
    "Azure LLM trace 2023, {}",
    "Azure LLM inference trace 2023, {} (Patel et al., Splitwise, ISCA 2024), measured here",
)
SHAREGPT = (
    "ShareGPT lengths",
    "ShareGPT lengths, Llama-2 tokenizer (Etalon processed_traces, 2024), measured here",
)
AROUND = (
    "llm-d-planner {}, spread as Azure conv",
    "typical length of llm-d-planner {}, p95/p50 and max/p50 as Azure conv",
)
AGENT = (
    "Mooncake tool&agent mean, spread as its conversation",
    "Mooncake FAST25 tool&agent trace: mean {} tokens (Qin et al., FAST 2025, table 1); p95/p50 "
    "and max/p50 of its conversation trace, measured here",
)
BATCH = "OpenAI Batch API", "OpenAI Batch API: completion window of 24 h, 2024"
Z95 = 1.6449
"""95th percentile of the standard normal distribution."""
ROWS = []


def add(use_case, quantity, value, unit, source):
    ROWS.append((use_case, quantity, f"{value:g}", unit, *source))


def filled(source, *names):
    return tuple(text.format(*names) for text in source)


def quantiles(values):
    return {"p50": np.quantile(values, 0.5), "p95": np.quantile(values, 0.95), "max": values.max()}


def add_lengths(use_case, column, found, source):
    for name, value in found.items():
        add(use_case, f"{column}_{name}_tokens", round(float(value)), "tokens", source)


def spread(found, p50):
    """Return p50, p95 and max around another median, in the ratios of a measured length."""
    return {name: p50 * value / found["p50"] for name, value in found.items()}


def median(mean, found):
    """Return the median of the log-normal length of that mean and the measured p95/p50."""
    sigma = math.log(found["p95"] / found["p50"]) / Z95
    return mean / math.exp(sigma**2 / 2)


def add_users(use_case, entry, active, per_minute, peak):
    source = filled(PLANNER, entry, "workload")
    add(use_case, "active_fraction", active, "1", source)
    add(use_case, "requests_per_active_user_per_min", per_minute, "1/min", source)
    add(use_case, "peak_to_mean", peak, "1", source)


def add_promises(use_case, entry, ttft_s, tpot_s):
    add(use_case, "ttft_s", ttft_s, "s", filled(PLANNER, entry, "upper target"))
    add(use_case, "tpot_s", tpot_s, "s", filled(PLANNER, entry, "upper target"))


def main():
    traces = {
        "chat": ("conv", cp.read_trace(DATA / "azure-llm-2023/AzureLLMInferenceTrace_conv.csv")),
        "code": ("code", cp.read_trace(DATA / "azure-llm-2023/AzureLLMInferenceTrace_code.csv")),
    }
    found = {}
    for use_case, (name, trace) in traces.items():
        for column in ("prompt", "output"):
            found[use_case, column] = quantiles(trace.frame[f"{column}_tokens"])
            add_lengths(use_case, column, found[use_case, column], filled(AZURE, name))
        gaps = np.diff(trace.frame["arrival_s"])
        add(use_case, "gap_cv", gaps.std() / gaps.mean(), "1", filled(AZURE, name))
    add_users("chat", "chatbot_conversational", 0.20, 0.4, 2.0)
    add_promises("chat", "chatbot_conversational", 0.5, 0.05)
    add_users("code", "code_completion", 0.25, 2.0, 2.5)
    add_promises("code", "code_completion", 0.2, 0.035)

    for use_case, entry, prompt, output in (
        ("rag", "document_analysis_rag", 4096, 512),
        ("summary", "long_document_summarization", 10240, 1536),
    ):
        for column, p50 in (("prompt", prompt), ("output", output)):
            values = spread(found["chat", column], p50)
            add_lengths(use_case, column, values, filled(AROUND, entry))
    add_users("rag", "document_analysis_rag", 0.20, 1.0, 2.5)
    add_promises("rag", "document_analysis_rag", 1.2, 0.06)
    add_users("summary", "long_document_summarization", 0.10, 0.1, 1.5)
    add_promises("summary", "long_document_summarization", 3.0, 0.07)

    trace = cp.read_trace(DATA / "mooncake-fast25/conversation_trace.jsonl.gz")
    for column, mean in (("prompt", 8596), ("output", 182)):
        shape = quantiles(trace.frame[f"{column}_tokens"])
        add_lengths("agent", column, spread(shape, median(mean, shape)), filled(AGENT, mean))
    add_promises("agent", "document_analysis_rag", 1.2, 0.06)

    file = DATA / "etalon-lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
    lengths = pd.read_csv(file)
    for column, name in (("prompt", "num_prefill_tokens"), ("output", "num_decode_tokens")):
        add_lengths("batch", column, quantiles(lengths[name]), SHAREGPT)
    add("batch", "deadline_s", 86400, "s", BATCH)

    target = Path(__file__).with_name("use_cases.csv")
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["use_case", "quantity", "value", "unit", "short", "source"])
        writer.writerows(ROWS)


if __name__ == "__main__":
    main()
