"""The last line of defence of the log: what looks like a credential is masked, whoever logged it."""

import re
from collections.abc import Iterable
from typing import Final

from attrs import define, field

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 8
"""Shorter values are not searched for: they would mask ordinary words."""

_NAME: Final = (
    r"(?:[\w.-]*api[-_. ]?keys?(?:\[\d+\])?|[\w-]*access[-_]?tokens?|[\w-]*auth[-_]?tokens?|[\w-]*refresh[-_]?tokens?"
    r"|[\w-]*secrets?(?:[-_]?keys?)?|[\w-]*passw(?:or)?d|[\w-]*passphrase|hf[-_]?tokens?|(?:set-)?cookie)"
)
_QUOTE: Final = r"""(?:\\*["'])?"""
_RULES: Final = (
    # Authorization: Bearer x, also as a pair of a header list, also another scheme.
    (
        re.compile(rf"(?i)\b((?:proxy-)?authorization{_QUOTE}\s*[:=,]\s*b?{_QUOTE})(?:[\w-]+\s+)?[^\s\"'\\,;)\]}}]+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer)\s+[^\s\"'\\,;)\]}]+"), rf"\1 {MASK}"),
    # "api_keys": ["x", "y"]
    (re.compile(rf"(?i)\b({_NAME}{_QUOTE}\s*[:=]\s*)[\[({{][^\])}}]*"), rf"\1[{MASK}"),
    # api_key=x, "x-api-key": "x", (b"x-api-key", b"x"), openai-insecure-api-key.x
    (
        re.compile(rf"(?i)\b({_NAME}{_QUOTE}\s*[:=.,]\s*b?{_QUOTE})(?!\*\*\*)[^\s\"'\\,;&)\]}}\[({{]+"),
        rf"\1{MASK}",
    ),
    # https://user:password@host
    (re.compile(r"(://)[^/\s@\"']+@"), rf"\1{MASK}@"),
    # The usual shapes of keys, without anything that names them.
    (re.compile(r"\b(?:sk|pk|rk|rv)-[A-Za-z0-9_-]{8,}"), MASK),
    (re.compile(r"\b(?:hf|ghp|gho|github_pat|xox[abp])[_-][A-Za-z0-9_-]{12,}"), MASK),
)


@define(eq=False)
class Redactor:
    """Masks credentials in a text. ``hide`` adds exact values, such as the server's own keys."""

    _known: re.Pattern[str] | None = field(default=None, init=False)

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these values wherever they stand, in place of those given before. Short ones are left out."""
        values = sorted({value for value in secrets if len(value) >= MIN_SECRET_CHARS}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, values))) if values else None

    def __call__(self, text: str) -> str:
        """The text with every credential replaced by MASK."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text
