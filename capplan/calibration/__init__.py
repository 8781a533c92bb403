"""Step times fitted to measured runs."""

from capplan.calibration.fit import calibrate
from capplan.calibration.result import Calibration, Fitted, read_latency

__all__ = ["Calibration", "Fitted", "calibrate", "read_latency"]
