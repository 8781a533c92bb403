"""The live backend: the same scenario and trace against a real server."""

from capplan.live.launcher import Launcher, RunningServer
from capplan.live.run import measure
from capplan.live.target import Target

__all__ = ["Launcher", "RunningServer", "Target", "measure"]
