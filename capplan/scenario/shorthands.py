"""Shorthands of scenario files, written out before the scenario is checked.

``replicas: N`` stands for the replicas of the primary pool. A traffic shape
``{kind: occasion, occasion: promotion, base_rps: 5, peak_rps: 20}`` stands for the shape that
:func:`capplan.scenario.shapes.occasion` gives. ``breakers: tiered-default``, or that name among
the rules, stands for the rules of a bundled file. A limit or quota of the gateway with
``each: tenant`` stands for one of each tenant, its name followed by the tenant's; with
``each: class``, of each class. One mapping in place of such a list stands for a list of one:
``rate_limits: {rate_rps: 30}``. A checked scenario holds none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from capplan.bundled import data_path
from capplan.scenario.fields import parts_of
from capplan.scenario.gateway import Gateway
from capplan.scenario.shapes import occasion
from capplan.scenario.yaml_text import read_yaml
from capplan.schema import DataError

OCCASION = "occasion"
EACH = tuple(
    name
    for name, field in Gateway.model_fields.items()
    if any("tenant" in part.model_fields for part in parts_of(field))
)
"""Lists of the gateway whose entries may be of each tenant or class."""
OWNERS = {"tenant": "tenant", "class": "request_class"}
"""What ``each`` can be, and the field that it fills in."""


def written_out(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data without shorthands; DataError for an invalid one.

    >>> shape = {"kind": "occasion", "occasion": "promotion", "base_rps": 5, "peak_rps": 20}
    >>> written_out({"traffic": {"shape": shape}}, where="s.yaml")["traffic"]["shape"]["kind"]
    'spike'
    """
    return _replicas(_occasion(by_name(data, where=where), where))


def by_name(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data whose entries have their names, so that paths can use them."""
    return with_each(with_presets(data, where=where), where=where)


def with_presets(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data with the rules of presets; DataError for an unknown name.

    >>> rules = with_presets({"breakers": "tiered-default"}, where="s.yaml")["breakers"]
    >>> [rule["name"] for rule in rules]
    ['slow', 'fragmented', 'overfull', 'standby']
    """
    stated = data.get("breakers")
    entries = [stated] if isinstance(stated, str) else stated
    if not isinstance(entries, list) or not any(isinstance(one, str) for one in entries):
        return data
    rules: list[Any] = []
    for entry in entries:
        rules += _preset(entry, where) if isinstance(entry, str) else [entry]
    return {**data, "breakers": rules}


def with_each(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data with a limit for each tenant or class that is there.

    Raises :class:`DataError` where a limit states its tenant or class as well.

    >>> limit = {"name": "fair", "each": "tenant", "rate_rps": 4.0}
    >>> data = {"tenants": [{"name": "a"}, {"name": "b"}], "gateway": {"rate_limits": [limit]}}
    >>> [one["name"] for one in with_each(data, where="s.yaml")["gateway"]["rate_limits"]]
    ['fair-a', 'fair-b']
    """
    gateway = data.get("gateway")
    if not isinstance(gateway, dict):
        return data
    changed = {
        field: [one for entry in entries for one in _of_each(entry, field, data, where)]
        for field in EACH
        if (entries := _listed(gateway.get(field))) is not None
    }
    return {**data, "gateway": {**gateway, **changed}} if changed else data


def _listed(entries: Any) -> list[Any] | None:
    """Return entries as a list, one mapping as a list of one; None for anything else."""
    if isinstance(entries, dict):
        return [entries]
    return entries if isinstance(entries, list) else None


def _of_each(entry: Any, field: str, data: Mapping[str, Any], where: object) -> list[Any]:
    if not isinstance(entry, dict) or "each" not in entry:
        return [entry]
    name, each = entry.get("name"), entry["each"]
    own = ("tenant",) if field == "quotas" else tuple(OWNERS)
    path = f"gateway.{field}.{name or 'each'}.each"
    if each not in own:
        raise DataError(f"one of {', '.join(own)}", where=where, field=path, value=each)
    key, shared = OWNERS[each], {key: value for key, value in entry.items() if key != "each"}
    if shared.get(key) is not None:
        raise DataError(f"{key} or each, not both", where=where, field=path, value=each)
    front = f"{name}-" if isinstance(name, str) else ""
    return [
        {**shared, key: one} | ({} if field == "quotas" else {"name": f"{front}{one}"})
        for one in _names(data, key)
    ]


def _names(data: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of tenants or classes; the default tenant if none is stated."""
    if key == "tenant" and "tenants" not in data:
        return ["all"]
    entries = data.get("tenants" if key == "tenant" else "classes")
    found = [one.get("name") for one in entries or () if isinstance(one, dict)]
    return [name for name in found if isinstance(name, str)]


def _preset(name: str, where: object) -> list[Any]:
    files = {file.stem: file for file in data_path("breakers").glob("*.yaml")}
    if name not in files:
        rule = f"a list of rules, or the name of a bundled one: {', '.join(sorted(files))}"
        raise DataError(rule, where=where, field="breakers", value=name)
    return list(read_yaml(files[name]))


def _occasion(data: Mapping[str, Any], where: object) -> Mapping[str, Any]:
    traffic = data.get("traffic")
    shape = traffic.get("shape") if isinstance(traffic, dict) else None
    if (
        not isinstance(traffic, dict)
        or not isinstance(shape, dict)
        or shape.get("kind") != OCCASION
    ):
        return data
    values = {key: value for key, value in shape.items() if key not in ("kind", OCCASION)}
    try:
        plan = occasion(str(shape.get(OCCASION)), **values)
    except (TypeError, ValidationError) as err:
        rule = "base_rps, peak_rps and optionally part_s, all positive numbers"
        raise DataError(rule, where=where, field="traffic.shape", value=shape) from err
    except ValueError as err:
        raise DataError(str(err), where=where, field="traffic.shape") from err
    return {**data, "traffic": {**traffic, "shape": plan.model_dump(mode="json")}}


def _replicas(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return raw data with ``replicas`` as a field of the primary pool."""
    pools = data.get("pools")
    index = _primary_pool_index(data)
    if data.get("replicas") is None or index is None or not isinstance(pools, list):
        return data
    changed = {**pools[index], "replicas": data["replicas"]}
    rest = {key: value for key, value in data.items() if key != "replicas"}
    return {**rest, "pools": [*pools[:index], changed, *pools[index + 1 :]]}


def _primary_pool_index(data: Mapping[str, Any]) -> int | None:
    """Return the index of the default class's pool; None if unknown."""
    classes, pools = data.get("classes"), data.get("pools")
    lists = [entries for entries in (classes, pools) if isinstance(entries, list) and entries]
    if len(lists) < 2 or not all(isinstance(e, dict) for entries in lists for e in entries):  # noqa: PLR2004
        return None
    wanted = data.get("default_class") or lists[0][0].get("name")
    pool = next((c.get("pool") for c in lists[0] if c.get("name") == wanted), None)
    names = [p.get("name") for p in lists[1]]
    return names.index(pool) if pool in names else 0
