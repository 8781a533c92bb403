"""Bundled files are found, and a missing one is an error that names it."""

import pytest

from capplan import bundled
from capplan.schema import DataError


def test_a_missing_bundled_file_is_named():
    with pytest.raises(DataError, match=r"bundled data: .*no-such-file\.csv"):
        bundled.data_path("sample", "no-such-file.csv")


def test_a_path_may_not_leave_the_folder():
    with pytest.raises(DataError, match=r"inside the folder, got '\.\./pyproject\.toml'"):
        bundled.data_path("..", "pyproject.toml")


def test_shared_data_is_none_where_the_variable_is_not_set(monkeypatch):
    monkeypatch.delenv(bundled.SHARED_DATA_VARIABLE, raising=False)
    assert bundled.shared_data_path("traces") is None


def test_shared_data_is_found_where_the_variable_points(monkeypatch, tmp_path):
    (tmp_path / "traces").mkdir()
    monkeypatch.setenv(bundled.SHARED_DATA_VARIABLE, str(tmp_path))
    assert bundled.shared_data_path("traces") == tmp_path / "traces"


def test_a_variable_that_points_nowhere_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv(bundled.SHARED_DATA_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(DataError, match="CAPPLAN_DATA: "):
        bundled.shared_data_path()


def test_copies_inside_an_installed_package_come_first(monkeypatch, tmp_path):
    (tmp_path / "data" / "sample").mkdir(parents=True)
    monkeypatch.setattr(bundled, "_IN_WHEEL", tmp_path)
    assert bundled.data_path("sample") == tmp_path / "data" / "sample"
