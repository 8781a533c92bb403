"""What the fields of a scenario declare: what each affects, and which names it refers to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo

from capplan.scenario.part import DERIVED, Affects, Part, Refers, is_derived


def walk(part: Part, path: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield the dotted path, declaration and value of every field of a part and of those in it.

    Entries of a list go by name, or by number where they have none.
    """
    for name, field in type(part).model_fields.items():
        here, value = f"{path}{name}", getattr(part, name)
        yield here, field, value
        entries = enumerate(value) if isinstance(value, tuple) else [("", value)]
        for key, inner in entries:
            if isinstance(inner, Part):
                label = (
                    f"{getattr(inner, 'name', None) or key}." if isinstance(value, tuple) else ""
                )
                yield from walk(inner, f"{here}.{label}")


def declared(
    kind: type[Part], effect: Affects | None = None, path: str = "", inside: tuple[type, ...] = ()
) -> Iterator[tuple[str, FieldInfo, Affects | None]]:
    """Yield every field that a kind of part can have, without entries: path, declaration, effect.

    A field that declares no effect has that of the field its part stands in.
    """
    for name, field in kind.model_fields.items():
        own = effect_of(field) or effect
        yield f"{path}{name}", field, own
        for inner in parts_of(field):
            if inner not in inside:
                yield from declared(inner, own, f"{path}{name}.", (*inside, kind))


def effects(kind: type[Part], path: str) -> frozenset[Affects | None]:
    """Return what a dotted path of a part affects, and everything below it; empty = unknown field.

    >>> from capplan.scenario.scenario import Scenario
    >>> [str(effect) for effect in effects(Scenario, "classes.chat.pool")]
    ['serving']
    >>> sorted(str(effect) for effect in effects(Scenario, "classes.chat.promises"))
    ['describing', 'judging', 'traffic']
    """
    kinds, own, last = {kind}, None, path.split(".")
    found: list[FieldInfo] = []
    is_entry = False
    for key in last:
        if is_entry:
            is_entry = False
            continue
        found = [k.model_fields[key] for k in kinds if key in k.model_fields]
        if not found:
            return frozenset()
        own = next((e for f in found if (e := effect_of(f))), own)
        kinds = {inner for f in found for inner in parts_of(f)}
        is_entry = bool(kinds) and any(_is_list(f.annotation) for f in found)
    below = {effect for inner in kinds for _, _, effect in declared(inner, own)}
    return frozenset({own} | below)


def derived_fields(part: Part) -> dict[str, Any]:
    """Return the fields that hold the word ``derived``, by dotted path, with their defaults."""
    return {
        path: field.default
        for path, field, value in walk(part)
        if is_derived(value) and _derivable(field)
    }


def _derivable(field: FieldInfo) -> bool:
    annotation: Any = field.annotation
    return any(isinstance(mark, Tag) and mark.tag == DERIVED for mark in _marks(annotation))


def narrowed(part: Part, kept: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Return the stated values of a part without what names entries that are not kept.

    ``kept`` holds names by list (``classes``, ``tenants``, ``pools``, …). An entry that is for
    others alone is left out; of an entry that is for several, the others' names are.
    """
    data: dict[str, Any] = {}
    for name in (n for n in type(part).model_fields if n in part.model_fields_set):
        value = _kept(part, name, kept)
        if isinstance(value, tuple):
            entries = [e for e in value if not isinstance(e, Part) or _concerns(e, name, kept)]
            data[name] = [narrowed(e, kept) if isinstance(e, Part) else e for e in entries]
        elif value is not None or getattr(part, name) is None:
            data[name] = narrowed(value, kept) if isinstance(value, Part) else value
    return data


def _concerns(entry: Part, listed_in: str, kept: Mapping[str, Collection[str]]) -> bool:
    """Return whether an entry of a list is kept: it names others neither as itself nor alone."""
    if listed_in in kept and getattr(entry, "name", None) not in kept[listed_in]:
        return False
    names = (name for name in type(entry).model_fields if getattr(entry, name))
    return all(_kept(entry, name, kept) for name in names)


def _kept(part: Part, name: str, kept: Mapping[str, Collection[str]]) -> Any:
    """Return the value of a field without the names in it that are not kept."""
    value = getattr(part, name)
    known = kept.get(refers_to(type(part).model_fields[name]) or "")
    if known is None or not value:
        return value
    if isinstance(value, str):
        return value if value in known else None
    if isinstance(value, dict):
        return {key: one for key, one in value.items() if key in known}
    return tuple(one for one in value if one in known)


def effect_of(field: FieldInfo) -> Affects | None:
    """Return what a field declares that it affects; None = what its part affects."""
    return next((mark for mark in field.metadata if isinstance(mark, Affects)), None)


def refers_to(field: FieldInfo) -> str | None:
    """Return the list of the scenario whose names a field holds; None if it holds no name."""
    annotation: Any = field.annotation
    marks = (*field.metadata, *_marks(annotation))
    return next((mark.to for mark in marks if isinstance(mark, Refers)), None)


def parts_of(field: FieldInfo) -> tuple[type[Part], ...]:
    """Return the kinds of part that a field can hold."""
    annotation: Any = field.annotation
    return _parts(annotation)


@cache
def _marks(annotation: Any) -> tuple[Any, ...]:
    own = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return (*own, *(mark for inner in get_args(annotation) for mark in _marks(inner)))


@cache
def _parts(annotation: Any) -> tuple[type[Part], ...]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (annotation,) if issubclass(annotation, Part) else ()
    found = [part for inner in get_args(annotation) for part in _parts(inner)]
    return tuple(dict.fromkeys(found))


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(a) for a in get_args(annotation))
