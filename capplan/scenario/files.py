"""Scenario files: read, change by dotted path, write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import copy
from datetime import date
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from capplan.bundled import data_path
from capplan.scenario.part import NUMBER, Part, part_fields
from capplan.scenario.scenario import Scenario
from capplan.scenario.shorthands import by_name, written_out
from capplan.scenario.yaml_text import read_yaml
from capplan.schema import DataError


def load_scenario(path: str | Path, *, values: Mapping[str, Any] | None = None) -> Scenario:
    """Return the scenario of a YAML or JSON file, with ``values`` set by dotted path first.

    ``path`` may be the name of a bundled scenario: ``chat-service``. Relative paths in the file
    count from its folder.
    Raises :class:`DataError` naming file, field, rule and value.
    """
    file = find_scenario(path)
    data = read_yaml(file)
    if not isinstance(data, dict):
        raise DataError("a mapping of fields", where=file, value=type(data).__name__)
    data = set_values(by_name(data, where=file), values or {}, where=file)
    return validate(data, where=file, folder=file.parent)


def with_values(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """Return the scenario with fields changed by dotted path, checked again.

    A value may be plain, as in a file, or a part of a scenario, or several.

    >>> from capplan.scenario.files import load_scenario
    >>> base = load_scenario("benchmark")
    >>> with_values(base, {"replicas": 3, "gateway.concurrency": 64}).pool().replicas
    3
    """
    data = scenario.model_dump(mode="json", exclude_unset=True)
    changes = {path: _plain(value) for path, value in values.items()}
    if "derived" in data:
        data["derived"] = [path for path in data["derived"] if path not in changes]
    return validate(set_values(data, changes, where=scenario.name), where=scenario.name)


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return value.model_dump(mode="json", exclude_unset=True)
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def validate(data: Mapping[str, Any], *, where: object, folder: Path | None = None) -> Scenario:
    """Check raw data and return the scenario; every broken rule is in the one error.

    Relative paths of files that lie in ``folder`` count from there.
    """
    try:
        text = json.dumps(written_out(data, where=where), default=_date)
        return Scenario.model_validate_json(text, context={"folder": folder})
    except ValidationError as err:
        raise _data_error(err, data, where) from err
    except DataError:
        raise
    except (TypeError, ValueError) as err:
        raise DataError(str(err), where=where) from err


def _date(value: Any) -> str:
    """Return a YAML date as text; TypeError for any other type."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"text, numbers, lists and mappings, got {type(value).__name__}")


def write_scenario(scenario: Scenario) -> str:
    """Return the scenario as YAML that :func:`load_scenario` reads back to an equal one."""
    from ruamel.yaml import YAML

    out = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(scenario.model_dump(mode="json", exclude_unset=True), out)
    return out.getvalue()


def scenario_hash(scenario: Scenario) -> str:
    """Return the SHA-256 of the scenario's values, defaults included, as hex digits."""
    text = json.dumps(scenario.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def set_values(data: Any, values: Mapping[str, Any], *, where: object) -> Any:
    """Return raw data with each dotted path set; list entries go by name or index."""
    for path, value in values.items():
        data = _set(data, path.split("."), value, where=where, path=path)
    return data


def _set(data: Any, keys: list[str], value: Any, *, where: object, path: str) -> Any:
    """Return nested lists and mappings (also ruamel's, with their comments) with one value set."""
    if data is None:
        data = {}
    if not isinstance(data, dict | list):
        raise DataError(f"a part with a field {keys[0]!r}", where=where, field=path, value=data)
    key: Any = keys[0]
    changed: Any = copy(data)
    if isinstance(data, list):
        key = _index(data, key, where=where, path=path)
    elif len(keys) == 1 and key in (data.get("origins") or ()):
        # A value that is set is a promise, whatever its origin was.
        changed["origins"] = {name: one for name, one in data["origins"].items() if name != key}
    inner = data[key] if isinstance(data, list) else data.get(key)
    rest = keys[1:]
    changed[key] = _set(inner, rest, value, where=where, path=path) if rest else value
    return changed


def _index(entries: list[Any], key: str, *, where: object, path: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if key in names:
        return names.index(key)
    if key.isdigit() and int(key) < len(entries):
        return int(key)
    known = ", ".join(str(name) for name in names if name) or "nothing"
    rule = f"one of {known} or a number below {len(entries)}"
    raise DataError(rule, where=where, field=path, value=key)


def find_scenario(path: str | Path) -> Path:
    """Return the scenario file of that path or bundled name; DataError if there is none."""
    file = Path(path)
    if file.exists():
        return file
    if file.parent in (Path(), Path("drills")):
        bundled = data_path("scenarios") / file.with_suffix(".yaml")
        if bundled.exists():
            return bundled
    raise DataError("an existing scenario file or the name of a bundled one", where=path)


def _data_error(err: ValidationError, data: Any, where: object) -> DataError:
    errors = _without_consequences(err.errors(include_url=False))
    first, *others = errors
    lines = [f"{_field(e['loc'], data)}: {_rule(e, errors)}" for e in others[:5]]
    more = f" (and {len(others)} more: {'; '.join(lines)})" if others else ""
    return DataError(
        _rule(first, errors) + more,
        where=where,
        field=_field(first["loc"], data) or None,
        value=first["input"] if _shows_value(first) else ...,
    )


def _shows_value(error: Any) -> bool:
    """Return whether the error shows the value: not a whole part if the rule names what it got."""
    is_named = isinstance(error["input"], dict) and ", got " in error["msg"]
    return error["type"] != "missing" and bool(error["loc"]) and not is_named


def _is_tag(part: int | str, data: Any) -> bool:
    """Return whether the last part of an error's path is the tag of a union, not a field."""
    return part == NUMBER or (isinstance(data, dict) and data.get("kind") == part)


def _without_consequences(errors: list[Any]) -> list[Any]:
    """Leave out "too short" for a list whose entries are in error."""
    return [
        e
        for e in errors
        if e["type"] != "too_short"
        or not any(
            len(o["loc"]) > len(e["loc"]) and o["loc"][: len(e["loc"])] == e["loc"] for o in errors
        )
    ]


def _rule(error: Any, errors: list[Any]) -> str:
    """Return the rule; an unknown field may be one that its part lacks, among all errors."""
    if error["type"] == "extra_forbidden":
        part, name = error["loc"][:-1], error["loc"][-1]
        absent = [e["loc"][-1] for e in errors if e["type"] == "missing" and e["loc"][:-1] == part]
        near = get_close_matches(str(name), absent, n=1, cutoff=0.4)
        near = near or get_close_matches(str(name), part_fields(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown field (capplan schema lists the known ones{hint})"
    if error["type"] == "union_tag_not_found":
        return f"a field {error['ctx']['discriminator']}"
    if error["type"] == "union_tag_invalid":
        return f"{error['ctx']['discriminator']} one of {error['ctx']['expected_tags']}"
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def _field(loc: tuple[int | str, ...], data: Any) -> str:
    """Return the dotted path of an error: entries by name, without tags of unions."""
    path: list[str] = []
    for i, part in enumerate(loc):
        inside = isinstance(data, dict) and part in data
        if isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            named = data.get("name") if isinstance(data, dict) else None
            path.append(str(named or part))
        elif inside or (i == len(loc) - 1 and not _is_tag(part, data)):
            path.append(str(part))
            data = data[part] if inside else None
    return ".".join(path)
