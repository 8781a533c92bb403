"""YAML 1.2 as plain values: of a file, or of the text after ``--set FIELD=``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from capplan.schema import DataError, invalid_yaml

MOST_VALUES = 100_000
"""Most values in a scenario file, aliases written out."""


NO_VALUE = (ValueError, TypeError, RecursionError)
"""Errors of the YAML reader for an invalid date, an unhashable key, endless nesting."""


def _reader() -> Any:
    """Return a reader of YAML 1.2 that refuses a number with leading zeros.

    ``010`` is 10 in YAML 1.2 and 8 in YAML 1.1. Source: YAML 1.2.2, section 10.3.2, and the
    type repository of YAML 1.1, "Integer".
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import ConstructorError, SafeConstructor

    class Constructor(SafeConstructor):
        def construct_yaml_int(self, node: Any) -> Any:
            if re.fullmatch(r"[-+]?0[0-9_]+", node.value):
                problem = "a number that begins with 0 is octal in YAML 1.1: leave the 0 out"
                raise ConstructorError(None, None, f"{problem}, or quote it", node.start_mark)
            return super().construct_yaml_int(node)

    Constructor.add_constructor("tag:yaml.org,2002:int", Constructor.construct_yaml_int)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    return yaml


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML 1.2 file; DataError for syntax errors and duplicate keys."""
    from ruamel.yaml.error import YAMLError

    try:
        content = _reader().load(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as err:
        raise DataError("an existing file", where=path) from err
    except (OSError, YAMLError, *NO_VALUE) as err:
        raise invalid_yaml(err, where=path) from err
    _check_size(content, where=path)
    return content


def parse_value(text: str) -> Any:
    """Return the YAML value of a ``--set FIELD=VALUE`` text.

    >>> parse_value("3"), parse_value("null"), parse_value("fifo")
    (3, None, 'fifo')
    """
    from ruamel.yaml.error import YAMLError

    try:
        content = _reader().load(text)
    except (YAMLError, *NO_VALUE) as err:
        problem = getattr(err, "problem", None)
        raise DataError(
            f"a YAML value ({problem})" if problem else "a YAML value", value=text
        ) from err
    _check_size(content, where=None)
    return content


def _check_size(content: Any, *, where: object) -> None:
    """Raise DataError for content that is endless by aliases, or too large."""
    left, open_parts = MOST_VALUES, [content]
    while open_parts:
        part = open_parts.pop()
        left -= 1
        if left < 0:
            raise DataError(f"at most {MOST_VALUES:,} values, aliases written out", where=where)
        if isinstance(part, dict | list):
            open_parts.extend(part.values() if isinstance(part, dict) else part)
