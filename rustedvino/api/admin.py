"""Bodies and queries of the admin routes. Unlike elsewhere, an unknown field is an error: a misspelt setting that is
ignored would look as if it had been applied."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

from attrs import frozen

from rustedvino.api.converter import Within, structure
from rustedvino.api.errors import bad_request, printable, shown

__all__ = [
    "AddRequest",
    "LoadRequest",
    "PreloadRequest",
    "ResizeRequest",
    "read_add",
    "read_load",
    "read_patch",
    "read_preload",
    "read_resize",
    "refuse_unknown",
]

MAX_GB: Final = 2**20
_NUMBER: Final = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?", re.ASCII)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


@frozen
class AddRequest:
    """``settings`` are those of an entry of ``models``, not yet checked."""

    model_id: str
    settings: Mapping[str, Any]


@frozen
class LoadRequest:
    """``force`` skips the grace window and may choose busy models; ``kv_cache_gb`` replaces the configured pool until
    the model is unloaded; 0 = sized automatically."""

    force: bool = False
    kv_cache_gb: Annotated[float, Within(0, MAX_GB)] | None = None


@frozen
class ResizeRequest:
    """``kv_cache_gb`` 0 = sized automatically."""

    kv_cache_gb: Annotated[float, Within(0, MAX_GB)]


@frozen
class PreloadRequest:
    """Either the ids, or those that are loaded now."""

    model_ids: tuple[str, ...] | None = None
    from_live: bool = False


@frozen
class _Named:
    model_id: str


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str = "field") -> None:
    """Raise ApiError naming the first of ``given`` that is not ``known``, and the nearest that is."""
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name.casefold()[:200], names, n=1, cutoff=0.6)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(names)}" if names else ""
            raise bad_request(f"'{printable(name)}' is not a known {what}{hint}", name, "unknown_parameter")


def read_add(body: Mapping[str, Any], known: Iterable[str]) -> AddRequest:
    """``model_id`` and, beside it, fields of a model's entry, of which ``known`` are the names. Raises ApiError."""
    refuse_unknown(body, ["model_id", *known])
    named = structure(dict(body), _Named)
    return AddRequest(named.model_id, {name: value for name, value in body.items() if name != "model_id"})


def read_patch(body: Mapping[str, Any], known: Iterable[str]) -> Mapping[str, Any]:
    """Fields of a model's entry; null clears one. Raises ApiError."""
    refuse_unknown(body, known)
    if not body:
        raise bad_request("The body names no field to change.")
    if "kind" in body:
        raise bad_request(
            "'kind' cannot be changed: deregister the model and add it again", "kind", "immutable_parameter"
        )
    return body


def read_load(body: Mapping[str, Any], query: Mapping[str, str]) -> LoadRequest:
    """A load, or the preview of one: each field from the query or the body. Raises ApiError."""
    refuse_unknown(body, _LOAD_READERS)
    refuse_unknown(query, _LOAD_READERS, "query parameter")
    fields = dict(body)
    for name, text in query.items():
        fields[name] = _LOAD_READERS[name](text)
        if body.get(name) not in (None, fields[name]):
            raise bad_request(f"'{name}' is given in the query and, differently, in the body", name)
    return structure(fields, LoadRequest)


def read_resize(body: Mapping[str, Any]) -> ResizeRequest:
    """Raises ApiError."""
    refuse_unknown(body, ["kv_cache_gb"])
    return structure(dict(body), ResizeRequest)


def read_preload(body: Mapping[str, Any]) -> PreloadRequest:
    """Raises ApiError, also when both or neither of the two are given."""
    refuse_unknown(body, ["model_ids", "from_live"])
    wanted = structure(dict(body), PreloadRequest)
    if (wanted.model_ids is not None) == wanted.from_live:
        raise bad_request("Give either 'model_ids' or 'from_live': true.", "model_ids")
    seen: set[str] = set()
    for index, model_id in enumerate(wanted.model_ids or ()):
        if model_id in seen:
            raise bad_request(f"'model_ids[{index}]' is listed twice: {shown(model_id)}", f"model_ids[{index}]")
        seen.add(model_id)
    return wanted


def _flag(text: str) -> bool:
    if text.casefold() not in _FLAGS:
        raise bad_request(f"'force' must be true or false, but it is {shown(text)}.", "force")
    return _FLAGS[text.casefold()]


def _size(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise bad_request(f"'kv_cache_gb' must be a number, but it is {shown(text)}.", "kv_cache_gb")
    return float(text)


_LOAD_READERS: Final[Mapping[str, Callable[[str], Any]]] = {"force": _flag, "kv_cache_gb": _size}
