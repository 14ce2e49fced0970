"""Values as words: sizes, times, counts, and text of others made safe to show."""

import re
from typing import Any, Final

_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


def safe(text: str) -> str:
    """``text`` without what a terminal would obey instead of showing; line ends and tabs stay."""
    return _UNSAFE.sub("\ufffd", text)


def size(count: float | None) -> str:
    """Bytes in the unit that suits: ``1.5 GiB``; – for None."""
    if count is None:
        return "–"
    if abs(count) < 1024:
        return f"{count:.0f} B"
    count, unit = count / 1024, _UNITS[0]
    for larger in _UNITS[1:]:
        if abs(count) < 999.5:
            break
        count, unit = count / 1024, larger
    return f"{count:.0f} {unit}" if abs(count) >= 99.5 else f"{count:.1f} {unit}"


def duration(secs: float | None) -> str:
    """Seconds in at most two units: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``4 d 3 h``; – for None."""
    if secs is None:
        return "–"
    if secs < 9.95:
        return f"{secs:.1f} s"
    whole = round(secs)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s")
    if whole < 86400:
        return _two(whole, 3600, "h", 60, "min")
    return _two(whole, 86400, "d", 3600, "h")


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {large_name}" + (f" {rest} {small_name}" if rest else "")


def counted(count: int, noun: str) -> str:
    """``1 model``, ``2 models``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: "list[str] | tuple[str, ...]") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def shown(value: Any) -> str:
    """A JSON value on one line, for a person."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items()) or "none"
    return str(value)
