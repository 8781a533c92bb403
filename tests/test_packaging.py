"""The wheel works away from the checkout: package, data, notebooks and command."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LOOK = """
import capplan
from capplan import bundled
print(capplan.__file__)
for path in (bundled.data_path("scenarios", "chat-service.yaml"), bundled.notebooks_path()):
    print(path)
scenario = capplan.load_scenario("chat-service")
print(sorted(c.name for c in scenario.classes))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from the checkout's files, as `make wheel` does."""
    out = tmp_path_factory.mktemp("dist")
    hatchling = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*hatchling, "--directory", out], cwd=ROOT, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel, and nothing else, into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", target, wheel], check=True, capture_output=True)
    return target


def run(installed, cwd, *arguments):
    """Run Python with the installed wheel before anything else on its path."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(installed), "PATH": "", "HOME": str(cwd)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(folder):
    """Return the files of a bundled folder that belong in a wheel."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    }


@pytest.mark.parametrize("folder", ["data", "notebooks"])
def test_the_wheel_carries_every_bundled_file(wheel, folder):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tracked(folder)
    assert {f"capplan/bundled_files/{name}" for name in tracked(folder)} <= names


def test_the_wheel_carries_nothing_that_was_made_by_running(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    made = [n for n in names if "__pycache__" in n or "checkpoints" in n or n.startswith("tests")]
    assert not made


def test_the_wheel_carries_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    [licence] = [n for n in names if n.endswith("dist-info/licenses/LICENSE")]
    assert "Apache License" in zipfile.ZipFile(wheel).read(licence).decode()


def test_an_installed_wheel_finds_its_own_files(installed, tmp_path):
    package, scenario, notebooks, classes = run(installed, tmp_path, "-c", LOOK).splitlines()
    inside = [Path(line).is_relative_to(installed) for line in (package, scenario, notebooks)]
    assert inside == [True, True, True]
    assert classes.count("'") >= 6, "three classes or more"


def test_an_installed_wheel_has_the_command(installed, tmp_path):
    assert "usage: capplan" in run(installed, tmp_path, "-m", "capplan", "--help")
    script = shutil.which("capplan", path=str(installed / "bin"))
    assert script is not None
