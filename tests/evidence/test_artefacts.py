import numpy as np
import pandas as pd
import pytest

from capplan.evidence import artefact, read_artefact
from capplan.schema import DataError


def test_json_has_null_and_inf(tmp_path):
    path = artefact(tmp_path, "budget.json", {"wait_s": np.nan, "limit_s": np.inf})
    assert path == tmp_path / "budget.json"
    assert read_artefact(tmp_path, "budget.json") == {"wait_s": None, "limit_s": "inf"}


def test_a_frame_is_kept_as_parquet_in_a_folder_below(tmp_path):
    frame = pd.DataFrame({"a": [1, 2]})
    artefact(tmp_path, "stages/one.parquet", frame)
    pd.testing.assert_frame_equal(read_artefact(tmp_path, "stages/one.parquet"), frame)


def test_text_is_kept_as_it_is_and_replaced_as_a_whole(tmp_path):
    artefact(tmp_path, "decision.yaml", "replicas: 3\n")
    artefact(tmp_path, "decision.yaml", "replicas: 4\n")
    assert read_artefact(tmp_path, "decision.yaml") == "replicas: 4\n"
    assert [path.name for path in tmp_path.iterdir()] == ["decision.yaml"]


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("../x.json", {}),
        ("/tmp/x.json", {}),
        ("", {}),
        ("x.pkl", {}),
        ("x.parquet", [1]),
        ("x.md", 3),
    ],
)
def test_a_name_or_payload_that_has_no_place_is_an_error(tmp_path, name, payload):
    with pytest.raises(ValueError, match="name must"):
        artefact(tmp_path / "run", name, payload)


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.parquet", "PAR1")])
def test_an_unreadable_artefact_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: a readable artefact"):
        read_artefact(tmp_path, name)


def test_a_missing_artefact_is_named(tmp_path):
    with pytest.raises(DataError, match=r"profile\.json: an artefact"):
        read_artefact(tmp_path, "profile.json")
