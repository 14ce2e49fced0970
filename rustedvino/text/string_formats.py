"""The ``format`` values of JSON schemas that are enforced, each as a pattern.

Each gives a part of what the format allows, every text of it valid: no leap days, no leap seconds, addresses without
quoted parts.
"""

from typing import Final

from rustedvino.text.patterns import Body, parse_pattern

_DATE: Final = (
    r"[12]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME: Final = rf"{_CLOCK}:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+\-]{_CLOCK})"
_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,22}[a-z0-9])?"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL}){{1,3}}"
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]\d|\d)"
_GROUP: Final = "[0-9a-f]{1,4}"
_COUNT: Final = r"[1-9]\d{0,3}"

_PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_COUNT}[YMWD]|{_COUNT}DT{_COUNT}[HMS]|T{_COUNT}[HMS])",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": f"(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}:{_GROUP}|::{_GROUP}(?::{_GROUP}){{0,5}})",
    "hostname": _HOST,
    "email": rf"[a-z0-9][a-z0-9_+\-]{{0,31}}(?:\.[a-z0-9_+\-]{{1,32}})?@{_HOST}",
    "uri": rf"[a-z][a-z0-9+.\-]{{1,9}}://{_HOST}(?::{_COUNT})?(?:/[A-Za-z0-9._~\-]{{0,32}}){{0,4}}"
    r"(?:\?[A-Za-z0-9._~=&\-]{0,32})?(?:#[A-Za-z0-9._~\-]{0,32})?",
}
FORMATS: Final[dict[str, Body]] = {name: parse_pattern(f"^{pattern}$") for name, pattern in _PATTERNS.items()}

REFUSED_FORMATS: Final = frozenset(
    {"idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template"}
    | {"json-pointer", "relative-json-pointer", "regex"}
)
"""Formats of the standard that are not enforced. Any other name means nothing to the standard and is ignored."""
