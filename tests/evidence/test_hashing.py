import numpy as np
import pandas as pd
import pytest

from capplan.evidence.manifest import content_hash

TABLE = pd.DataFrame(
    {
        "id": ["a", "b", None],
        "n": [1, 2, 3],
        "x": [0.5, np.nan, np.inf],
        "ok": [True, False, True],
        "blocks": [np.array([1, 2]), np.array([], dtype=int), np.array([3])],
    }
)


def test_a_table_keeps_its_hash_through_parquet(tmp_path):
    TABLE.to_parquet(tmp_path / "t.parquet", index=False)
    assert content_hash(pd.read_parquet(tmp_path / "t.parquet")) == content_hash(TABLE)


@pytest.mark.parametrize(
    "changed",
    [
        TABLE.rename(columns={"n": "m"}),
        TABLE[["n", "id", "x", "ok", "blocks"]],
        TABLE.iloc[::-1],
        TABLE.iloc[:2],
        TABLE.assign(x=[0.5, 0.0, np.inf]),
        TABLE.assign(x=[0.5, np.nan, np.nextafter(1e300, 2)]),
        TABLE.assign(id=["a", "b", "None"]),
        TABLE.assign(id=["a", "a", None]),
        TABLE.assign(blocks=[np.array([1, 2]), np.array([3]), np.array([])]),
    ],
)
def test_any_change_of_content_changes_the_hash(changed):
    assert content_hash(changed) != content_hash(TABLE)


def test_how_a_table_is_held_does_not_count():
    held = TABLE.assign(n=TABLE["n"].astype("float64"), id=TABLE["id"].astype(object))
    assert content_hash(held.set_axis([7, 8, 9])) == content_hash(TABLE)
