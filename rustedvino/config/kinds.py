"""The kinds of value a setting may have: each describes itself and reads a JSON value or records why not."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from attrs import field, frozen

from rustedvino.config.problems import INVALID, Invalid, JsonObject, Reading, join, nearest, show, suggestion

INT_MAX: Final = 2**31 - 1
TEXT_MAX_CHARS: Final = 4096
MODEL_ID_MAX_BYTES: Final = 255
TEMPLATE_MAX_BYTES: Final = 4 * 2**20

KEY_NAMES: Final = frozenset({"api_keys", "admin_api_keys", "keys", "api_key", "admin_api_key", "admin_keys"})
"""Names under which somebody might write keys into the config."""

_DEVICE: Final = re.compile(r"(CPU|GPU|NPU)(\.\d{1,3}){0,2}")
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\.?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")

TextRule = Callable[[str], str | None]
"""Says what is wrong with a text, to follow the path in a message; None when it is fine."""


class Kind(Protocol):
    """What a setting's value must be."""

    def describe(self) -> str:
        """The kind in words, for the documentation and for "must be …"."""
        ...

    def read(self, value: object, where: str, reading: Reading) -> object:
        """The value as the settings hold it; `INVALID` after its problems were recorded."""
        ...


def _refuse(kind: Kind, value: object, where: str, reading: Reading) -> Invalid:
    return reading.problem(where, f"must be {kind.describe()}, got {show(value)}")


@frozen
class Boolean:
    """JSON true or false."""

    def describe(self) -> str:
        return "true or false"

    def read(self, value: object, where: str, reading: Reading) -> bool | Invalid:
        return value if isinstance(value, bool) else _refuse(self, value, where, reading)


@frozen
class Integer:
    """A whole number between two bounds, both included."""

    minimum: int
    maximum: int = INT_MAX

    def describe(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    def read(self, value: object, where: str, reading: Reading) -> int | Invalid:
        # bool is an int to Python, not to a reader of JSON
        if isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum:
            return value
        return _refuse(self, value, where, reading)


@frozen
class Number:
    """A number up to ``maximum``; ``above`` excludes the lower bound itself."""

    minimum: float
    maximum: float
    above: bool = False

    def describe(self) -> str:
        if self.above:
            return f"a number above {self.minimum:g} up to {self.maximum:.12g}"
        return f"a number from {self.minimum:g} to {self.maximum:.12g}"

    def read(self, value: object, where: str, reading: Reading) -> float | Invalid:
        fits = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.minimum <= value <= self.maximum
            and not (self.above and value == self.minimum)
        )
        # compared before the conversion: an int too large for a float would overflow
        return float(value) if fits and isinstance(value, int | float) else _refuse(self, value, where, reading)


@frozen
class Choice:
    """One of a few texts, given as a ``Literal`` type."""

    literal: object

    @property
    def options(self) -> tuple[str, ...]:
        return get_args(self.literal)

    def describe(self) -> str:
        return "one of " + ", ".join(f'"{option}"' for option in self.options)

    def read(self, value: object, where: str, reading: Reading) -> str | Invalid:
        if isinstance(value, str) and value in self.options:
            return value
        hint = suggestion(value, self.options) if isinstance(value, str) else ""
        return reading.problem(where, f"must be {self.describe()}, got {show(value)}{hint}")


def plain_text_fault(text: str) -> str | None:
    """What keeps a text from being used as a name, header or path: empty, too long, or unprintable."""
    if not text:
        return "must not be empty"
    if len(text) > TEXT_MAX_CHARS:
        return f"must be at most {TEXT_MAX_CHARS} characters long"
    for char in text:
        if char < " " or "\x7f" <= char <= "\x9f":
            return f"must not contain the control character U+{ord(char):04X}"
        if "\ud800" <= char <= "\udfff":
            return f"must not contain the lone surrogate U+{ord(char):04X}"
    return None


def model_id_fault(model_id: str) -> str | None:
    """Why a text cannot be a model id, that is the plain name of a folder; None when it can."""
    fault = plain_text_fault(model_id)
    if fault is None and set(model_id) & set("/\\:"):
        fault = "must be a plain folder name without / \\ or :"
    elif fault is None and not model_id.strip("."):
        fault = "must not consist of dots only"
    elif fault is None and model_id != model_id.strip():
        fault = "must not begin or end with white space"
    elif fault is None and len(model_id.encode()) > MODEL_ID_MAX_BYTES:
        fault = f"must be at most {MODEL_ID_MAX_BYTES} bytes in UTF-8"
    return None if fault is None else f"a model id {fault}"


def device_fault(device: str) -> str | None:
    """Why a text cannot name an OpenVINO device; None when it can."""
    if _DEVICE.fullmatch(device):
        return None
    hint = "" if not _DEVICE.fullmatch(device.upper()) else f'; did you mean "{device.upper()}"?'
    return f'must be a device such as "CPU", "GPU", "GPU.1" or "NPU", got {show(device)}{hint}'


def origin_fault(origin: str) -> str | None:
    """Why a text cannot be a web origin; None when it can."""
    if _ORIGIN.fullmatch(origin):
        return None
    return f'must be one origin such as "https://chat.example.com", without path or wildcard, got {show(origin)}'


def bind_addr_fault(address: str) -> str | None:
    """Why a text cannot be an address to listen on; None when it can."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        # digits and dots alone would be a mistyped IP address
        if not _HOST_NAME.fullmatch(address) or not re.search("[A-Za-z]", address):
            return f"must be an IP address or a host name, without brackets or port, got {show(address)}"
    return None


@frozen
class Text:
    """A printable, non-empty text that passes ``fault``."""

    words: str = "a text"
    fault: TextRule = plain_text_fault

    def describe(self) -> str:
        return self.words

    def read(self, value: object, where: str, reading: Reading) -> str | Invalid:
        if not isinstance(value, str):
            return _refuse(self, value, where, reading)
        fault = plain_text_fault(value) or self.fault(value)
        return value if fault is None else reading.problem(where, fault)


@frozen
class PathTo:
    """A path; a relative one starts at the config's folder.

    ``target`` says what must be there: ``folder``, ``file``, ``template`` (a readable text file under the
    models folder or the config's folder, returned with links resolved) or ``anything``, which need not exist.
    """

    target: Literal["folder", "file", "template", "anything"]

    def describe(self) -> str:
        return "a path to a folder" if self.target in ("folder", "anything") else "a path to a file"

    def read(self, value: object, where: str, reading: Reading) -> Path | Invalid:
        if not isinstance(value, str):
            return _refuse(self, value, where, reading)
        fault = plain_text_fault(value)
        path = reading.folder / value
        if fault is None:
            fault = _template_fault(path, reading) if self.target == "template" else _target_fault(path, self.target)
        if fault is not None:
            return reading.problem(where, fault)
        return path.resolve() if self.target == "template" else path


def _target_fault(path: Path, target: str) -> str | None:
    try:
        if target == "folder" and not path.is_dir():
            return f"{path} is not an existing folder"
        if target == "file" and not path.is_file():
            return f"{path} is not an existing file"
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    return None


def _template_fault(path: Path, reading: Reading) -> str | None:
    try:
        resolved = path.resolve(strict=True)
        roots = [root.resolve() for root in (reading.models_dir, reading.folder) if root is not None]
        if not any(resolved.is_relative_to(root) for root in roots):
            return f"{path} is outside of models_dir and of the config's folder"
        if resolved.name.endswith(".keys.json"):
            return f"{path} is a keys file"
        if not resolved.is_file():  # a pipe or a device would block the read below
            return f"{path} is not a file"
        with resolved.open("rb") as stream:
            content = stream.read(TEMPLATE_MAX_BYTES + 1)
        if len(content) > TEMPLATE_MAX_BYTES:
            return f"{path} is larger than {TEMPLATE_MAX_BYTES} bytes"
        content.decode()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (RuntimeError, ValueError) as error:  # a loop of links; not UTF-8
        return f"{path} cannot be read: {error}"
    return None


@frozen
class ListOf:
    """A list without repetitions, as a tuple."""

    item: Kind
    words: str

    def describe(self) -> str:
        return f"a list of {self.words}"

    def read(self, value: object, where: str, reading: Reading) -> tuple[object, ...] | Invalid:
        if not isinstance(value, list):
            return _refuse(self, value, where, reading)
        items: list[object] = []
        for index, entry in enumerate(value):
            item = self.item.read(entry, f"{where}[{index}]", reading)
            if item is not INVALID and item in items:
                item = reading.problem(f"{where}[{index}]", f"is listed twice: {show(entry)}")
            items.append(item)
        return INVALID if INVALID in items else tuple(items)


@frozen
class MapOf:
    """An object with free names, each of which passes ``name_fault``."""

    item: Kind
    words: str
    name_fault: TextRule

    def describe(self) -> str:
        return f"an object of {self.words}"

    def read(self, value: object, where: str, reading: Reading) -> dict[str, object] | Invalid:
        if not isinstance(value, dict):
            return _refuse(self, value, where, reading)
        _tell_repeated(value, where, reading)
        result: dict[str, object] = {}
        for name, entry in value.items():
            place = join(where, name)
            fault = self.name_fault(name)
            if fault is not None:
                reading.problem(place, fault)
                result[name] = INVALID
                continue
            result[name] = self.item.read(entry, place, reading)
        return INVALID if INVALID in result.values() else result


@frozen
class PluginScalar:
    """A value of an OpenVINO property: text, number or boolean."""

    def describe(self) -> str:
        return "a text, a number, true or false"

    def read(self, value: object, where: str, reading: Reading) -> str | bool | int | float | Invalid:
        match value:
            case bool():
                return value
            case int() | float() if -INT_MAX <= value <= INT_MAX:
                return value
            case str():
                fault = plain_text_fault(value)
                return value if fault is None else reading.problem(where, fault)
            case _:
                return _refuse(self, value, where, reading)


class Unset:
    """The type of `UNSET`."""


UNSET: Final = Unset()
"""Stands for no value where None is one."""


@frozen
class Setting:
    """A row of the table: everything that is known of one setting."""

    name: str
    kind: Kind
    default: object = field(kw_only=True, default=UNSET)
    """The value as it would stand in the file; UNSET when the setting is required. None allows null."""
    unit: str = field(kw_only=True, default="")
    meaning: str = field(kw_only=True)
    live: bool = field(kw_only=True, default=False)
    """Whether a change of a loaded model's entry takes effect without loading it again."""
    example: object = field(kw_only=True, default=UNSET)
    """The value shown in the example file; UNSET shows the default."""

    @property
    def required(self) -> bool:
        return self.default is UNSET

    @property
    def nullable(self) -> bool:
        return self.default is None

    def describe(self) -> str:
        return self.kind.describe() + (" or null" if self.nullable else "")

    def read(self, value: object, where: str, reading: Reading) -> object:
        if value is None and self.nullable:
            return None
        return self.kind.read(value, where, reading)


@frozen
class Group:
    """An object whose names are the rows of a table; becomes one settings value made by ``build``."""

    rows: tuple[Setting, ...]
    build: Callable[..., object]
    words: str
    foreign: Mapping[str, str] = field(factory=dict)
    """Names that belong elsewhere, with the sentence that says where."""

    def describe(self) -> str:
        return self.words

    def read(self, value: object, where: str, reading: Reading) -> object:
        if not isinstance(value, dict):
            return _refuse(self, value, where, reading)
        before = len(reading.problems)
        values = self.read_values(value, where, reading)
        return self.build(**values) if len(reading.problems) == before else INVALID

    def read_values(self, raw: Mapping[str, object], where: str, reading: Reading) -> dict[str, object]:
        """The values given in ``raw`` by name; one with a problem is left out."""
        _tell_repeated(raw, where, reading)
        known = [row.name for row in self.rows]
        for name in raw:
            if name not in known:
                reading.problem(join(where, name), self._unknown(name, known, reading))
        values: dict[str, object] = {}
        for row in self.rows:
            if row.name in raw:
                value = row.read(raw[row.name], join(where, row.name), reading)
                if value is not INVALID:
                    values[row.name] = value
            elif row.required:
                reading.problem(join(where, row.name), f"is required: {row.meaning}")
        return values

    def _unknown(self, name: str, known: Iterable[str], reading: Reading) -> str:
        if name.casefold() in KEY_NAMES:
            return f"keys are never read from the config: move them to {reading.keys_name}"
        if name in self.foreign:
            return f"is {self.foreign[name]}"
        near = nearest(name, known)
        return "is not a setting" if near is None else f'is not a setting; did you mean "{near}"?'


def _tell_repeated(raw: Mapping[str, object], where: str, reading: Reading) -> None:
    if isinstance(raw, JsonObject):
        for name in raw.repeated:
            reading.problem(join(where, name), "is written more than once")
