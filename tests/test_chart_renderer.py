import json
import re
from html import unescape

import altair as alt
import pandas as pd
import pytest

from capplan.chart_renderer import alternative, enable, render

DATA = pd.DataFrame({"load_rps": [1.0, 2.0], "ttft_s": [0.1, 0.4], "name": ["a</script>", 'b"']})


@pytest.fixture
def chart():
    return (
        alt.Chart(DATA, title="Time to first token by load")
        .mark_line(clip=True)
        .encode(x="load_rps:Q", y="ttft_s:Q", detail="name:N")
    )


def test_a_chart_shows_itself_as_svg_with_its_specification(chart):
    figure = render(chart.to_dict())["text/html"]
    assert figure.count("<svg ") == 1
    assert 'aria-label="Time to first token by load"' in figure
    spec = re.search(r'<script type="application/json">(.*?)</script>', figure)[1]
    assert json.loads(spec) == chart.to_dict()


def test_altair_uses_the_renderer_once_enabled(chart):
    with alt.renderers.enable("default"):
        enable()
        assert set(chart._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_two_charts_of_a_page_share_no_id(chart):
    figures = [render(c.to_dict())["text/html"] for c in (chart, chart.properties(title="Other"))]
    ids = [set(re.findall(r'\bid="([^"]+)"', figure)) for figure in figures]
    assert all(ids)
    assert not ids[0] & ids[1]
    for figure, own in zip(figures, ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", figure)) <= own


def test_the_same_chart_gives_the_same_figure(chart):
    assert render(chart.to_dict()) == render(chart.to_dict())


def test_nothing_is_fetched(chart):
    figure = render(chart.to_dict())["text/html"]
    assert not re.search(r'(src|href)="(?!#)', re.sub(r"<script.*?</script>", "", figure))


def test_the_description_of_a_chart_is_its_alternative_text(chart):
    told = chart.properties(description='Rises <fast> & "far"')
    figure = render(told.to_dict())["text/html"]
    assert unescape(re.search(r'aria-label="([^"]*)"', figure)[1]) == 'Rises <fast> & "far"'


def test_a_chart_made_of_charts_is_named_by_the_first_title_inside(chart):
    layered = alt.layer(chart.mark_point(), chart)
    assert alternative(layered.to_dict()) == "Time to first token by load"


def test_a_chart_without_words_is_named_by_its_axes(chart):
    bare = (
        alt.Chart(DATA).mark_point().encode(x="load_rps:Q", y=alt.Y("ttft_s:Q", title="TTFT (s)"))
    )
    assert alternative(alt.hconcat(bare, bare).to_dict()) == "TTFT (s); load_rps"
    assert alternative({}) == "chart"
