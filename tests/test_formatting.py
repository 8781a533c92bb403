import pytest

from capplan.formatting import counted, does


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 requests"), (1, "1 request"), (1.0, "1 request"), (1.5, "1.5 requests"),
     (12_000, "12,000 requests")],
)  # fmt: skip
def test_one_is_singular_and_everything_else_plural(number, told):
    assert counted(number, "request") == told


def test_the_verb_follows_the_number():
    assert [does(n, "has", "have") for n in (0, 1, 2)] == ["have", "has", "have"]
