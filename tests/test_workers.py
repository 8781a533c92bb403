"""A script without main guard may ask for several processes: they do not run it again."""

import subprocess
import sys

SCRIPT = """
print("started")
import capplan as cp

scenario = cp.load_scenario("benchmark", values={"requests": 60})
found = {jobs: cp.sweep(scenario, {"pools.llm.replicas": [1, 2]}, jobs=jobs) for jobs in (1, 2)}
print(found[1].frame.equals(found[2].frame))
"""


def test_a_script_without_guard_runs_once(tmp_path):
    file = tmp_path / "study.py"
    file.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, file], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["started", "True"]
