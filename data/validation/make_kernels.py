"""Compare step times with measured kernels and public servers, by family of models.

    python data/validation/make_kernels.py

Needs the extra ``silicon``: kernels and servers come with aiconfigurator-core 0.12 (Apache-2.0;
``systems/silicon_sample.csv``). Half a minute of one core.
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import aiconfigurator_core
import pandas as pd
from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

from capplan.replica.capacity import Mix, replica_model
from capplan.replica.family_errors import COLUMNS, KERNELS, family_of
from capplan.replica.kernel_database import SYSTEMS, KernelDatabase, request
from capplan.replica.step_time import step_time
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import RooflineStep, SiliconStep

FILE = Path(__file__).with_name("kernels.csv")
CONFIGS = Path(aiconfigurator_core.__file__).with_name("model_configs")
LAWS = {"roofline": RooflineStep(), "silicon": SiliconStep()}
CASES = (
    ("Llama-3.1-8B", "H100-SXM-80GB", 1, None),
    ("Llama-3.1-8B", "A100-SXM-80GB", 1, None),
    ("Llama-3.1-8B", "L40S", 1, None),
    ("Llama-2-7b-hf", "H100-SXM-80GB", 1, None),
    ("Qwen3-14B", "H100-SXM-80GB", 1, None),
    ("Qwen3-32B", "H200-SXM-141GB", 8, None),
    ("Llama-2-70b-hf", "H200-SXM-141GB", 2, None),
    ("Llama-3.1-70B", "H100-SXM-80GB", 4, None),
    ("Llama-3.1-70B", "B200-SXM-180GB", 2, None),
    ("Llama-3.1-8B", "H100-SXM-80GB", 1, "fp8"),
    ("Qwen3-32B", "H100-SXM-80GB", 2, "fp8"),
    ("Llama-3.1-70B", "H200-SXM-141GB", 4, "fp8"),
    ("Mixtral-8x7B-v0.1", "H100-SXM-80GB", 2, None),
    ("Mixtral-8x22B-v0.1", "H200-SXM-141GB", 4, None),
    ("Qwen3-30B-A3B", "H100-SXM-80GB", 1, None),
    ("Qwen3-235B-A22B", "H100-SXM-80GB", 8, None),
    ("Qwen3-235B-A22B", "H200-SXM-141GB", 8, None),
    ("Qwen3-Coder-480B-A35B-Instruct", "H200-SXM-141GB", 8, None),
    ("Mixtral-8x7B-v0.1", "H100-SXM-80GB", 2, "fp8"),
    ("Qwen3-30B-A3B", "H100-SXM-80GB", 1, "fp8"),
    ("Qwen3-235B-A22B-FP8", "H200-SXM-141GB", 4, "fp8"),
    ("DeepSeek-V3", "H200-SXM-141GB", 8, "fp8"),
    ("Kimi-K2-Instruct", "H200-SXM-141GB", 8, "fp8"),
)
OWN = (
    ("gpt-oss-20b", "H100-SXM-80GB", 1, None, "openai--gpt-oss-20b"),
    ("gpt-oss-120b", "H100-SXM-80GB", 2, None, "openai--gpt-oss-120b"),
    ("gemma-4-26B-A4B", "H200-SXM-141GB", 1, None, "google--gemma-4-26B-A4B"),
    ("Llama-4-Scout-17B-16E", "H200-SXM-141GB", 4, None,
     "meta-llama--Llama-4-Scout-17B-16E-Instruct"),
    ("Qwen3.5-27B", "H200-SXM-141GB", 1, None, "Qwen--Qwen3.5-27B"),
    ("Qwen3.5-27B", "H100-SXM-80GB", 2, None, "Qwen--Qwen3.5-27B"),
    ("Qwen3.5-35B-A3B", "H200-SXM-141GB", 1, None, "Qwen--Qwen3.5-35B-A3B"),
    ("Qwen3.5-122B-A10B", "H200-SXM-141GB", 4, None, "Qwen--Qwen3.5-122B-A10B"),
    ("DeepSeek-V3.2", "H200-SXM-141GB", 8, "fp8", "deepseek-ai--DeepSeek-V3.2"),
    ("GLM-5", "H200-SXM-141GB", 8, "fp8", "zai-org--GLM-5"),
)  # fmt: skip
"""Models that the database knows by a ``config.json`` of its own: windows, linear and sparse
attention. Steps of one kind, since it has no model of mixed ones."""
STEPS = {
    **{f"decode of {n} after {k}": (0, n, k) for n, k in
       ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (32, 8192))},
    **{f"prefill of {c}": (c, 0, 0) for c in (500, 2000, 8000)},
    **{f"prefill of {c}, decode of {n}": (c, n, 1024) for c, n in ((500, 32), (2000, 64))},
}  # fmt: skip
"""Prefilled tokens, decoding sequences, context of each."""
SERVERS = {
    "deepseek-ai/DeepSeek-R1": "DeepSeek-R1",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B-FP8",
}


def pool(model, accelerator, share, weights, law):
    batching = ContinuousBatching(step_time=law, async_scheduling=True)
    return Pool(
        name="x", model=model, accelerator=accelerator, tensor_parallel=share,
        weight_dtype=weights, batching=batching,
    )  # fmt: skip


def against_kernels(case):
    """Yield the errors of the roofline in each step of a case."""
    place = pool(*case, RooflineStep())
    law, kernels = step_time(place), KernelDatabase(request(place, SiliconStep()))
    for step, (chunk, n, context) in STEPS.items():
        predicted = law.seconds(chunk, chunk * chunk / 2, n, n * context)
        yield "roofline", KERNELS, step, predicted / kernels.seconds(chunk, 0, n, context) - 1


def against_own_kernels(case, config):
    """Yield the errors of the roofline in each step of one kind, of a model of the database."""
    place, law = pool(*case, RooflineStep()), step_time(pool(*case, RooflineStep()))
    weights = "fp8_block" if place.weight_dtype == "fp8" else None
    asked = {
        "weight_dtype": weights, "moe_dtype": weights, "activation_dtype": None,
        "kv_cache_dtype": None,
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        text = CONFIGS.joinpath(f"{config}_config.json").read_text(encoding="utf-8")
        Path(folder, "config.json").write_text(text, encoding="utf-8")
        kernels = RustForwardPassPerfModel.from_native({
            "schema_version": 1, "model_name": folder, "system_name": SYSTEMS[case[1]],
            "backend": "vllm", "backend_version": "current", "tp_size": case[2],
            "moe_tp_size": case[2], "moe_ep_size": 1, "pp_size": 1, "kv_block_size": None, **asked,
        })  # fmt: skip
    for step, (chunk, n, context) in STEPS.items():
        if chunk and n:
            continue
        scheduled = {
            "num_prefill_requests": int(chunk > 0), "sum_prefill_tokens": chunk,
            "sum_prefill_kv_tokens": 0, "num_decode_requests": n,
            "sum_decode_kv_tokens": n * context,
        }  # fmt: skip
        measured = kernels.estimate_forward_pass_time_ms({"scheduled_requests": scheduled})
        predicted = law.seconds(chunk, chunk * chunk / 2, n, n * context) * 1e3
        yield "roofline", KERNELS, step, predicted / measured - 1


def against_server(row):
    """Yield the errors of both laws in the mean TPOT of a measured load."""
    mix = Mix(
        prompt_tokens=row.isl, output_tokens=row.osl, context_tokens=row.isl + row.osl / 2, size=0.0
    )
    name = f"{row.backend} {row.backend_version}"
    step = f"TPOT, {row.batch_size:g} in flight, {row.isl}/{row.osl}"
    for source, law in LAWS.items():
        place = pool(SERVERS[row.model_path], "H200-SXM-141GB", int(row.tp_size), "fp8", law)
        predicted = replica_model(place, mix).tpot_s(row.batch_size) * 1e3
        yield source, name, step, predicted / row.silicon_tpot_ms - 1


def servers():
    """Return the loads of SGLang on H200, tensor parallel alone, each once."""
    file = Path(aiconfigurator_core.__file__).with_name("systems") / "silicon_sample.csv"
    rows = pd.read_csv(file)
    rows = rows[
        rows["model_path"].isin(SERVERS)
        & (rows["system"] == "h200_sxm")
        & (rows["backend"] == "sglang")
        & (rows["mode"] == "agg")
        & (rows["moe_ep_size"].fillna(1) == 1)
        & (rows["attention_dp_size"].fillna(1) == 1)
    ]
    return rows.drop_duplicates(["model_path", "isl", "osl", "batch_size", "tp_size"])


def named(model, accelerator, share, weights):
    return f"{model} on {share} {accelerator.partition('-')[0]}{f', {weights}' if weights else ''}"


def main():
    table = []
    for case in CASES:
        family = family_of(pool(*case, RooflineStep()))
        table += [(family, named(*case), *row) for row in against_kernels(case)]
    for *case, config in OWN:
        family = family_of(pool(*case, RooflineStep()))
        table += [(family, named(*case), *row) for row in against_own_kernels(case, config)]
    for row in servers().itertuples():
        case = (SERVERS[row.model_path], "H200-SXM-141GB", int(row.tp_size), "fp8")
        family = family_of(pool(*case, RooflineStep()))
        table += [(family, named(*case), *found) for found in against_server(row)]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *((*row[:-1], f"{row[-1]:.3f}") for row in table)])


if __name__ == "__main__":
    main()
