"""Raw rows as Arrow arrays of any type, and the numbers, flags and names in them.

Each value is checked on its own.
A number may be quoted, padded with blanks, or grouped in threes by commas (``"1,234"``), blanks or
apostrophes; grouped ones are counted. Whether commas group or are decimal signs, the column shows
(``0,5`` is not grouped, ``1,234,567`` is); if each reads both ways, token counts are grouped, since
they are whole, and other numbers are an error. A period may group token counts likewise. ``""``,
``nan``, ``null``, ``none``, ``na``, ``n/a`` and ``-`` mean missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capplan.schema import DataError

OK, MISSING, BAD = 0, 1, 2
MISSING_TEXT = ("", "nan", "null", "none", "na", "n/a", "nil", "-")
MOST_TOKENS = 1_000_000_000
PROBE_ROWS = 16
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_GROUPED = r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
_EITHER = r"^[+-]?[1-9]\d{0,2},\d{3}$"
_DECIMAL_COMMA = r"^[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+|\d{1,3}(\.\d{3})+,\d+)$"
"""Numbers with a comma: grouped, of either reading, and those with a decimal comma for sure."""
_SPACE = r"[ \x{a0}\x{2009}\x{202f}'\x{2019}]"
_SPACED = rf"^\s*[+-]?[1-9]\d{{0,2}}({_SPACE}\d{{3}})+([.,]\d*)?\s*$"
"""Blanks and apostrophes that group digits. Source: Unicode CLDR 47, "Numbers", group separators of
French (U+202F), Swedish (U+00A0) and Swiss German (U+2019)."""
_GROUPED_BY_PERIOD = r"^[1-9]\d{0,2}(\.\d{3})+$"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawBatch:
    """Rows under our column names with whatever type the file gave them."""

    columns: Mapping[str, Any]
    """Arrow arrays by column of :data:`capplan.schema.TRACE`, all ``rows`` long."""
    rows: int
    """Rows in the arrays."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Rows that are not in the arrays, by ledger reason."""
    drops: Any = None
    """Per row the ledger reason to drop it, or ``""``; None: no row is dropped."""
    decimal_commas: int = 0
    """Numbers with a decimal comma, which have a point now."""


def text_array(values: Iterable[Any]) -> Any:
    """Return scalars of any type as an Arrow array of text, for one parser."""
    texts = [_text(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # a lone surrogate, written as \ud800 in JSON
        clean = [t if t is None else t.encode("utf-8", "replace").decode() for t in texts]
        return pa.array(clean, pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return f"{type(value).__name__}"


def field_array(name: str, values: list[Any]) -> Any:
    """Return a column of ours as an Arrow array: lists for prefix ids, text for all else."""
    return block_array(values) if name == "prefix_blocks" else text_array(values)


def block_array(values: Iterable[Any]) -> Any:
    """Return lists of prefix ids as an Arrow list array; any other value is null."""
    lists = [v if isinstance(v, list) and v else None for v in values]
    for kind in (pa.int64(), pa.string()):
        try:
            return pa.array(lists, pa.list_(kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            continue
    texts = [None if v is None else text_array(v).to_pylist() for v in lists]
    return pa.array(texts, pa.list_(pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parsed:
    """Values and, per value, whether it is ``OK``, ``MISSING`` or ``BAD``."""

    data: npt.NDArray[Any]
    state: npt.NDArray[np.uint8]
    grouped: int = 0


def plain(array: Any) -> Any:
    """Return the array as one chunk, dictionaries decoded."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def numbers(array: Any, *, whole: bool = False) -> Parsed:
    """Return int64 values where all are whole, float64 otherwise.

    ``whole`` numbers have no decimals, so that a comma or period in them groups. Raises
    :class:`DataError` if a comma reads both ways.
    """
    array = plain(array)
    kind = array.type
    if is_text(kind):
        return _text_numbers(array, whole=whole)
    if pa.types.is_integer(kind):
        state = np.where(nulls(array), MISSING, OK).astype(np.uint8)
        filled = array.fill_null(0)
        target = pa.float64() if kind == pa.uint64() else pa.int64()
        return Parsed(data=filled.cast(target, safe=False).to_numpy(), state=state)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return _finite(values)
    state = np.where(nulls(array), MISSING, BAD).astype(np.uint8)
    return Parsed(data=np.zeros(len(array), np.int64), state=state)


def nulls(array: Any) -> npt.NDArray[np.bool_]:
    """Return where the array is null."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _finite(values: npt.NDArray[np.float64]) -> Parsed:
    state = np.where(np.isnan(values), MISSING, np.where(np.isinf(values), BAD, OK))
    good = np.where(state == OK, values, 0.0)
    return Parsed(data=good, state=state.astype(np.uint8))


def missing_text(text: Any) -> npt.NDArray[np.bool_]:
    """Return where trimmed text stands for a missing value."""
    known = pc.is_in(pc.utf8_lower(text), value_set=pa.array(MISSING_TEXT, text.type))
    mask: npt.NDArray[np.bool_] = known.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask | nulls(text)


def _text_numbers(array: Any, *, whole: bool) -> Parsed:
    if not array.null_count:
        plain_numbers = _cast_all(array)
        if plain_numbers is not None and not (whole and plain_numbers.data.dtype.kind == "f"):
            return plain_numbers
    text, spaced = _closed(pc.utf8_trim_whitespace(array))
    missing = missing_text(text)
    grouped = _like(text, _GROUPED)
    if whole and _is_grouped_by_period(text):
        grouped = _like(text, _GROUPED_BY_PERIOD)
        text = pc.if_else(grouped, pc.replace_substring(text, ".", ""), text)
    elif not whole and _has_decimal_commas(text, grouped):
        with_comma = pc.or_(grouped, _like(text, _DECIMAL_COMMA))
        text = pc.if_else(with_comma, _points(text), text)
        grouped = pc.and_not(grouped, grouped)
    else:
        text = pc.if_else(grouped, pc.replace_substring(text, ",", ""), text)
    shaped = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
    parsed = _cast(pc.if_else(shaped, text, "0"))
    good = shaped.to_numpy(zero_copy_only=False) & (parsed.state == OK)
    state = np.where(missing, MISSING, np.where(good, OK, BAD)).astype(np.uint8)
    n_grouped = int(pc.sum(grouped).as_py() or 0) + spaced
    return Parsed(data=parsed.data, state=state, grouped=n_grouped)


def _closed(text: Any) -> tuple[Any, int]:
    """Return text in which no blank or apostrophe groups the digits of a number, and how many did.

    >>> import pyarrow as pa
    >>> _closed(pa.array(["12 345", "1'234'567", "12 34"]))[0].to_pylist()
    ['12345', '1234567', '12 34']
    """
    spaced = _like(text, _SPACED)
    found = int(pc.sum(spaced).as_py() or 0)
    if not found:
        return text, 0
    return pc.if_else(spaced, pc.replace_substring_regex(text, _SPACE, ""), text), found


def _like(text: Any, pattern: str) -> Any:
    return pc.fill_null(pc.match_substring_regex(text, pattern), False)


def _is_grouped_by_period(text: Any) -> bool:
    """Return whether all periods of whole numbers group: 1.234 does, as 87 beside 1.000 shows."""
    dotted = _like(text, r"\.")
    grouped = text.filter(_like(text, _GROUPED_BY_PERIOD))
    if not len(grouped) or len(grouped) < pc.sum(dotted).as_py():
        return False
    zeros = _like(grouped, r"^\d{1,3}\.000$")
    return not pc.all(zeros).as_py() or not pc.all(pc.or_(dotted, _like(text, "^$"))).as_py()


def _has_decimal_commas(text: Any, grouped: Any) -> bool:
    """Return whether commas are decimal signs; DataError if each of them reads both ways."""
    either = _like(text, _EITHER)
    if pc.any(pc.and_not(grouped, either)).as_py():
        return False
    if pc.any(_like(text, _DECIMAL_COMMA)).as_py():
        return True
    if pc.any(either).as_py():
        example = text.filter(either)[0].as_py()
        readings = f"{example.replace(',', '')} or {example.replace(',', '.')}"
        raise DataError("numbers whose comma reads one way", value=f"{example}: {readings}")
    return False


def decimal_commas(array: Any) -> int:
    """Return how many values of a text column must be read with a decimal comma."""
    return int(pc.sum(_like(array, _DECIMAL_COMMA)).as_py() or 0) if is_text(array.type) else 0


def pointed(array: Any) -> tuple[Any, int]:
    """Return text in which the comma of each number is a decimal point, and how many there are."""
    closed, _ = _closed(array)
    with_comma = _like(closed, r"^\s*[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+\s*$")
    return pc.if_else(with_comma, _points(closed), array), int(pc.sum(with_comma).as_py() or 0)


def _points(text: Any) -> Any:
    return pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")


def _cast(text: Any) -> Parsed:
    """Return the numbers of texts that all have the form of a number."""
    return _cast_all(text) or _finite(np.array([float(t) for t in text.to_pylist()]))


def _cast_all(text: Any) -> Parsed | None:
    """Return the numbers if Arrow reads every text as one, else None.

    Hexadecimal numbers, which Arrow reads too, are refused.
    """
    whole = casted(text, pa.int64())
    if whole is not None:
        if pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():
            return None
        return Parsed(data=whole.to_numpy(), state=np.zeros(len(text), np.uint8))
    real = casted(text, pa.float64())
    return None if real is None else _finite(real.to_numpy())


def casted(text: Any, target: Any) -> Any | None:
    """Return the array cast to a type, or None when a value does not fit.

    A few values are tried first: Arrow continues, slowly, after the first failure.
    """
    try:
        text[:PROBE_ROWS].cast(target)
        return text.cast(target)
    except pa.ArrowInvalid:
        return None


def token_counts(array: Any) -> Parsed:
    """Return int64 token counts; a broken or absurd one (above 10⁹) is ``BAD``."""
    parsed = numbers(array, whole=True)
    values, state = parsed.data, parsed.state
    if values.dtype.kind == "f":
        state = np.where((state == OK) & (values != np.floor(values)), BAD, state)
    state = np.where((state == OK) & (np.abs(values) > MOST_TOKENS), BAD, state)
    whole = np.where(state == OK, values, 0).astype(np.int64)
    return Parsed(data=whole, state=state.astype(np.uint8), grouped=parsed.grouped)


def flags(array: Any) -> Parsed:
    """Return booleans: true/false, yes/no, 1/0."""
    array = plain(array)
    if pa.types.is_boolean(array.type):
        state = np.where(nulls(array), MISSING, OK).astype(np.uint8)
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        return Parsed(data=values, state=state)
    texts = [str(v).strip().lower() if v is not None else "" for v in array.to_pylist()]
    known = {**dict.fromkeys(("true", "t", "yes", "y", "1", "1.0"), OK)}
    known |= dict.fromkeys(("false", "f", "no", "n", "0", "0.0"), OK)
    known |= dict.fromkeys(MISSING_TEXT, MISSING)
    state = np.array([known.get(t, BAD) for t in texts], np.uint8)
    values = np.array([t in ("true", "t", "yes", "y", "1", "1.0") for t in texts], np.bool_)
    return Parsed(data=values, state=state)


def labels(array: Any) -> Any:
    """Return names as an Arrow text array, null where missing."""
    array = plain(array)
    if pa.types.is_nested(array.type):
        return pa.nulls(len(array), pa.string())
    text = array if is_text(array.type) else array.cast(pa.string())
    text = pc.utf8_trim_whitespace(text.cast(pa.string()))
    absent = missing_text(text) & ~nulls(text)
    return pc.if_else(pa.array(absent), None, text) if absent.any() else text
