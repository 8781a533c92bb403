"""Controls and charts: the newest values win, and without a reader the page says the same."""

import threading
import time

import altair as alt
import pandas as pd
import pytest

from capplan import pages
from capplan.widgets import Control, Explorer, View

CONTROLS = {
    "size": Control(title="size", value=2, low=1, high=50, step=1, whole=True),
    "wait": Control(title="wait (s)", value=0.5, low=0.0, high=1.0, step=0.1),
}


def look(values):
    frame = pd.DataFrame({"x": [0, 1], "y": [values["size"], values["wait"]]})
    chart = alt.Chart(frame).mark_line().encode(x="x:Q", y="y:Q")
    broken = ("the size",) if values["size"] > 10 else ()
    return View(charts=(chart,), sentences=(f"size {values['size']:g}.",), broken=broken)


@pytest.fixture
def explorer():
    return Explorer(controls=CONTROLS, look=look)


def drawn_sizes(explorer):
    spec = explorer.shown[0].chart.to_dict()
    return [row["y"] for row in max(spec["datasets"].values(), key=len)][:1]


def test_without_a_reader_the_static_page_has_charts_and_sentences(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr(pages, "show", lambda *parts: shown.extend(parts))
    explorer.show()
    assert not pages.has_reader()
    assert isinstance(shown[0], alt.Chart)
    assert shown[1:] == ["size 2."]
    assert not explorer.sliders


def test_with_a_reader_the_page_has_sliders(explorer, monkeypatch):
    import ipywidgets

    shown = []
    monkeypatch.setattr(pages, "has_reader", lambda: True)
    monkeypatch.setattr(pages, "show", lambda *parts: shown.extend(parts))
    explorer.show()
    sliders = [w for w in shown[0].children if isinstance(w, ipywidgets.IntSlider)]
    assert [slider.value for slider in sliders] == [2]


def test_moving_a_slider_redraws_and_tells_what_breaks_in_red(explorer):
    explorer.widget()
    assert "Breaks" not in explorer.text.value
    explorer.sliders["size"].value = 11
    assert explorer.settle()
    assert drawn_sizes(explorer) == [11]
    assert "size 11." in explorer.text.value
    assert "Breaks: the size" in explorer.text.value
    assert "color:#B00020" in explorer.text.value


def test_the_newest_values_win_however_slow_the_look():
    begun, go = threading.Event(), threading.Event()
    looked = []

    def slow(values):
        looked.append(values["size"])
        if values["size"] == 3:
            begun.set()
            go.wait(5)
        return look(values)

    explorer = Explorer(controls=CONTROLS, look=slow)
    explorer.widget()
    explorer.sliders["size"].value = 3
    assert begun.wait(5)
    for size in (4, 5, 6, 7):
        explorer.sliders["size"].value = size
    assert not explorer.settle(0.05)
    go.set()
    assert explorer.settle()
    assert drawn_sizes(explorer) == [7]
    assert looked == [2, 3, 7], "what was overtaken is not looked at, or not shown"


def test_a_slider_moved_from_many_threads_ends_on_the_values_it_was_left_at(explorer):
    explorer.widget()

    def move(size):
        explorer.sliders["size"].value = size
        time.sleep(0.001)

    threads = [threading.Thread(target=move, args=(size,)) for size in range(3, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert explorer.settle()
    assert drawn_sizes(explorer) == [explorer.sliders["size"].value]


def test_a_coupled_control_follows_without_a_loop():
    asked = []

    def couple(moved, values):
        asked.append(moved)
        return {**values, "wait": min(values["wait"], 1 / values["size"])}

    explorer = Explorer(controls=CONTROLS, look=look, couple=couple)
    explorer.widget()
    explorer.sliders["size"].value = 10
    assert explorer.settle()
    assert explorer.values() == {"size": 10, "wait": 0.1}
    assert asked == ["size"]


def test_an_error_while_looking_is_told_and_the_next_move_works():
    def fails(values):
        if values["size"] == 3:
            msg = "no such <size>"
            raise ValueError(msg)
        return look(values)

    explorer = Explorer(controls=CONTROLS, look=fails)
    explorer.widget()
    explorer.sliders["size"].value = 3
    assert explorer.settle()
    assert "ValueError: no such &lt;size&gt;" in explorer.text.value
    explorer.sliders["size"].value = 4
    assert explorer.settle()
    assert drawn_sizes(explorer) == [4]


def test_a_view_in_which_everything_breaks_tells_the_first_things_and_counts_the_others():
    view = View(charts=(), sentences=(), broken=tuple(f"thing {i}" for i in range(9)))
    told = [f"**Breaks:** thing {i}" for i in range(5)]
    assert view.parts() == [*told, "**Breaks:** and 4 more"]
    assert view.html().count("<p ") == 6
