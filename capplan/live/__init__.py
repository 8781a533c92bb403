"""The live backend: the same scenario and trace against a real server."""

from capplan.live.run import measure
from capplan.live.target import Target

__all__ = ["Target", "measure"]
