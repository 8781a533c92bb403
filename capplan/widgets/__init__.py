"""Sliders over a real re-simulation, and the same content as a static page where nobody can slide.

One call per question. With a reader in front (JupyterLab, Voilà) it shows controls and charts that
follow them; run headless (papermill, nbconvert) it shows charts and sentences for the values it
was called with.
"""

from capplan.widgets.batching import batch_window
from capplan.widgets.budget import wait_budget
from capplan.widgets.explorer import Choice, Control, Explorer, View
from capplan.widgets.margin import failure_margin
from capplan.widgets.overload import protective_actions

__all__ = [
    "Choice",
    "Control",
    "Explorer",
    "View",
    "batch_window",
    "failure_margin",
    "protective_actions",
    "wait_budget",
]
