import pandas as pd

from capplan.report.tables import words_left

FRAME = pd.DataFrame(
    {
        "class": ["chat", "batch"],
        "p99": ["12.3 ms", "unknown"],
        "loss": ["−0.5", "≤ 3 %"],
        "next action": ["", "set <i>it</i>"],
    }
)


def test_columns_of_words_are_marked_and_figures_are_not():
    html = words_left(FRAME.style.hide(axis="index").to_html())
    marked = [cell.split(">")[1].split("<")[0] for cell in html.split('class="text ')[1:]]
    assert marked == ["class", "next action", "chat", "", "batch", "set "]


def test_a_table_with_spanning_cells_is_left_as_it_is():
    html = FRAME.set_axis(pd.MultiIndex.from_tuples([("a", c) for c in FRAME]), axis=1).to_html()
    assert words_left(html) == html


def test_nothing_but_tables_is_touched():
    html = "<p>chat</p><div><td>loose</td></div>"
    assert words_left(html) == html
