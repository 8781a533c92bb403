"""Shorthands of scenario files, written out before the scenario is checked.

``replicas: N`` stands for the replicas of the primary pool. A traffic shape
``{kind: occasion, occasion: promotion, base_rps: 5, peak_rps: 20}`` stands for the shape that
:func:`capplan.scenario.shapes.occasion` gives. ``breakers: tiered-default``, or that name among
the rules, stands for the rules of a bundled file. A checked scenario holds none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from capplan.bundled import data_path
from capplan.scenario.shapes import occasion
from capplan.schema import DataError

OCCASION = "occasion"


def written_out(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data without shorthands; DataError for an occasion that makes no sense.

    >>> shape = {"kind": "occasion", "occasion": "promotion", "base_rps": 5, "peak_rps": 20}
    >>> written_out({"traffic": {"shape": shape}}, where="s.yaml")["traffic"]["shape"]["kind"]
    'spike'
    """
    return _replicas(_occasion(with_presets(data, where=where), where))


def with_presets(data: Mapping[str, Any], *, where: object) -> Mapping[str, Any]:
    """Return raw scenario data with the rules of named presets; DataError for an unknown name.

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


def _preset(name: str, where: object) -> list[Any]:
    from capplan.scenario.files import read_yaml

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
    """Write the shorthand ``replicas`` into the primary pool, so that there is one truth."""
    pools = data.get("pools")
    index = _primary_pool_index(data)
    if data.get("replicas") is None or index is None or not isinstance(pools, list):
        return data
    changed = {**pools[index], "replicas": data["replicas"]}
    rest = {key: value for key, value in data.items() if key != "replicas"}
    return {**rest, "pools": [*pools[:index], changed, *pools[index + 1 :]]}


def _primary_pool_index(data: Mapping[str, Any]) -> int | None:
    """Return the index of the default class's pool; None if the data can't tell."""
    classes, pools = data.get("classes"), data.get("pools")
    lists = [entries for entries in (classes, pools) if isinstance(entries, list) and entries]
    if len(lists) < 2 or not all(isinstance(e, dict) for entries in lists for e in entries):  # noqa: PLR2004
        return None
    wanted = data.get("default_class") or lists[0][0].get("name")
    pool = next((c.get("pool") for c in lists[0] if c.get("name") == wanted), None)
    names = [p.get("name") for p in lists[1]]
    return names.index(pool) if pool in names else 0
