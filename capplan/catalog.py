"""Accelerators, models and prices: each number from a table that names its source and date.

Tables lie in ``data/catalog/``. A name may also be a path: a YAML file describes own hardware, a
Hugging Face ``config.json`` a model.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from capplan.bundled import data_path
from capplan.schema import DataError

T = TypeVar("T")

BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Bytes of one number, by the name of its type. Scales and zero points of a quantisation are
left out: they add about 1-6 %, by group size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator: peak rates as its maker states them, dense; NaN where unknown."""

    name: str
    memory_bytes: float
    """Memory as marketed, bytes."""
    usable_bytes: float
    """Memory that the runtime reports as the device's total, bytes."""
    memory_bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float = math.nan
    int8_flop_per_s: float = math.nan
    interconnect_bytes_per_s: float = math.nan
    """To other accelerators of the same server, one direction, bytes/s."""
    power_w: float = math.nan

    def flop_per_s(self, dtype: str) -> float:
        """Return the peak rate of matrix products at a type; NaN where it is unknown."""
        if dtype == "fp8":
            return self.fp8_flop_per_s
        return self.int8_flop_per_s if dtype == "int8" else self.bf16_flop_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer, by the numbers of its ``config.json``.

    ``parameters`` is the stated count where there is one, else :func:`count_parameters`.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    torch_dtype: str = "bfloat16"
    max_position_embeddings: int = 0
    sliding_window: int = 0
    """Tokens that a layer with a sliding window attends to; 0 = no such layer."""
    sliding_layers: int = 0
    """How many layers have the window."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    first_dense_layers: int = 0
    """Leading layers with a dense MLP in a model of experts."""
    kv_lora_rank: int = 0
    """Rank of the compressed KV of multi-head latent attention (MLA); 0 = no MLA."""
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    attention_bias: bool = False
    parameters: int = 0

    @property
    def moe_layers(self) -> int:
        """Return how many layers have experts."""
        return self.num_hidden_layers - self.first_dense_layers if self.num_experts else 0


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by its name in the catalogue, an alias, or the path of a YAML file.

    Raises :class:`DataError` listing near matches if there is none.

    >>> accelerator("H100-SXM-80GB").memory_bandwidth_bytes_per_s
    3350000000000.0
    """
    if name.endswith((".yaml", ".yml")):
        return accelerator_from_yaml(Path(name))
    return _look_up(name, _accelerators(), "an accelerator of the catalogue")


def model(name: str) -> Model:
    """Return a model by its id, the part after the slash, an alias, or a ``config.json`` path.

    Raises :class:`DataError` listing near matches if there is none.

    >>> model("Llama-3.1-8B").num_key_value_heads
    8
    """
    if name.endswith(".json"):
        return model_from_config(Path(name))
    return _look_up(name, _models(), "a model of the catalogue")


def accelerator_names() -> list[str]:
    """Return the names of the catalogue's accelerators."""
    return sorted(_accelerators())


def model_names() -> list[str]:
    """Return the ids of the catalogue's models."""
    return sorted(_models())


def count_parameters(model: Model) -> int:
    """Return the number of parameters that the shapes give, norms and biases of norms left out.

    Source: the module shapes of Hugging Face ``transformers`` (``modeling_llama.py``,
    ``modeling_mixtral.py``, ``modeling_deepseek_v3.py``).
    """
    per_layer = attention_parameters(model)
    moe = model.moe_layers
    dense = model.num_hidden_layers - moe
    experts = model.num_experts + model.num_shared_experts
    mlp = dense * 3 * model.hidden_size * model.intermediate_size
    mlp += moe * experts * expert_parameters(model) + moe * model.hidden_size * model.num_experts
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return model.num_hidden_layers * per_layer + mlp + embeddings


def attention_parameters(model: Model) -> int:
    """Return the parameters of one layer's attention: query, key, value and output projections."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_lora_rank:
        qk = model.qk_nope_head_dim + model.qk_rope_head_dim
        rank = model.q_lora_rank
        query = rank * (hidden + heads * qk) if rank else hidden * heads * qk
        down = hidden * (model.kv_lora_rank + model.qk_rope_head_dim)
        up = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
        return query + down + up + heads * model.v_head_dim * hidden
    return hidden * model.head_dim * (2 * heads + 2 * model.num_key_value_heads)


def expert_parameters(model: Model) -> int:
    """Return the parameters of one expert."""
    return 3 * model.hidden_size * model.moe_intermediate_size


def model_from_config(path: str | Path) -> Model:
    """Return the model that a Hugging Face ``config.json`` describes."""
    file = Path(path)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise DataError("an existing config.json", where=file) from err
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise DataError(f"a readable JSON file ({err})", where=file) from err
    raise NotImplementedError(config)


def accelerator_from_yaml(path: Path) -> Accelerator:
    """Return the accelerator that a YAML file of this class's fields describes."""
    raise NotImplementedError(path)


@cache
def _accelerators() -> Mapping[str, Accelerator]:
    file = data_path("catalog", "accelerators.csv")
    numbers: dict[str, dict[str, float]] = {}
    for row in _rows(file):
        numbers.setdefault(row["accelerator"], {})[row["field"]] = float(row["value"])
    return {name: Accelerator(name=name, **values) for name, values in numbers.items()}


@cache
def _models() -> Mapping[str, Model]:
    file = data_path("catalog", "models.csv")
    return {row["model"]: _model(row) for row in _rows(file)}


def _model(row: Mapping[str, str]) -> Model:
    values: dict[str, Any] = {"name": row["model"]}
    for field in fields(Model):
        text = row.get(field.name, "")
        if text:
            values[field.name] = _convert(text, str(field.type))
    return Model(**values)


def _convert(text: str, kind: str) -> Any:
    if kind == "bool":
        return text == "true"
    return int(text) if kind == "int" else text


@cache
def _aliases() -> Mapping[str, str]:
    return {_key(row["alias"]): row["name"] for row in _rows(data_path("catalog", "aliases.csv"))}


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _look_up(name: str, table: Mapping[str, T], rule: str) -> T:
    by_key = {_key(known): value for known, value in table.items()}
    by_key |= {_key(known.rpartition("/")[2]): value for known, value in table.items()}
    key = _key(name)
    if key not in by_key:
        key = _key(_aliases().get(key, name))
    if key in by_key:
        return by_key[key]
    near = _near(name, table)
    raise DataError(f"{rule} (near: {', '.join(near) or 'none'})", value=name)


def _near(name: str, known: Iterable[str]) -> list[str]:
    by_key = {_key(k.rpartition("/")[2]): k for k in known}
    matches = get_close_matches(_key(name.rpartition("/")[2]), by_key, n=4, cutoff=0.4)
    return [by_key[match] for match in matches]


def _key(name: str) -> str:
    """Return a name without what people write differently: case, spaces, punctuation."""
    return "".join(c for c in name.lower() if c.isalnum() or c == "/")
