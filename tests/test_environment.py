"""pyproject.toml, environment.yml and requirements.lock say the same; the lock names no place."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CONDA_NAME = {"duckdb": "python-duckdb"}
"""Conda-forge's name of a package, where it is not PyPI's."""

PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)
PLACE = re.compile(r"\w+://|\B/[a-z]+/|--(extra-)?index-url|--find-links|--trusted-host")


def by_name(requirements):
    return {canonicalize_name(r.name): r for r in map(Requirement, requirements)}


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.fixture(scope="module")
def conda(environment):
    return by_name(d for d in environment["dependencies"] if isinstance(d, str))


@pytest.fixture(scope="module")
def lock_text():
    return (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def pins(lock_text):
    found = {}
    for pin in PIN.finditer(lock_text):
        found.setdefault(canonicalize_name(pin["name"]), set()).add(pin["version"])
    return found


def test_environment_yml_names_the_packages_of_pyproject(project, conda):
    wanted = {CONDA_NAME.get(name, name) for name in by_name(project["dependencies"])}
    assert set(conda) - {"python", "pip"} == wanted


def test_environment_yml_has_the_ranges_of_pyproject(project, conda):
    wanted = by_name(project["dependencies"])
    differs = {
        name: f"{conda[CONDA_NAME.get(name, name)].specifier} is not {requirement.specifier}"
        for name, requirement in wanted.items()
        if conda[CONDA_NAME.get(name, name)].specifier != requirement.specifier
    }
    assert not differs


def test_environment_yml_has_the_python_of_pyproject(project, conda):
    assert conda["python"].specifier == SpecifierSet(project["requires-python"])


def test_environment_yml_installs_the_package_itself(environment):
    assert {"pip": ["--editable ."]} in environment["dependencies"]
    assert environment["channels"] == ["conda-forge", "nodefaults"]


def test_every_pin_is_inside_its_range(project, pins):
    extras = [r for group in project["optional-dependencies"].values() for r in group]
    wanted = by_name([*project["dependencies"], *extras])
    assert set(wanted) <= set(pins)
    outside = {
        f"{name}=={version}: {requirement.specifier}"
        for name, requirement in wanted.items()
        for version in pins[name]
        if version not in requirement.specifier
    }
    assert not outside


def test_every_pin_has_a_hash(lock_text):
    blocks = re.split(r"\n(?=\S)", lock_text.strip())
    bare = [b.splitlines()[0] for b in blocks if not b.startswith("#") and "--hash=" not in b]
    assert not bare


def test_the_lock_names_no_host_and_no_path(lock_text):
    assert not PLACE.search(lock_text)


@pytest.mark.parametrize("line", ["--index-url x", "x @ https://host/x.whl", "x @ /srv/x.whl"])
def test_a_place_in_the_lock_would_be_seen(line):
    assert PLACE.search(line)
