"""The last line of defence of the log: what looks like a credential is masked, whoever logged it."""

import re
from collections.abc import Iterable
from typing import Final

from attrs import define, field, frozen

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 8
"""Shorter values are not searched for: they would mask ordinary words."""

_NAME: Final = (
    r"(?:api[-_. ]?keys?(?:\[\d+\])?|(?:access|auth|refresh|hf)[-_]?tokens?|secrets?(?:[-_]?keys?)?"
    r"|passw(?:or)?d|passphrase|cookie)"
)
"""How a name ends whose value is a credential. Not anchored: what stands before it does not matter."""
_QUOTE: Final = r"""(?:\\*["'])?"""
_IS: Final = rf"""(?:{_QUOTE}\s*[:=]\s*b?{_QUOTE}|\\*["']\s*,\s*b?\\*["']|\.(?=\S{{{MIN_SECRET_CHARS}}}))"""
"""Between a name and its value: `=`, `": "`, the `", b"` of a pair, the dot of a WebSocket protocol's name."""
_VALUE: Final = r"""(?:(?<=["'])[^"'\\\n]+|[^\s"'\\,;&)\]}\[({]+)"""


@frozen
class _Rule:
    """What to mask, tried only on texts that hold one of ``words``: most lines hold none, and that is cheap to see."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str


_NAME_WORDS: Final = ("api", "access", "auth", "refresh", "secret", "passw", "passphrase", "hf", "cookie")
_RULES: Final = (
    # Authorization: Bearer x, also another scheme.
    _Rule(
        ("authorization",),
        re.compile(rf"(?i)(authorization{_IS})(?:[\w-]+\s+)?{_VALUE}"),
        rf"\1{MASK}",
    ),
    _Rule(("bearer",), re.compile(rf"(?i)\b(bearer)\s+{_VALUE}"), rf"\1 {MASK}"),
    # "api_keys": ["x", "y"]
    _Rule(_NAME_WORDS, re.compile(rf"(?i)({_NAME}{_QUOTE}\s*[:=]\s*)[\[({{][^\])}}]*"), rf"\1[{MASK}"),
    # api_key=x, "x-api-key": "x", (b"x-api-key", b"x"), openai-insecure-api-key.x
    _Rule(_NAME_WORDS, re.compile(rf"(?i)({_NAME}{_IS})(?!\*\*\*){_VALUE}"), rf"\1{MASK}"),
    # https://user:password@host
    _Rule(("@",), re.compile(r"(://)[^/\s@\"']+@"), rf"\1{MASK}@"),
    # The usual shapes of keys, without anything that names them.
    _Rule(("sk-",), re.compile(r"\bsk-[^\s\"'\\,;&)\]}]{8,}"), MASK),
    _Rule(
        ("hf_", "ghp_", "gho_", "github_pat_", "xox"),
        re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|xox[abp]-)[A-Za-z0-9_-]{12,}"),
        MASK,
    ),
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
        lowered = text.lower()
        for rule in _RULES:
            if any(word in lowered for word in rule.words):
                text = rule.pattern.sub(rule.replacement, text)
        return text
