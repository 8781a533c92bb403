"""Accelerators, models and prices: each number from a table that names its source and date.

The tables are in ``data/catalog/``. A name may also be a path: a YAML file of an accelerator or a
model, or a Hugging Face ``config.json``.
"""

from __future__ import annotations

from capplan.catalog.accelerators import (
    Accelerator,
    Price,
    accelerator,
    accelerator_from_yaml,
    accelerator_names,
    price,
    prices,
)
from capplan.catalog.huggingface import model_from_config, model_from_mapping
from capplan.catalog.lookup import model, model_names
from capplan.catalog.models import (
    BYTES,
    Attention,
    Dtype,
    Model,
    attention_parameters,
    count_parameters,
    embedding_parameters,
    expert_parameters,
    indexer_parameters,
    linear_state_bytes,
)

__all__ = [
    "BYTES",
    "Accelerator",
    "Attention",
    "Dtype",
    "Model",
    "Price",
    "accelerator",
    "accelerator_from_yaml",
    "accelerator_names",
    "attention_parameters",
    "count_parameters",
    "embedding_parameters",
    "expert_parameters",
    "indexer_parameters",
    "linear_state_bytes",
    "model",
    "model_from_config",
    "model_from_mapping",
    "model_names",
    "price",
    "prices",
]
