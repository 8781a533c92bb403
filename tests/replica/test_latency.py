"""Step times against measured kernels and servers, and against arithmetic."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.catalog import model
from capplan.replica.capacity import Mix, batch_rate_rps, replica_model
from capplan.replica.compiled.step_laws import LinearStepTime, of_mix
from capplan.replica.kernel_tables import find_profile, kernel_tables
from capplan.replica.roofline import active_parameters
from capplan.replica.step_time import batch_seconds, implied, step_time
from capplan.scenario.batching import ContinuousBatching, DynamicBatching, ServiceLaw
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import LinearStep, RooflineStep, TablesStep
from capplan.schema import DataError

UNLINKED = str(Path(__file__).parent / "unlinked.yaml")
LINEAR = LinearStep(
    base_s=0.004, per_prefill_token_s=1e-5, per_sequence_s=1e-5, per_context_token_s=1e-8
)


def pool(
    name="Llama-3.1-8B", accelerator="H100", tensor_parallel=1, law=None, stages=1, **batching
):
    return Pool(
        name="llm",
        model=name,
        accelerator=accelerator,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=stages,
        batching=ContinuousBatching(step_time=law or RooflineStep(), **batching),
    )


def decode(sequences, context):
    return (0, 0, sequences, sequences * context)


def prefill(tokens):
    return (tokens, tokens**2 / 2, 0, 0)


MEASURED = [
    # Kernels of aiconfigurator-core 0.12 with vLLM 0.24 (0.14 to 0.22 where older), ms.
    ("Llama-3.1-8B", "H100", 1, decode(1, 1024), 6.18),
    ("Llama-3.1-8B", "H100", 1, decode(32, 1024), 8.32),
    ("Llama-3.1-8B", "H100", 1, decode(128, 1024), 12.84),
    ("Llama-3.1-8B", "H100", 1, decode(32, 8192), 17.74),
    ("Llama-3.1-8B", "H100", 1, prefill(2048), 43.5),
    ("Llama-3.1-8B", "H100", 1, prefill(8192), 199.7),
    ("Llama-3.1-8B", "H200", 1, decode(32, 1024), 6.3),
    ("Llama-3.1-8B", "B200", 1, decode(32, 1024), 4.2),
    ("Llama-3.1-8B", "A100", 1, decode(32, 1024), 15.58),
    ("Llama-3.1-8B", "A100", 1, prefill(2048), 125.2),
    ("Llama-3.1-8B", "L40S", 1, decode(32, 1024), 31.42),
    ("Llama-2-7b-hf", "H100", 1, decode(32, 1024), 11.79),
    ("Llama-2-7b-hf", "H100", 2, decode(32, 1024), 6.96),
    # Kernels of LLMServingSim's profile with vLLM 0.19, ms.
    ("Llama-3.1-8B", "RTX 4090", 1, decode(1, 1000), 16.80),
    ("Llama-3.1-8B", "RTX 4090", 1, decode(64, 600), 25.55),
    ("Llama-3.1-8B", "RTX 4090", 1, decode(128, 300), 27.54),
    ("Llama-3.1-8B", "RTX 4090", 1, prefill(2048), 193.0),
]


@pytest.mark.parametrize(("name", "accelerator", "tp", "step", "measured_ms"), MEASURED)
def test_roofline_is_within_a_seventh_of_measured_kernels(name, accelerator, tp, step, measured_ms):
    seconds = step_time(pool(name, accelerator, tp, async_scheduling=True)).seconds(*step)
    assert seconds * 1e3 == pytest.approx(measured_ms, rel=0.14)


KINDS_OF_LAYERS = {
    # Likewise, ms: decode of 16 x 1,024, 64 x 8,192 and 16 x 32,768 tokens, prefill of 8,192.
    ("gpt-oss-20b", "H100", 1): (6.47, 11.6, 10.48, 109.1),
    ("gpt-oss-120b", "H100", 2): (7.87, 16.27, 10.94, 124.5),
    ("Qwen3.5-27B", "H200", 1): (17.14, 28.79, 24.74, 644.8),
    ("Qwen3.5-35B-A3B", "H200", 1): (9.18, 19.33, 11.57, 112.9),
    ("gemma-4-26B-A4B", "H200", 1): (9.95, 20.54, 12.65, 122.5),
    ("Llama-4-Scout-17B-16E", "H200", 4): (11.05, 21.67, 14.7, 137.1),
}
STEPS = (decode(16, 1024), decode(64, 8192), decode(16, 32768), prefill(8192))


@pytest.mark.parametrize("key", KINDS_OF_LAYERS)
def test_windows_and_linear_attention_are_within_a_quarter_of_measured_kernels(key):
    steps = step_time(pool(*key, async_scheduling=True))
    found = [steps.seconds(*step) * 1e3 for step in STEPS]
    assert found == pytest.approx(KINDS_OF_LAYERS[key], rel=0.25)


def test_time_per_token_is_within_a_tenth_of_a_measured_server(shared_data):
    import pandas as pd

    folder = shared_data / "measured" / "vllm-h100-llama-2-7b-tp1-codegen"
    rows = pd.read_csv(folder / "requests.csv.gz")
    server = json.loads((folder / "server.json").read_text(encoding="utf-8"))
    rows = rows[(rows["outcome"] == "succeeded") & (rows["output_tokens"] > 1)]
    measured = ((rows["e2e_s"] - rows["ttft_s"]) / (rows["output_tokens"] - 1)).groupby(
        rows["intended_start_s"] > 600
    )
    for late, tpot_s in measured.median().items():
        stage = rows[(rows["intended_start_s"] > 600) == late]
        span_s = stage["intended_start_s"].max() - stage["intended_start_s"].min()
        output = stage["output_tokens"].mean()
        mix = Mix(
            prompt_tokens=stage["prompt_tokens"].mean(),
            output_tokens=output,
            context_tokens=stage["prompt_tokens"].mean() + output / 2,
            size=0.0,
        )
        place = pool(
            server["model"], server["accelerator"], max_num_seqs=128, async_scheduling=True
        )
        mix = replace(mix, prompt_tokens=1.0)  # The prompts were sent before: nothing to prefill.
        one = replica_model(place, mix)
        predicted = one.tpot_s(one.running_at(len(stage) / span_s))
        assert predicted == pytest.approx(tpot_s, rel=0.1)


def test_a_full_replica_is_within_an_eighth_of_a_measured_one(shared_data):
    """The RTX 4090 run is overloaded: as many sequences run as its KV blocks hold."""
    import pandas as pd

    folder = shared_data / "measured" / "vllm-rtx4090-llama-3.1-8b"
    rows = pd.read_csv(folder / "requests.csv.gz")
    prompt, output = rows["prompt_tokens"].mean(), rows["output_tokens"].mean()
    mix = Mix(
        prompt_tokens=prompt, output_tokens=output, context_tokens=prompt + output / 2, size=0.0
    )
    one = replica_model(pool("Llama-3.1-8B", "RTX 4090", async_scheduling=True), mix)
    measured = ((rows["e2e_s"] - rows["ttft_s"]) / (rows["output_tokens"] - 1)).median()
    assert one.tpot_s(one.most_running()) == pytest.approx(measured, rel=0.125)


def test_a_linear_step_is_its_formula():
    steps = step_time(pool(law=LINEAR))
    assert isinstance(steps, LinearStepTime)
    assert steps.seconds(100, 12345, 10, 1000) == pytest.approx(0.004 + 1e-3 + 1e-4 + 1e-5)


def test_a_roofline_with_perfect_efficiency_is_the_datasheets_bound():
    ideal = RooflineStep(
        compute_efficiency=1.0,
        memory_efficiency=1.0,
        kernel_s=0.0,
        overhead_s=0.0,
        per_sequence_s=0.0,
    )
    steps = step_time(pool(law=ideal))
    weights = 2 * (8030261248 - 128256 * 4096)
    assert steps.seconds(*decode(1, 0)) == pytest.approx(weights / 3.35e12, rel=0.01)
    compute = 2 * active_parameters(model("Llama-3.1-8B")) * 4096 / 989.4e12
    assert steps.seconds(4096, 0, 0, 0) > compute


def test_a_step_of_experts_reads_more_of_them_with_more_tokens():
    steps = step_time(pool("Qwen3-30B-A3B", "H100"))
    one, many = steps.seconds(*decode(1, 100)), steps.seconds(*decode(64, 100))
    dense = step_time(pool("Qwen3-32B", "H100", 2))
    assert many > 2.5 * one
    assert dense.seconds(*decode(64, 100)) < 1.5 * dense.seconds(*decode(1, 100))


def test_a_step_reads_the_experts_that_its_tokens_choose():
    steps = step_time(pool("Qwen3-30B-A3B", "H100"))
    all_bytes = 48 * 128 * 3 * 2048 * 768 * 2
    for tokens in (1, 2, 16, 64):
        # Drawn one token at a time: the chance that an expert is new to it, over all experts.
        chosen, expected = 0.0, 0.0
        for _ in range(tokens):
            chosen += (128 - chosen) * 8 / 128
        expected = chosen / 128 * all_bytes / (3.35e12 * 0.87)
        alone = replace(steps, experts_s=0.0).seconds(*decode(tokens, 0))
        assert steps.seconds(*decode(tokens, 0)) - alone == pytest.approx(expected, rel=0.02)


def test_what_is_not_divided_takes_as_long_on_every_accelerator():
    one, eight = (step_time(pool("DeepSeek-V3", "H200", n)) for n in (1, 8))
    down = 61 * 7168 * (1536 + 512 + 64) + 58 * 7168 * 256
    dense = active_parameters(model("DeepSeek-V3")) - 58 * 8 * 3 * 7168 * 2048
    held = (dense - down) / 8 + down
    assert eight.weights_s / one.weights_s == pytest.approx(held / dense)
    llama, split = (step_time(pool("Llama-3.1-8B", "H100", n)) for n in (1, 8))
    norms = 8 * 4096 * 32 * 2 / (3.35e12 * 0.87)
    assert split.moved_per_token_s > norms > llama.moved_per_token_s / 8


DEEPSEEK_ON_SGLANG = [
    # Requests in flight, ms a token: DeepSeek-R1, SGLang 0.5.9, 8 H200, 1,024 tokens in and out.
    # Measured 2026-03-25; aiconfigurator-core 0.12, systems/silicon_sample.csv.
    (4, 10.29), (8, 12.47), (16, 16.63), (32, 23.31), (64, 32.99),
]  # fmt: skip


@pytest.mark.parametrize(("running", "tpot_ms"), DEEPSEEK_ON_SGLANG)
def test_latent_attention_and_experts_are_within_an_eighth_of_a_measured_server(running, tpot_ms):
    mix = Mix(prompt_tokens=1024, output_tokens=1024, context_tokens=1536, size=0)
    one = replica_model(pool("DeepSeek-R1", "H200", 8, async_scheduling=True), mix)
    assert one.tpot_s(running) * 1e3 == pytest.approx(tpot_ms, rel=0.125)


def test_decodes_beside_a_prefill_attend_longer_as_measured_kernels_do(shared_data):
    place = pool(accelerator="RTX 4090")
    profile = find_profile(shared_data / "profiles", place)
    mix = kernel_tables(place, TablesStep(path=str(profile))).mix
    steps = step_time(place)
    for chunk in (64, 512):
        for n in (8, 16, 32):
            alone, both = of_mix(mix, 0, 0, n, 1024), of_mix(mix, chunk, 0, n, 1024)
            longer = (both - of_mix(mix, chunk, 0, 0, 0)) / alone
            assert 1 + steps.mixed_fraction == pytest.approx(longer, rel=0.25)
    assert step_time(pool("Llama-2-7b-hf")).mixed_fraction == 0
    assert step_time(pool("DeepSeek-V3", "H200", 8)).mixed_fraction == 0


def test_a_sliding_window_bounds_the_cost_of_context():
    sliding, full = step_time(pool("Mistral-7B-v0.1")), step_time(pool("Mistral-7B-v0.3"))
    assert sliding.seconds(*decode(8, 4000)) == pytest.approx(
        full.seconds(*decode(8, 4000)), rel=0.01
    )
    assert sliding.seconds(*decode(8, 30_000)) == sliding.seconds(*decode(8, 4096))
    assert full.seconds(*decode(8, 30_000)) > 1.5 * sliding.seconds(*decode(8, 30_000))


@pytest.mark.parametrize(("prompt", "before"), [(100, 0), (1500, 0), (8000, 0), (512, 6000)])
def test_prefill_under_a_window_attends_to_what_each_token_sees(prompt, before):
    steps = step_time(pool("Mistral-7B-v0.1"))
    seen = sum(min(before + i, 4096) for i in range(prompt))
    bare = steps.seconds(prompt, 0, 0, 0)
    found = steps.seconds(prompt, prompt * (before + prompt / 2), 0, 0) - bare
    assert found == pytest.approx(seen * steps.per_window_pair_s, rel=0.2 if before else 0.02)


def test_linear_attention_costs_a_state_per_sequence_and_little_context():
    hybrid, full = (step_time(pool(name)) for name in ("Qwen3.5-27B", "Qwen3-32B"))
    grows = [steps.seconds(*decode(8, 30_000)) - steps.seconds(*decode(8, 1)) for steps in
             (hybrid, full)]  # fmt: skip
    assert grows[0] == pytest.approx(grows[1] / 4, rel=0.01), "65,536 against 262,144 bytes a token"
    state = 2 * 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2)
    assert hybrid.per_sequence_s > state / 3.35e12


def test_sparse_attention_reads_its_choice_and_the_keys_of_the_indexer():
    sparse, dense = (step_time(pool(f"DeepSeek-V3{name}", "H200", 8)) for name in (".2", ""))
    assert sparse.seconds(*decode(8, 2000)) > dense.seconds(*decode(8, 2000))
    assert sparse.seconds(*decode(8, 60_000)) < dense.seconds(*decode(8, 60_000))


def test_what_a_law_implies_counts_what_context_adds_beyond_the_window():
    for name, accelerator in (("gemma-3-27b-pt", "H100"), ("gpt-oss-20b", "H100")):
        place = pool(name, accelerator)
        found = implied(place, step_time(place))
        assert found.kv_bandwidth_fraction == pytest.approx(0.9, abs=0.05), "as the law assumes"
        assert found.plausible


def test_tensor_parallel_divides_the_work_and_adds_the_all_reduce():
    one, four = step_time(pool()), step_time(pool(tensor_parallel=4))
    work = prefill(8192)
    assert one.seconds(*work) / 4 < four.seconds(*work) < one.seconds(*work) / 2
    slow = step_time(pool(accelerator="RTX 4090", tensor_parallel=4))
    assert slow.seconds(*work) > step_time(pool(accelerator="RTX 4090")).seconds(*work) / 4 * 1.5


def test_work_of_the_host_is_added_or_hidden_behind_the_accelerator():
    law = RooflineStep(overhead_s=1e-3, per_sequence_s=1e-5)
    bare = RooflineStep(overhead_s=0.0, per_sequence_s=0.0)
    work = decode(32, 1024)
    busy = step_time(pool(law=bare)).seconds(*work)
    assert step_time(pool(law=law)).seconds(*work) == pytest.approx(busy + 1.32e-3)
    assert step_time(pool(law=law, async_scheduling=True)).seconds(*work) == busy
    slow = RooflineStep(overhead_s=0.1, per_sequence_s=1e-5)
    assert step_time(pool(law=slow, async_scheduling=True)).seconds(*work) == pytest.approx(0.10032)


def test_a_pipeline_deals_the_sequences_and_waits_for_its_fullest_stage():
    quiet = RooflineStep(overhead_s=0.0, per_sequence_s=0.0)
    one, four = step_time(pool(law=quiet)), step_time(pool(law=quiet, stages=4))
    hop = 3 * 1e-5
    # 64 sequences in four micro-batches of 16: a round is four stages of a quarter of the layers.
    round_s = four.seconds(*decode(64, 1000))
    assert round_s == pytest.approx(one.seconds(*decode(16, 1000)) + hop, rel=0.01)
    # One prompt is in one micro-batch; the others wait for it.
    alone = four.seconds(*prefill(2048))
    assert alone == pytest.approx(one.seconds(*prefill(2048)) + hop, rel=0.01)
    assert four.seconds(2048, 4 * 512**2 / 2, 0, 0) < 0.4 * alone
    with pytest.raises(DataError, match="pipeline parallelism"):
        step_time(pool(accelerator=UNLINKED, stages=2))


def test_types_change_weights_and_rate():
    eight = step_time(pool().model_copy(update={"weight_dtype": "fp8"}))
    sixteen = step_time(pool())
    assert eight.seconds(*decode(1, 100)) < 0.8 * sixteen.seconds(*decode(1, 100))
    with pytest.raises(DataError, match="known rate of fp8"):
        step_time(pool(accelerator="A100").model_copy(update={"weight_dtype": "fp8"}))


def test_what_cannot_be_computed_is_told_apart():
    dynamic = Pool(name="p", batching=DynamicBatching(service=ServiceLaw(base_s=1)))
    with pytest.raises(ValueError, match="continuous"):
        step_time(dynamic)
    with pytest.raises(DataError, match="near"):
        step_time(pool("Llama-9"))
    with pytest.raises(DataError, match="a model"):
        step_time(Pool(name="p", accelerator="H100", batching=ContinuousBatching()))


COUNT = st.integers(0, 2000)


@given(prefills=COUNT, sequences=COUNT, context=st.integers(0, 4000), more=st.integers(1, 500))
def test_more_work_never_takes_less_time(prefills, sequences, context, more):
    for name, n in (("Llama-3.1-8B", 1), ("Qwen3-30B-A3B", 1), ("gemma-2-9b", 2)):
        seconds = step_time(pool(name, tensor_parallel=n)).seconds
        base = (prefills, prefills**2 / 2, sequences, sequences * context)
        for i in range(4):
            larger = [value + more * (i == j) for j, value in enumerate(base)]
            assert seconds(*larger) >= seconds(*base)


def test_capacity_is_the_token_rate_of_the_step_law_at_full_batch():
    mix = Mix(prompt_tokens=512, output_tokens=128, context_tokens=576, size=0)
    one = replica_model(pool(law=LINEAR, kv_blocks=100_000, max_num_seqs=64), mix)
    n = one.most_running()
    assert n == 64
    step = 0.004 + 1e-5 * n + 1e-8 * n * 576 + n / 128 * 512 * 1e-5
    assert one.tpot_s(n) == pytest.approx(step)
    assert one.rate_rps(n) * 128 == pytest.approx(n / step)
    assert one.running_at(one.rate_rps(n)) == n
    half = one.running_at(one.rate_rps(n) / 2)
    assert one.rate_rps(half) == pytest.approx(one.rate_rps(n) / 2, rel=1e-6)


def test_kv_blocks_bound_the_sequences_that_run():
    mix = Mix(prompt_tokens=512, output_tokens=128, context_tokens=576, size=0)
    assert replica_model(pool(law=LINEAR, kv_blocks=360), mix).most_running() == 10
    with pytest.raises(DataError, match="KV blocks for one mean request"):
        replica_model(pool(law=LINEAR, kv_blocks=10), mix)


def test_a_long_prompt_is_prefilled_in_steps_of_the_token_budget():
    mix = Mix(prompt_tokens=512, output_tokens=128, context_tokens=576, size=0)
    one = replica_model(pool(law=LINEAR, kv_blocks=100_000, max_num_batched_tokens=1000), mix)
    assert one.prefill_s(2500, 0) == pytest.approx(3 * 0.004 + 2500e-5)
    assert one.prefill_s(1000, 0) == pytest.approx(0.004 + 1000e-5)


def test_a_batch_takes_what_its_service_law_says():
    law = ServiceLaw(base_s=0.01, per_item_s=0.002, per_size_s=0.001)
    assert batch_seconds(law, 5, 10) == pytest.approx(0.03)
    batching = DynamicBatching(max_batch_size=5, service=law)
    assert batch_rate_rps(batching, 2) == pytest.approx(5 / 0.03)
