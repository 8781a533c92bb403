import pytest

from capplan.report.pages import markdown_to_html


def test_formulas_become_mathml():
    html = markdown_to_html("Arrivals $\\lambda$:\n\n$$L = \\lambda W$$")
    assert html.count("<math ") == 2
    assert 'display="inline"' in html
    assert 'display="block"' in html
    assert "$" not in html


@pytest.mark.parametrize("text", ["`$x$`", "$3 and $4", "\\$3"])
def test_money_and_code_stay_as_they_are(text):
    html = markdown_to_html(text)
    assert "<math" not in html
    assert "$" in html


def test_a_formula_that_can_not_be_read_is_shown_as_code():
    assert "<code>x_</code>" in markdown_to_html("$x_$")
    assert "<code>a &lt; \\left(</code>" in markdown_to_html("$a < \\left($")


def test_environments_are_formulas_too():
    html = markdown_to_html("\\begin{align}a &= b\\\\ c &= d\\end{align}")
    assert "<mtable" in html


def test_tables_and_headings_are_kept():
    html = markdown_to_html("# Title\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    assert "<h1" in html
    assert "<td>1</td>" in html
    assert "anchor-link" not in html
