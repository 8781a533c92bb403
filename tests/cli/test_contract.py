"""What scripts rely on: exit codes, one form of error on stderr, one JSON document on stdout."""

import json
import subprocess
import sys
import time

import nbformat
import pytest

from capplan import __version__
from capplan.cli import main
from capplan.cli.report import _parameter
from capplan.evidence import read_run

QUICK = ["--set", "requests=60"]


@pytest.fixture
def call(capsys):
    """Return a function that runs a command line and gives back code, stdout and stderr."""

    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def capplan(*words, **options):
    command = [sys.executable, "-m", "capplan", *map(str, words)]
    return subprocess.run(command, check=False, text=True, **options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "capplan: COMMAND: required, got nothing"),
        ("simulte x", "capplan: COMMAND: one of "),
        ("simulate", "capplan simulate: SCENARIO: required, got nothing"),
        (
            "simulate benchmark --sed 3",
            "capplan: an option or argument of this command, got '--sed",
        ),
        ("simulate benchmark --seed -1", "--seed: "),
        ("simulate benchmark --seed x", "--seed: a whole number, not negative, got 'x'"),
        ("simulate benchmark --set replicas", "--set: FIELD=VALUE, got 'replicas'"),
        ("simulate benchmark --set =3", "--set: FIELD=VALUE, got '=3'"),
        ("simulate benchmark --set replicas=two", "replicas: "),
        ("simulate benchmark --set replica=2", "replica: "),
        ("simulate benchmark --set replicas=[", "a YAML value ("),
        ("simulate benchmark --backend live", "--url: required with --backend live, got 'nothing'"),
        ("simulate benchmark --url http://x", "--backend live, for --url and --launch, got 'http"),
        ("size benchmark --backend live", "live backend is not available yet), got 'live'"),
        ("simulate benchmark --backend cloud", "--backend: simulated or live, got 'cloud'"),
        ("simulate nowhere.yaml", "nowhere.yaml: an existing scenario file or the name of a"),
        ("simulate benchmark --trace nowhere.csv", "nowhere.csv: "),
        ("sweep benchmark --out x", "capplan sweep: --vary: required, got nothing"),
        ("sweep benchmark --vary replicas=1", "capplan sweep: --out: required, got nothing"),
        ("sweep benchmark --vary replicas= --out x", "--vary replicas: at least one value, got ''"),
        ("sweep benchmark --vary replcas=1 --out x", "replcas: "),
        (
            "sweep benchmark --vary replicas=1 --vary replicas=2 --out x",
            "--vary: a field that is varied once, got 'replicas'",
        ),
        ("sweep benchmark --vary replicas=1,two --out x", "replicas: "),
        (
            "sweep benchmark --vary replicas=1 --jobs 0 --out x",
            "--jobs: a whole number of at least 1",
        ),
        ("size benchmark --pool gpu", "--pool: one of llm, got 'gpu'"),
        ("size benchmark --lose 3 --most 3", "--most: more than the 3 that are lost, got 3"),
        ("profile nowhere.csv", "nowhere.csv: "),
        ("profile sample --format xml", "--format: one of auto, azure"),
        ("report benchmark -p x", "-p: FIELD=VALUE, got 'x'"),
        ("report benchmark -p seed=x", "-p: a whole number, not negative, got 'x'"),
        ("data get nothing", "NAME: one of benchmark, "),
        ("data fetch", "capplan data: ACTION: one of list, get, got 'fetch'"),
    ],
)
def test_bad_input_is_told_in_one_line_and_exits_with_2(call, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*line.split())
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "a mapping of fields"),
        (b"name: x\nclasses: [", "valid YAML"),
        (b"- a\n- b\n", "a mapping of fields, got 'list'"),
        (b"\xff\xfe\x00", "a readable UTF-8 file"),
        (b"name: x\n", "classes: "),
        (b"name: x\nname: y\n", "valid YAML"),
    ],
)
def test_a_broken_scenario_file_is_named(call, tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_bytes(text)
    code, out, err = call("simulate", file, "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"{file}: ")
    assert message in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n",
        "this is\nnot a trace\n",
    ],
)
def test_a_broken_trace_is_named(call, tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    for words in (("profile", file), ("budget", "chat-service", "--trace", file)):
        code, out, err = call(*words, "--json")
        assert (code, out) == (2, ""), err
        assert err.startswith(f"{file}: ")


def test_json_is_one_document_and_nothing_else(call):
    code, out, err = call("simulate", "benchmark", *QUICK, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert {"run_id", "offered", "outcomes", "goodput_rps", "verdict", "by_class"} <= set(document)
    assert document["offered"] == 60
    assert document["verdict"]["outcome"] in {"pass", "fail", "blocked", "retest", "unknown"}


def test_people_get_tables(call):
    code, out, err = call("simulate", "benchmark", *QUICK)
    assert (code, err) == (0, "")
    assert "60 requests offered" in out
    assert "TTFT p99" in out
    assert "\nverdict: unknown" in out


def test_check_turns_the_verdict_into_the_exit_code(call):
    code, out, _ = call("simulate", "benchmark", *QUICK, "--json", "--check")
    assert json.loads(out)["verdict"]["outcome"] == "unknown"
    assert code == 1


def test_a_run_is_stored_and_kept(call, tmp_path):
    for _ in range(2):
        code, out, _ = call("simulate", "benchmark", *QUICK, "--json", "--out", tmp_path / "run")
        assert code == 0
    record = read_run(tmp_path / "run")
    assert record.run_id == json.loads(out)["run_id"]
    assert len(record.table("requests")) == 60
    code, _, err = call("simulate", "benchmark", *QUICK, "--seed", "1", "--out", tmp_path / "run")
    assert code == 2
    assert "an empty or new folder for run" in err


def test_the_same_seed_gives_the_same_run(call):
    runs = [
        json.loads(call("simulate", "benchmark", *QUICK, "--seed", "5", "--json")[1])
        for _ in range(2)
    ]
    for run in runs:
        del run["wall_s"], run["simulated_requests_per_wall_s"]
    assert runs[0] == runs[1]


def test_a_sweep_prints_its_points(call, tmp_path):
    words = ["sweep", "benchmark", *QUICK, "--vary", "pools.llm.batching.max_num_seqs=4,8"]
    code, out, _ = call(*words, "--out", tmp_path / "sweep", "--json")
    assert code == 0
    points = json.loads(out)["points"]
    assert [p["pools.llm.batching.max_num_seqs"] for p in points] == [4, 8]
    assert all(p["feasible"] for p in points)
    assert len(read_run(tmp_path / "sweep").table("sweep")) == 2


def test_size_prints_the_keys_of_its_contract_and_stores_its_points(call, tmp_path):
    law = "classes.benchmark.prompt_tokens={kind: lognormal, p50_tokens: 400, p95_tokens: 900}"
    words = ["size", "benchmark", "--set", "requests=1500", "--set", law, "--lose", "0"]
    words += ["--set", "classes.benchmark.promises.min_samples=100", "--most", "4"]
    code, out, _ = call(*words, "--out", tmp_path / "size", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"run_id", "capacity_table", "failure_margin", "rejected", "verdict"} <= set(document)
    assert [row["lose"]["count"] for row in document["failure_margin"]] == [0]
    stored = read_run(tmp_path / "size")
    assert stored.run_id == document["run_id"]
    assert stored.manifest["summary"] == document
    assert len(stored.table("points")) >= 1
    code, out, _ = call(*words)
    assert code == 0
    assert "stable load" in out


def test_size_about_no_loss_can_pass_its_check(call):
    law = "classes.benchmark.prompt_tokens={kind: lognormal, p50_tokens: 400, p95_tokens: 900}"
    words = ["size", "benchmark", "--set", "requests=1500", "--set", law, "--lost", "0"]
    words += ["--set", "classes.benchmark.promises.min_samples=100", "--most", "8", "--check"]
    words += ["--set", "requests=6000", "--set", "stages.peak_fraction=1.01"]
    words += ["--set", "stages.every_s=20", "--set", "stages.burst_s=5"]
    assert call(*words, "--set", "replicas=4")[0] == 0
    assert call(*words, "--set", "replicas=4", "--lose", "5")[0] == 1


def test_profile_prints_the_keys_of_its_contract(call):
    code, out, _ = call("profile", "sample", "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document["rows"]) >= {"read", "kept", "dropped"}
    for key in ("duration_s", "rate_rps", "gap_cv", "peak_to_mean_60s", "by_class", "periods"):
        assert key in document
    assert {"1", "60"} <= set(document["index_of_dispersion"])
    assert {"mean", "p50", "p95", "p99", "max"} <= set(document["prompt_tokens"])


def test_budget_writes_a_scenario_that_agrees_with_it(call, tmp_path):
    out = tmp_path / "mine.yaml"
    code, _, _ = call("budget", "chat-service", "--apply", out)
    assert code == 0
    assert "# " in out.read_text()
    code, document, _ = call("budget", out, "--json")
    rules = {reason["rule"] for reason in json.loads(document)["verdict"]["reasons"]}
    assert "differs_from_budget" not in rules


def test_budget_applies_the_fields_that_were_set(call, tmp_path):
    call("budget", "chat-service", "--set", "pools.llm.replicas=7", "--apply", tmp_path / "a.yaml")
    assert "replicas: 7" in (tmp_path / "a.yaml").read_text()


def test_a_budget_is_written_over_its_own_file_only_if_asked(call, tmp_path):
    file = tmp_path / "mine.yaml"
    call("budget", "chat-service", "--apply", file)
    before = file.read_text()
    changed = ("budget", file, "--set", "pools.llm.replicas=7", "--apply", file)
    code, _, err = call(*changed)
    assert code == 2
    assert str(file) in err
    assert file.read_text() == before
    code, _, _ = call(*changed, "--in-place")
    assert code == 0
    assert "replicas: 7" in file.read_text()


def test_schema_prints_a_json_schema(call):
    code, out, _ = call("schema")
    assert code == 0
    assert json.loads(out)["properties"]["pools"]


def test_data_lists_and_copies_what_is_bundled(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, out, _ = call("data", "list", "--json")
    assert {"benchmark", "chat-service", "sample"} <= {entry["name"] for entry in json.loads(out)}
    assert call("data", "get", "benchmark")[0] == 0
    assert (tmp_path / "benchmark.yaml").exists()
    code, _, err = call("data", "get", "benchmark")
    assert code == 2
    assert "a file that is not there yet" in err


def test_a_folder_that_can_not_be_written_is_a_failure(call):
    code, out, err = call("simulate", "benchmark", *QUICK, "--json", "--out", "/proc/nowhere/run")
    assert (code, out) == (3, "")
    assert err.startswith("/proc/nowhere")
    assert err.count("\n") == 1


def test_a_file_in_place_of_the_run_folder_is_bad_input(call, tmp_path):
    (tmp_path / "run").write_text("")
    code, _, err = call("simulate", "benchmark", *QUICK, "--out", tmp_path / "run")
    assert code == 2
    assert "a folder, or a name for a new one, got 'a file'" in err


def test_an_unexpected_error_is_one_line_with_its_kind(call, monkeypatch):
    def broken(args):
        msg = "all wrong\nin two lines"
        raise RuntimeError(msg)

    monkeypatch.setattr("capplan.cli.reference._schema", broken)
    assert call("schema") == (3, "", "RuntimeError: all wrong\n")
    assert "Traceback" in call("--traceback", "schema")[2]


def test_ctrl_c_is_told_without_a_traceback(call, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("capplan.cli.reference._schema", interrupted)
    assert call("schema") == (130, "", "interrupted\n")


def test_a_terminated_command_clears_away_what_is_half_done(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from capplan.cli import main, reference\n"
        "from capplan.evidence.folders import new_folder\n"
        "def slow(args):\n"
        "    with new_folder(Path(sys.argv[1]) / 'run'):\n"
        "        print('here', flush=True)\n"
        "        time.sleep(60)\n"
        "reference._schema = slow\n"
        "sys.exit(main(['schema']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout.readline() == "here\n"
        assert len(list(tmp_path.iterdir())) == 1
        running.terminate()
        assert running.stderr.read() == "terminated\n"
    assert running.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_behind_stdout_is_a_failure():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = capplan("schema", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert done.stderr == "output: No space left on device\n"


def test_a_reader_that_goes_away_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "capplan", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as writer:
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode in {0, 141}


def test_version_and_help_are_there():
    assert capplan("--version", capture_output=True).stdout == f"capplan {__version__}\n"
    assert "Exit codes" in capplan("--help", capture_output=True).stdout


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from capplan.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'pydantic', 'altair', 'papermill', 'simpy'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 4


NOTEBOOK = {
    "parameters": (
        "seed: int = 0  # seed\n"
        "bad: bool = False  # fail on purpose\n"
        "limit_s: float = 1.0  # promise, s"
    ),
    "fails": "assert not bad, 'on purpose'",
    "leave": (
        "from capplan.evidence import artefact\n\n"
        "verdict = {'outcome': 'pass' if limit_s > 1 else 'fail', 'reasons': []}\n"
        "artefact('.', 'conclusion.json', {'verdict': verdict, 'figures': {'seed': seed}})"
    ),
}


@pytest.fixture
def small_workbook(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("notebooks")
    cells = [
        nbformat.v4.new_code_cell(code, id=name, metadata={"tags": [name]})
        for name, code in NOTEBOOK.items()
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / "1.ipynb")
    monkeypatch.setattr("capplan.report.build.notebooks_path", lambda: folder)


@pytest.mark.slow
@pytest.mark.usefixtures("small_workbook")
@pytest.mark.parametrize(("limit_s", "code"), [("2", 0), ("0.5", 1)])
def test_a_report_is_made_from_the_command_line(call, tmp_path, limit_s, code):
    out = tmp_path / "report"
    words = ["report", "benchmark", "--out", out, "-p", "seed=4", "-p", f"limit_s={limit_s}"]
    found, printed, err = call(*words, "--json", "--check")
    document = json.loads(printed)
    assert found == code
    assert document["verdict"]["outcome"] == ("fail" if code else "pass")
    assert document["index"] == str(out / "index.html")
    compared, length = document["assumed"]  # drawn from laws, and no page said more
    assert "not compared with a server" in compared
    assert "max_model_len" in length
    assert json.loads((out / "run" / "conclusion.json").read_text())["figures"] == {"seed": 4}
    assert err.startswith("[1/1] 1 … ")


@pytest.mark.slow
@pytest.mark.usefixtures("small_workbook")
def test_an_unknown_parameter_exits_with_2_before_anything_runs(call, tmp_path):
    words = ["report", "benchmark", "--out", tmp_path / "report"]
    code, out, err = call(*words, "-p", "limit=3")
    assert (code, out, err) == (2, "", "-p: one of bad, limit_s, got 'limit'\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_workbook")
def test_a_failing_notebook_exits_with_3_and_one_line_that_says_where(call, tmp_path):
    words = ["report", "benchmark", "--out", tmp_path / "report", "-p", "bad=true"]
    code, out, err = call(*words, "--json")
    assert (code, out) == (3, "")
    last = err.splitlines()[-1]
    assert last.startswith("1.ipynb: cell 2 (fails): AssertionError: on purpose (half-executed: ")
    assert [path.name for path in tmp_path.iterdir()] == ["report.failed"]


def test_the_schema_describes_its_fields(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    fields = schema["$defs"]["Promises"]["properties"]
    assert "leaves this long after" in fields["deadline_s"]["description"]
    assert schema["properties"]["warmup_s"]["description"]


def test_pages_take_the_number_lost_by_both_names():
    assert _parameter("lost=2") == _parameter("lose=2") == ("lose", "2")
    assert _parameter("seed=4") == ("seed", "4")
