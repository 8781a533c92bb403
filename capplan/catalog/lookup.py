"""Models by name: of the catalogue, or of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from capplan.catalog.accelerators import read_yaml_mapping
from capplan.catalog.huggingface import model_from_config
from capplan.catalog.models import BYTES, Model, count_parameters
from capplan.catalog.tables import look_up, rows
from capplan.schema import DataError

_KINDS = {field.name: str(field.type) for field in fields(Model)}


def model(name: str) -> Model:
    """Return a model by its id, the part after the slash, an alias, or a path.

    Paths end in ``.json`` (a Hugging Face ``config.json``) or ``.yaml`` (the fields of
    :class:`Model`). Raises :class:`DataError` listing near matches if there is none.

    >>> model("Llama-3.1-8B").num_key_value_heads
    8
    """
    if name.endswith(".json"):
        return model_from_config(name)
    if name.endswith((".yaml", ".yml")):
        return model_from_yaml(name)
    rule = "a model of the catalogue, a config.json or a .yaml file"
    return look_up(name, _models(), rule, field="model")


def model_names() -> list[str]:
    """Return the ids of the catalogue's models."""
    return sorted(_models())


def model_from_yaml(path: str | Path) -> Model:
    """Return the model of a YAML file with the fields of :class:`Model`."""
    file = Path(path)
    data = read_yaml_mapping(file)
    for field, value in data.items():
        if field not in _KINDS:
            raise DataError(f"one of {', '.join(_KINDS)}", where=file, field=str(field))
        wanted = {"int": int, "bool": bool}.get(_KINDS[field], str)
        if type(value) is not wanted or (isinstance(value, int) and value < 0):
            raise DataError(f"{_KINDS[field]}, not negative", where=file, field=field, value=value)
    if data.get("dtype", "bfloat16") not in BYTES:
        raise DataError(
            f"one of {', '.join(BYTES)}", where=file, field="dtype", value=data["dtype"]
        )
    try:
        return counted(Model(**data))
    except TypeError as err:
        raise DataError(f"every required field ({err})", where=file) from err


def counted(found: Model) -> Model:
    """Return the model with its parameters counted if they are not stated."""
    return found if found.parameters else replace(found, parameters=count_parameters(found))


@cache
def _models() -> Mapping[str, Model]:
    return {row["model"]: counted(_model(row)) for row in rows("models.csv")}


def _model(row: Mapping[str, str]) -> Model:
    values: dict[str, Any] = {"name": row["model"]}
    for field, kind in _KINDS.items():
        text = row.get(field, "")
        if text:
            values[field] = text == "true" if kind == "bool" else text
            values[field] = int(text) if kind == "int" else values[field]
    return Model(**values)
