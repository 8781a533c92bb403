"""What a scenario file can state; each module is named by what it configures.

A :class:`Scenario` is read from YAML by :func:`capplan.scenario.files.load_scenario`; variation is
:func:`capplan.scenario.files.with_values`.
"""

from capplan.scenario.scenario import Scenario

__all__ = ["Scenario"]
