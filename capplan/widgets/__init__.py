"""Sliders over a real re-simulation, and the same content as a static page.

One call per question. In JupyterLab and Voilà it shows controls, and charts that follow them; run
headless (papermill, nbconvert) it shows charts and sentences for the values it was called with.
"""

from capplan.widgets.budget import wait_budget
from capplan.widgets.explorer import Choice, Control, Explorer, View
from capplan.widgets.overload import protective_actions
from capplan.widgets.rerun import batch_window, failure_margin

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
