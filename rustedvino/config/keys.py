"""API keys: their file, what may stand in it, and finding a key that a client shows."""

import codecs
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, Self

from attrs import define, field, frozen

from rustedvino.config.load import parse_json_object, without_comments
from rustedvino.config.problems import ConfigError, ConfigProblem, JsonObject, join, nearest

KEYS_MAX_BYTES: Final = 2**20
MAX_KEYS: Final = 1000
"""Each request is compared with all of them."""
MAX_KEY_CHARS: Final = 512
SHORT_KEY_CHARS: Final = 20
"""Shorter ones are warned of: they can be guessed."""

KeyList = Literal["api_keys", "admin_api_keys"]
INFERENCE_LIST: Final[KeyList] = "api_keys"
ADMIN_LIST: Final[KeyList] = "admin_api_keys"
_LISTS: Final[tuple[KeyList, ...]] = (INFERENCE_LIST, ADMIN_LIST)

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_NO_OBJECT: Final = re.compile(rb"""\s*["\[\-0-9A-Za-z]""")
_HARMLESS_NAME: Final = re.compile(r"[A-Za-z_]{1,40}")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@frozen
class ApiKey:
    """One key. An admin key opens whatever an inference key opens; its text is left out of its repr."""

    text: str = field(repr=False)
    admin: bool = False
    digest: bytes = field(init=False, repr=False, eq=False)

    @digest.default
    def _digest_default(self) -> bytes:
        return _digest(self.text)


@frozen
class KeySet:
    """The keys of one reading of a file, each once. ``warnings`` name no key."""

    keys: tuple[ApiKey, ...]
    warnings: tuple[str, ...] = ()

    @property
    def admin_count(self) -> int:
        """How many keys open the admin routes."""
        return sum(key.admin for key in self.keys)

    def find(self, shown: str) -> ApiKey | None:
        """The key that a client shows, None for an unknown one.

        Takes as long for a wrong key as for the first or the last right one: digests of one length are compared, all
        of them, each in constant time.
        """
        wanted = _digest(shown[: MAX_KEY_CHARS + 1])
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, wanted):
                found = key
        return found


def load_keys(path: str | os.PathLike[str]) -> KeySet:
    """Read a keys file: ``{"api_keys": […], "admin_api_keys": […]}``, UTF-8, a byte order mark is skipped.

    Raises ConfigError with all its problems, none of which shows a value; FileNotFoundError when there is none.
    """
    source = os.path.abspath(path)
    try:
        content, mode = _read(source)
        found = parse_keys(content)
    except ConfigError as error:
        raise ConfigError(error.problems, source) from None
    return KeySet(found.keys, (*_mode_warnings(mode), *found.warnings))


def parse_keys(content: bytes) -> KeySet:
    """The keys of a file with this content. Raises ConfigError."""
    if _NO_OBJECT.match(content.removeprefix(codecs.BOM_UTF8)):
        raise _fault("the file must hold one JSON object")  # without showing what it holds
    raw = without_comments(parse_json_object(content))
    problems = [*_name_problems(raw)]
    texts: dict[KeyList, list[str]] = {}
    for name in _LISTS:
        texts[name] = _read_list(name, raw.get(name, []), problems)
    if problems:
        raise ConfigError(problems)
    admin = dict.fromkeys(texts[ADMIN_LIST])
    inference = [text for text in texts[INFERENCE_LIST] if text not in admin]
    if len(inference) + len(admin) > MAX_KEYS:
        raise _fault(f"the file holds more than {MAX_KEYS} keys")
    if not inference and not admin:
        raise _fault("the file holds no key; add one, or remove the file to serve this machine alone without keys")
    keys = (*(ApiKey(text) for text in inference), *(ApiKey(text, admin=True) for text in admin))
    return KeySet(keys, tuple(_warnings(texts)))


def _read(path: str) -> tuple[bytes, int]:
    """Content and mode of a regular file, both of the same one. Never waits for a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _fault("the file is not a regular file")
            with open(descriptor, "rb", closefd=False) as stream:
                content = stream.read(KEYS_MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _fault(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > KEYS_MAX_BYTES:
        raise _fault(f"the file is larger than {KEYS_MAX_BYTES} bytes")
    return content, stat.S_IMODE(status.st_mode)


def _fault(message: str) -> ConfigError:
    return ConfigError([ConfigProblem("", message)])


def _name_problems(raw: JsonObject) -> Iterable[ConfigProblem]:
    for name in raw.repeated:
        if name in _LISTS:
            yield ConfigProblem(name, "is written more than once")
    for index, name in enumerate(raw):
        if name in _LISTS:
            continue
        # The name itself may be a key that was put in the wrong place: only what looks like a slip is shown.
        near = nearest(name, _LISTS) if _HARMLESS_NAME.fullmatch(name) else None
        if near is None:
            yield ConfigProblem("", f"member {index + 1} has an unknown name; known are {' and '.join(_LISTS)}")
        else:
            yield ConfigProblem(join("", name), f'is not a list of keys; did you mean "{near}"?')


def _read_list(name: KeyList, value: object, problems: list[ConfigProblem]) -> list[str]:
    if not isinstance(value, list):
        problems.append(ConfigProblem(name, f"must be a list of texts, got {_kind(value)}"))
        return []
    if len(value) > MAX_KEYS:
        problems.append(ConfigProblem(name, f"holds more than {MAX_KEYS} keys"))
        return []
    texts: list[str] = []
    for index, item in enumerate(value):
        fault = _key_fault(item)
        if fault is None and item in texts:
            fault = f"is the same key as {name}[{texts.index(item)}]"
        if fault is not None:
            problems.append(ConfigProblem(f"{name}[{index}]", fault))
        texts.append(item if isinstance(item, str) else "")
    return texts


def _key_fault(value: object) -> str | None:
    """Why this cannot be a key, without a letter of it."""
    if not isinstance(value, str):
        return f"must be a text, got {_kind(value)}"
    if not value:
        return "is empty"
    if len(value) > MAX_KEY_CHARS:
        return f"is longer than {MAX_KEY_CHARS} characters"
    if not _KEY.fullmatch(value):
        return "has a space, a control character or a letter beyond ASCII, which no HTTP header carries safely"
    return None


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            return "a number"


def _warnings(texts: dict[KeyList, list[str]]) -> Iterable[str]:
    for name in _LISTS:
        for index, text in enumerate(texts[name]):
            if len(text) < SHORT_KEY_CHARS:
                yield f"{name}[{index}] is shorter than {SHORT_KEY_CHARS} characters and may be guessed"
    for index, text in enumerate(texts[INFERENCE_LIST]):
        if text in texts[ADMIN_LIST]:
            yield f"{INFERENCE_LIST}[{index}] is also in {ADMIN_LIST}, so it opens the admin routes"
    if not texts[ADMIN_LIST]:
        yield f"{ADMIN_LIST} holds no key, so the admin routes and /metrics answer nobody"


def _mode_warnings(mode: int) -> Iterable[str]:
    if os.name == "nt":
        return
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        what = "read" if mode & stat.S_IROTH else "written"
        yield f"it can be {what} by other users of this machine (mode {mode:04o}); set its mode to 0600"


@define(eq=False)
class KeyRing:
    """The keys that a server accepts now. ``keys`` None: no keys are in use."""

    path: Path | None = None
    keys: KeySet | None = None
    _uses: list[Callable[[str], None]] = field(factory=list, init=False)
    _changes: list[Callable[[tuple[str, ...]], None]] = field(factory=list, init=False)

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """The keys of this file; none are in use when there is no file. Raises ConfigError for one that is broken."""
        if path is None:
            return cls()
        try:
            return cls(path, load_keys(path))
        except FileNotFoundError:
            return cls(path)

    @property
    def in_use(self) -> bool:
        """Whether requests need a key."""
        return self.keys is not None

    def find(self, shown: Iterable[str]) -> ApiKey | None:
        """The best key among those that a client shows, None when it shows no right one."""
        if self.keys is None:
            return None
        found = [key for text in shown if (key := self.keys.find(text)) is not None]
        best = max(found, key=lambda key: key.admin, default=None)
        if best is not None:
            for tell in self._uses:
                tell(best.text)
        return best

    def replace(self, keys: KeySet) -> None:
        """Accept these keys from now on, and no others."""
        self.keys = keys
        for tell in self._changes:
            tell(self._texts())

    def on_use(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with the text of the key of each authenticated request. It must not wait."""
        self._uses.append(tell)

    def on_change(self, tell: Callable[[tuple[str, ...]], None]) -> None:
        """Have ``tell`` called with the texts of all keys: now, and whenever they were replaced."""
        self._changes.append(tell)
        tell(self._texts())

    def _texts(self) -> tuple[str, ...]:
        return () if self.keys is None else tuple(key.text for key in self.keys.keys)
