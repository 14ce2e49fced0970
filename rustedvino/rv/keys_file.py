"""The keys file beside the config: an admin key to send, and adding a new key."""

import json
from pathlib import Path
from typing import Any, Final

from rustedvino.rv.errors import RvError
from rustedvino.rv.files import write_private

PREFIX: Final = "rv-"
RANDOM_BYTES: Final = 32
MAX_BYTES: Final = 2**20
INFERENCE: Final = "api_keys"
ADMIN: Final = "admin_api_keys"


def admin_key(path: Path) -> str | None:
    """The first admin key in the file, else the first key; None without a file. Raises RvError when it is unusable."""
    if not path.is_file():
        return None
    content = _read(path)
    return next((key for scope in (ADMIN, INFERENCE) for key in content.get(scope, [])), None)


def add_key(path: Path, *, admin: bool) -> str:
    """Add a random key to the file, which is made when there is none, and return it. Raises RvError.

    What else is in the file stays. It is replaced as a whole, with mode 0600.
    """
    import secrets

    content = _read(path) if path.exists() else {INFERENCE: [], ADMIN: []}
    scope = ADMIN if admin else INFERENCE
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    content[scope] = [*content.get(scope, []), key]
    try:
        write_private(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise RvError(f"{path} cannot be written: {error.strerror}", code="keys_not_writable") from error
    return key


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            value = json.loads(stream.read(MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise RvError(f"{path} cannot be read: {error.strerror}", code="keys_invalid") from error
    except (ValueError, RecursionError) as error:  # its text may quote the file
        raise RvError(f"{path} is not JSON", code="keys_invalid") from error
    if not isinstance(value, dict):
        raise RvError(f"{path} does not hold a JSON object", code="keys_invalid")
    for scope in (INFERENCE, ADMIN):
        keys = value.get(scope, [])
        if not isinstance(keys, list) or not all(_can_be_sent(key) for key in keys):
            raise RvError(f"{path}: {scope} must be a list of printable ASCII texts", code="keys_invalid")
    return value


def _can_be_sent(key: object) -> bool:
    return isinstance(key, str) and key != "" and key.isascii() and key.isprintable()
