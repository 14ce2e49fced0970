"""The ``format`` values of JSON schemas that are enforced: a grammar for the inside of the string, and its lengths.

Each grammar gives a part of what the format allows, every text of it valid: no leap days, no leap seconds, addresses
without quoted parts.
"""

from typing import Final

from attrs import frozen


@frozen
class Format:
    """``expression`` refers to no rule. Lengths in characters."""

    expression: str
    least: int
    most: int


_HEX: Final = "[0-9a-f]"
_DATE: Final = (
    '[12] [0-9]{3} "-" (("0" [13578] | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_CLOCK: Final = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME: Final = f'{_CLOCK} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_CLOCK})'
_LABEL: Final = "[a-z0-9] ([a-z0-9-]{0,22} [a-z0-9])?"
_HOST: Final = f'{_LABEL} ("." {_LABEL}){{1,3}}'
_OCTET: Final = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9])'
_GROUP: Final = f"{_HEX}{{1,4}}"
_COUNT: Final = "[1-9] [0-9]{0,3}"

FORMATS: Final = {
    "date": Format(_DATE, 10, 10),
    "time": Format(_TIME, 9, 21),
    "date-time": Format(f'{_DATE} "T" {_TIME}', 20, 32),
    "duration": Format(f'"P" ({_COUNT} [YMWD] | {_COUNT} "D" "T" {_COUNT} [HMS] | "T" {_COUNT} [HMS])', 3, 12),
    "uuid": Format(f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}', 36, 36),
    "ipv4": Format(' "." '.join([_OCTET] * 4), 7, 15),
    "ipv6": Format(
        f'({_GROUP} ":"){{7}} {_GROUP} | ({_GROUP} ":"){{1,6}} ":" {_GROUP} | "::" {_GROUP} (":" {_GROUP}){{0,5}}',
        3,
        39,
    ),
    "hostname": Format(_HOST, 3, 99),
    "email": Format(f'[a-z0-9] [a-z0-9_+-]{{0,31}} ("." [a-z0-9_+-]{{1,32}})? "@" {_HOST}', 5, 164),
    "uri": Format(
        f'[a-z] [a-z0-9+.-]{{1,9}} "://" {_HOST} (":" {_COUNT})? ("/" [A-Za-z0-9._~-]{{0,32}}){{0,4}}'
        ' ("?" [A-Za-z0-9._~=&-]{0,32})? ("#" [A-Za-z0-9._~-]{0,32})?',
        8,
        10 + 3 + 99 + 5 + 132 + 33 + 33,
    ),
}

REFUSED_FORMATS: Final = frozenset(
    {"idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template"}
    | {"json-pointer", "relative-json-pointer", "regex"}
)
"""Formats of the standard that are not enforced. Any other name means nothing to the standard and is ignored."""
