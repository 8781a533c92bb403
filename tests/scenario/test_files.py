"""Scenario files: what is read, varied, written; and the one error for what breaks a rule."""

from datetime import date

import pytest

from capplan.scenario.files import (
    load_scenario,
    scenario_hash,
    validate,
    with_values,
    write_scenario,
)
from capplan.scenario.yaml_text import parse_value
from capplan.schema import DataError


@pytest.fixture(scope="module")
def benchmark_scenario():
    return load_scenario("benchmark")


def test_a_written_scenario_reads_back_equal(benchmark_scenario, tmp_path):
    path = tmp_path / "copy.yaml"
    path.write_text(write_scenario(benchmark_scenario))
    assert load_scenario(path) == benchmark_scenario
    assert scenario_hash(load_scenario(path)) == scenario_hash(benchmark_scenario)


def test_replicas_is_a_shorthand_for_the_primary_pool(benchmark_scenario):
    assert with_values(benchmark_scenario, {"replicas": 3}).pool().replicas == 3


def test_values_are_set_by_name_and_by_index(benchmark_scenario):
    by_name = with_values(benchmark_scenario, {"pools.llm.batching.max_num_seqs": 8})
    by_index = with_values(benchmark_scenario, {"pools.0.batching.max_num_seqs": 8})
    assert by_name == by_index
    assert by_name.pool().batching.max_num_seqs == 8


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pools.llm.batching.max_num_seqs": 0}, "pools.llm.batching.max_num_seqs: input should"),
        ({"pools.x.replicas": 1}, "pools.x.replicas: one of llm or a number below 1, got 'x'"),
        (
            {"gatewy": 1},
            "gatewy: unknown field (capplan schema lists the known ones; did you mean gateway?)",
        ),
        ({"replicas": date(2026, 1, 1)}, "replicas: input should be a valid integer, got"),
        ({"faults": [{"kind": "hang"}]}, "faults.0: at_s (once) or mtbf_s (repeatedly), got"),
        (
            {"traffic.shape": {"kind": "x"}},
            "traffic.shape: 'kind' one of 'replay', 'closed', 'steady'",
        ),
        ({"traffic.shape": {}}, "traffic.shape: a field 'kind', got {}"),
        ({"replicas": "three"}, "pools.llm.replicas: input should be a valid integer, got 'three'"),
        ({"traffic.shape": {"kind": "replay"}}, "shape replay needs traffic.trace"),
        ({"default_class": "x"}, "default_class: one of benchmark, got 'x'"),
        ({"pools": 3}, "pools: input should be a valid array, got 3"),
        ({"pools": []}, "pools"),
        ({"gateway.overhead_s": float("nan")}, "gateway.overhead_s"),
        ({"classes.benchmark.promises.deadline_s": -1}, "classes.benchmark.promises.deadline_s"),
    ],
)
def test_an_error_names_scenario_field_rule_and_value(benchmark_scenario, values, said):
    with pytest.raises(DataError) as caught:
        with_values(benchmark_scenario, values)
    assert str(caught.value).startswith("benchmark: ")
    assert said in str(caught.value)


def test_a_rule_that_says_what_it_got_is_not_followed_by_the_whole_part(benchmark_scenario):
    hedge = {"after_s": 1.0, "after_quantile": 0.95}
    with pytest.raises(DataError) as caught:
        with_values(benchmark_scenario, {"classes.benchmark.hedge": hedge})
    assert str(caught.value).endswith("exactly one of after_s and after_quantile, got 1.0 and 0.95")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a mapping of fields"),
        ("- 1", "a mapping of fields"),
        ("name: [", "valid YAML"),
        ("name: a\nname: b", "valid YAML"),
        ("name: only", "field required"),
        ("\x00", "valid YAML"),
    ],
)
def test_a_damaged_file_gives_one_clear_error(tmp_path, text, said):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=said) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="UTF-8"):
        load_scenario(path)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(DataError, match="an existing scenario file"):
        load_scenario(tmp_path / "none.yaml")


def test_a_relative_trace_counts_from_the_files_folder(benchmark_scenario, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(write_scenario(with_values(benchmark_scenario, {"traffic.trace": "t.csv"})))
    assert load_scenario(path).traffic.trace == str(tmp_path / "t.csv")


def test_data_that_is_no_json_is_an_error():
    with pytest.raises(DataError):
        validate({"name": object()}, where="memory")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [*x]\n", "at most 100,000 values"),
        ("[x]: 1\n", "keys must be str"),
        ("[" * 5000, "valid YAML"),
        ("when: 2024-99-99\n", "valid YAML"),
        (
            "a: &b0 [x, x]\n" + "".join(f"b{i}: &b{i + 1} [*b{i}, *b{i}]\n" for i in range(30)),
            "at most",
        ),
    ],
)
def test_yaml_that_would_hang_or_break_the_reader_is_told_in_one_error(text, said, tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        load_scenario(path)


def test_a_message_repeats_only_the_start_of_a_long_value():
    with pytest.raises(DataError) as caught:
        parse_value("[" * 5000)
    assert len(str(caught.value)) < 300


def test_an_occasion_is_written_out_as_its_shape(benchmark_scenario):
    shape = {"kind": "occasion", "occasion": "release", "base_rps": 5, "peak_rps": 20}
    release = with_values(benchmark_scenario, {"traffic.shape": shape})
    kinds = [part.shape.kind for part in release.traffic.shape.parts]
    assert kinds == ["steady", "step", "spike", "wave"]
    assert with_values(release, {}) == release


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"occasion": "party", "base_rps": 5, "peak_rps": 20}, "got 'party'"),
        ({"occasion": "promotion", "base_rps": 5, "peak_rps": 4}, "peak_rps must be above"),
        ({"occasion": "promotion", "base_rps": 5}, "base_rps, peak_rps and"),
        ({"occasion": "promotion", "base_rps": "5", "peak_rps": 9}, "base_rps, peak_rps and"),
        ({"occasion": "promotion", "base_rps": -5, "peak_rps": 9}, "base_rps, peak_rps and"),
    ],
)
def test_an_occasion_that_makes_no_sense_names_the_field(benchmark_scenario, shape, said):
    with pytest.raises(DataError, match=r"traffic\.shape: ") as caught:
        with_values(benchmark_scenario, {"traffic.shape": {"kind": "occasion", **shape}})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "at", "begun"),
    [
        ("name: x\nclasses: [a, b\npools: 3\n", "line 3, column 6", "line 2, column 10"),
        ("classes:\n  - name: a\n   owner: b\n", "line 3, column 4", "line 2, column 3"),
        ("name: a\nname: b\n", "line 2, column 1", "line 1, column 1"),
    ],
)
def test_broken_yaml_names_the_place_and_where_the_part_began(tmp_path, text, at, begun):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        load_scenario(file)
    assert caught.value.field == at
    assert begun in caught.value.rule
    assert "unicode string" not in caught.value.rule


def test_milliseconds_under_the_name_of_seconds_are_no_promise():
    promised = {"classes.benchmark.promises": {"tpot_s": 50.0}}
    with pytest.raises(DataError, match="tpot_s: at most 5 s"):
        load_scenario("benchmark", values=promised)
    promised["classes.benchmark.promises"]["tpot_s"] = 0.05
    assert load_scenario("benchmark", values=promised).request_class().promises.tpot_s == 0.05


@pytest.mark.parametrize("text", ["010", "-007", "00"])
def test_a_number_with_leading_zeros_is_refused_in_files_and_options(tmp_path, text):
    file = tmp_path / "s.yaml"
    file.write_text(f"name: x\npools:\n  - replicas: {text}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"s\.yaml: line 3, column 15: .*begins with 0"):
        load_scenario(file)
    with pytest.raises(DataError, match="begins with 0"):
        parse_value(text)
    assert [parse_value(one) for one in ("0", "10", "0.5", "'010'")] == [0, 10, 0.5, "010"]


def test_an_unknown_field_may_be_one_that_its_part_lacks():
    shape = {"kind": "steady", "rps": 5.0}
    with pytest.raises(DataError, match=r"shape\.rps: unknown field .*did you mean rate_rps\?"):
        load_scenario("benchmark", values={"traffic.shape": shape})


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("promises.ttft_s", 2000.0, "at most 600 s"),
        ("promises.deadline_s", 20_000.0, "at most 3600 s for a class that streams"),
        ("promises.e2e_s", 15_000.0, "e2e_s: at most 60 s"),
        ("promises.availability_fraction", 0.01, "greater than or equal to 0.5"),
        ("promises.error_rate_fraction", 0.99, "less than or equal to 0.5"),
        ("retry", {"max_attempts": 3, "backoff_s": 500.0, "max_backoff_s": 500.0}, "caller leaves"),
    ],
)
def test_a_value_of_another_unit_or_of_the_contrary_is_refused(field, value, rule):
    with pytest.raises(DataError, match=rule):
        load_scenario("benchmark", values={f"classes.benchmark.{field}": value})


def test_work_that_does_not_stream_may_take_a_day():
    values = {"streaming": False, "promises.deadline_s": 86_400.0}
    changes = {f"classes.benchmark.{field}": value for field, value in values.items()}
    promised = load_scenario("benchmark", values=changes).request_class().promises
    assert promised.deadline_s == 86_400.0


@pytest.mark.parametrize(
    ("promises", "field"),
    [
        ({"ttft_s": 500.0, "deadline_s": 60.0}, "ttft_s"),
        ({"ttft_s": 500.0, "e2e_s": 30.0}, "ttft_s"),
        ({"e2e_s": 3_000.0, "deadline_s": 60.0}, "e2e_s"),
        ({"tpot_s": 4.0, "deadline_s": 2.0}, "tpot_s"),
    ],
)
def test_a_promise_that_cannot_break_before_the_caller_leaves_is_refused(promises, field):
    with pytest.raises(DataError, match=f"{field}: at most"):
        load_scenario("benchmark", values={"classes.benchmark.promises": promises})
