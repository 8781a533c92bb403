"""Writing the derived limits: into a scenario, and into its file with the comments kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from capplan.budget.results import WaitBudget
from capplan.scenario import Scenario
from capplan.scenario.files import with_values
from capplan.schema import DataError


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

    Comments, order and quoting of the file stay, and so do limits that it has already. With
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
        raise DataError(f"readable YAML ({err})", where=source) from err
    if not re.search(r"^- ", text, flags=re.MULTILINE):
        yaml.indent(mapping=2, sequence=4, offset=2)
    if folder is not None:
        _move_trace(data, source.parent, folder)
    for path, value in {**(values or {}), **budget.changes}.items():
        _put(data, path.split("."), value, where=source)
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _put(data: Any, keys: list[str], value: Any, *, where: Path) -> None:
    for i, key in enumerate(keys[:-1]):
        if isinstance(data, list):
            data = data[_index(data, key, where=where)]
            continue
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict | list):
            raise DataError("a part with fields", where=where, field=".".join(keys[: i + 1]))
    if isinstance(data, list):
        data[_index(data, keys[-1], where=where)] = value
    else:
        data[keys[-1]] = value


def _index(entries: list[Any], key: str, *, where: Path) -> int:
    for i, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("name") == key:
            return i
    if key.isdigit() and int(key) < len(entries):
        return int(key)
    raise DataError(f"an entry named {key!r}", where=where)


def _move_trace(data: Any, old: Path, new: Path) -> None:
    traffic = data.get("traffic") if isinstance(data, dict) else None
    trace = traffic.get("trace") if isinstance(traffic, dict) else None
    if isinstance(traffic, dict) and isinstance(trace, str) and trace != "sample":
        traffic["trace"] = (
            trace if Path(trace).is_absolute() else os.path.relpath((old / trace).resolve(), new)
        )
