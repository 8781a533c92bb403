"""Controls, charts that follow them, and the static page with the same content."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from capplan import pages

Values = dict[str, float]
"""What the controls are set to, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One slider: what it sets, where it starts, and its range. Whole numbers where ``whole``."""

    title: str
    value: float
    low: float
    high: float
    step: float
    whole: bool = False

    def slider(self) -> Any:
        """Return the slider."""
        import ipywidgets

        kind = ipywidgets.IntSlider if self.whole else ipywidgets.FloatSlider
        number = int if self.whole else float
        return kind(
            value=number(self.value),
            min=number(self.low),
            max=number(self.high),
            step=number(self.step),
            description=self.title,
            continuous_update=True,
            style={"description_width": "14em"},
            layout={"width": "46em"},
        )

    def row(self, slider: Any) -> Any:
        """Return its row of the page."""
        return slider


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few settings: what it sets, where it starts, and the value of each by its label."""

    title: str
    value: float
    settings: Mapping[str, float]

    def slider(self) -> Any:
        """Return the buttons, one pressed."""
        import ipywidgets

        return ipywidgets.ToggleButtons(
            options=list(self.settings.items()),
            value=self.value,
            style={"button_width": "auto"},
        )

    def row(self, buttons: Any) -> Any:
        """Return its row of the page: the title before the buttons, where a slider has it."""
        import ipywidgets

        title = ipywidgets.HTML(
            f'<div style="text-align:right">{_plain(self.title)}</div>', layout={"width": "14em"}
        )
        return ipywidgets.HBox([title, buttons])


MOST_LISTED = 5
"""Things that break which a view lists one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown for some values: charts, sentences, and in red what breaks."""

    charts: tuple[Any, ...]
    sentences: tuple[str, ...]
    broken: tuple[str, ...] = ()

    @property
    def listed_broken(self) -> tuple[str, ...]:
        """Return the first things that break, and how many there are beside them."""
        more = len(self.broken) - MOST_LISTED
        rest = (f"and {more} more",) if more > 0 else ()
        return (*self.broken[:MOST_LISTED], *rest)

    def parts(self) -> list[Any]:
        """Return charts and texts in the order a page shows them."""
        breaks = [f"**Breaks:** {text}" for text in self.listed_broken]
        return [*self.charts, *self.sentences, *breaks]

    def html(self) -> str:
        """Return sentences and what breaks as HTML."""
        good = "".join(f"<p>{_plain(text)}</p>" for text in self.sentences)
        red = "".join(
            f'<p style="color:#B00020;font-weight:600">Breaks: {_plain(text)}</p>'
            for text in self.listed_broken
        )
        return f'<div class="capplan-view">{good}{red}</div>'


def _plain(text: str) -> str:
    return html.escape(text.replace("**", "").replace("`", ""))


@dataclass(slots=True, kw_only=True, eq=False)
class Explorer:
    """Controls and the view that follows them.

    ``look`` turns values into a view; it runs in a thread of its own, so that controls stay quick,
    and may be called again before it has finished: the newest values win and older answers are
    dropped. ``couple`` may move the other controls when one was moved (its name is given).
    """

    controls: Mapping[str, Control | Choice]
    look: Callable[[Values], View]
    couple: Callable[[str, Values], Values] | None = None
    sliders: dict[str, Any] = field(default_factory=dict)
    shown: list[Any] = field(default_factory=list)
    text: Any = None
    drawn: int = 0
    """Generation of the values that the charts show."""
    asked: int = 0
    """Generation of the values that the controls are set to."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _idle: threading.Event = field(default_factory=threading.Event)
    _moving: bool = False
    _worker: threading.Thread | None = None

    def values(self) -> Values:
        """Return what the controls are set to, or start from."""
        if not self.sliders:
            return {name: control.value for name, control in self.controls.items()}
        return {name: slider.value for name, slider in self.sliders.items()}

    def show(self) -> None:
        """Show controls and charts to a reader; without one, the static page of the values."""
        if pages.has_reader():
            pages.show(self.widget())
        else:
            pages.show(*self.look(self.values()).parts())

    def widget(self) -> Any:
        """Return the widget: sliders, charts below them, sentences below those."""
        import altair as alt
        import ipywidgets

        alt.JupyterChart.enable_offline()
        view = self.look(self.values())
        self.sliders = {name: control.slider() for name, control in self.controls.items()}
        options = {"renderer": "svg", "actions": False}
        self.shown = [alt.JupyterChart(c, embed_options=options) for c in view.charts]
        self.text = ipywidgets.HTML(view.html())
        self._idle.set()
        for name, slider in self.sliders.items():
            slider.observe(self._moved(name), names="value")
        rows = [self.controls[name].row(slider) for name, slider in self.sliders.items()]
        return ipywidgets.VBox([*rows, *self.shown, self.text])

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Wait until the charts show the newest values; return whether they do."""
        return self._idle.wait(timeout_s)

    def _moved(self, name: str) -> Callable[[Any], None]:
        def moved(_change: Any) -> None:
            with self._lock:
                if self._moving:
                    return
                if self.couple is not None:
                    self._set(self.couple(name, self.values()))
                self.asked += 1
                self._idle.clear()
                if self._worker is None:
                    self._worker = threading.Thread(target=self._work, daemon=True)
                    self._worker.start()

        return moved

    def _set(self, values: Values) -> None:
        self._moving = True
        try:
            for name, value in values.items():
                self.sliders[name].value = value
        finally:
            self._moving = False

    def _work(self) -> None:
        """Look at the newest values until they are shown; answers overtaken are dropped."""
        while True:
            with self._lock:
                if self.drawn == self.asked:
                    self._worker = None
                    self._idle.set()
                    return
                generation, values = self.asked, self.values()
            try:
                view = self.look(values)
            except Exception as err:  # the thread has no caller: show the error
                view = View(charts=(), sentences=(), broken=(f"{type(err).__name__}: {err}",))
            with self._lock:
                if generation == self.asked:
                    self._draw(view)
                    self.drawn = generation

    def _draw(self, view: View) -> None:
        for shown, chart in zip(self.shown, view.charts, strict=False):
            shown.chart = chart
        self.text.value = view.html()
