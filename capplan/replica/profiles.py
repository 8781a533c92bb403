"""Where a kernel profile of a pool's model and accelerator lies, in a folder of profiles."""

from __future__ import annotations

from pathlib import Path

from capplan.catalog import accelerator, model
from capplan.replica.memory import accelerator_of, model_of
from capplan.scenario.pools import Pool
from capplan.schema import DataError

FILES = ("dense.csv", "mlp.csv", "mlp.csv.gz")


def find_profile(root: str | Path, pool: Pool) -> Path:
    """Return the folder below ``root`` that profiles a pool's model on its accelerator.

    A folder counts if two of the names on the way to it are the model's id, and it or a
    ``meta.yaml`` above it names the accelerator; a folder ``tp2`` is of two accelerators. The root
    itself counts if it holds a profile, whatever it is called.
    Raises :class:`DataError` where there is none.
    """
    top = Path(root)
    if any((top / name).is_file() for name in FILES):
        return top
    wanted, device = model_of(pool).name, accelerator_of(pool).name
    for folder in sorted({file.parent for name in FILES for file in top.glob(f"**/{name}")}):
        parts = folder.relative_to(top).parts
        tp = next((part for part in parts if part == f"tp{pool.tensor_parallel}"), None)
        of_tp = tp is not None or not any(_is_tp(part) for part in parts)
        if of_tp and _names_model(parts, wanted) and _names_device(top, parts, device):
            return folder
    raise DataError(
        f"a kernel profile of {wanted} on {device} with tensor_parallel {pool.tensor_parallel}",
        where=top,
        value="nothing",
    )


def _is_tp(part: str) -> bool:
    return part.startswith("tp") and part[2:].isdigit()


def _names_model(parts: tuple[str, ...], wanted: str) -> bool:
    return any(_model_name("/".join(parts[i : i + 2])) == wanted for i in range(len(parts) - 1))


def _model_name(name: str) -> str | None:
    try:
        return model(name).name
    except DataError:
        return None


def _names_device(top: Path, parts: tuple[str, ...], wanted: str) -> bool:
    told = [*parts, *(text for i in range(len(parts) + 1) for text in _meta(top, parts[:i]))]
    return any(_device_name(name) == wanted for name in told)


def _meta(top: Path, parts: tuple[str, ...]) -> list[str]:
    """Return the accelerator that a ``meta.yaml`` names."""
    file = top.joinpath(*parts, "meta.yaml")
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith("gpu:")]


def _device_name(name: str) -> str | None:
    if name.endswith((".yaml", ".yml")):
        return None
    try:
        return accelerator(name).name
    except DataError:
        try:
            return accelerator(name.upper()).name
        except DataError:
            return None
