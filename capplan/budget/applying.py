"""Writing the derived limits: into a scenario, and into its file with the comments kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from capplan.budget.results import WaitBudget
from capplan.catalog.tables import trace_names
from capplan.scenario import Scenario
from capplan.scenario.files import set_values, with_values
from capplan.schema import invalid_yaml


def apply(scenario: Scenario, budget: WaitBudget) -> Scenario:
    """Return the scenario with the budget's limits in place of its own.

    Layers without a known share keep what they have. Applying twice changes nothing.
    """
    return with_values(scenario, budget.settings)


def applied_text(
    source: Path,
    budget: WaitBudget,
    *,
    values: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> str:
    """Return the YAML of a scenario file with ``values`` and the budget's changes set.

    Comments, order and quoting of the file stay, and so do limits that are right already; a number
    takes the place of the word ``derived``. With
    ``folder``, a relative ``traffic.trace`` that counts from the file's folder is rewritten to
    count from there.
    Raises :class:`DataError` if the file cannot be read.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 120
    try:
        text = source.read_text(encoding="utf-8-sig")
        data = yaml.load(text)
    except (OSError, UnicodeDecodeError, YAMLError) as err:
        raise invalid_yaml(err, where=source) from err
    if not re.search(r"^- ", text, flags=re.MULTILINE):
        yaml.indent(mapping=2, sequence=4, offset=2)
    if folder is not None:
        _move_trace(data, source.parent, folder)
    data = set_values(data, {**(values or {}), **budget.derived, **budget.changes}, where=source)
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _move_trace(data: Any, old: Path, new: Path) -> None:
    traffic = data.get("traffic") if isinstance(data, dict) else None
    trace = traffic.get("trace") if isinstance(traffic, dict) else None
    if isinstance(traffic, dict) and isinstance(trace, str) and trace not in trace_names():
        traffic["trace"] = (
            trace if Path(trace).is_absolute() else os.path.relpath((old / trace).resolve(), new)
        )
