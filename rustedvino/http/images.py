"""Images as clients send them: from a URL in a request to the bytes of a file. Nothing here decodes a picture."""

import binascii
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

import trio

from rustedvino.api import errors as api
from rustedvino.http.remote_images import FetchFailed

MAX_IMAGE_FILE_BYTES: Final = 20 * 1024 * 1024
MAX_ENCODED_CHARS: Final = 2 * MAX_IMAGE_FILE_BYTES
"""Longest body of a data URL, white space and percent-encoding included."""
THREAD_CHARS: Final = 64 * 1024
"""Longer base64 is decoded in a thread, in slices: one call for 20 MB would hold up the event loop."""

_SLICE_CHARS: Final = 1024 * 1024  # a multiple of four
_WHITE_SPACE: Final = b" \t\r\n\f\v"
_PADDING: Final = b"="
_EXCESS: Final = 3 * _PADDING


class Fetch(Protocol):
    """Gets the bytes behind an http(s) URL. Raises FetchFailed."""

    async def __call__(self, url: str, /) -> bytes: ...


async def image_bytes(url: str, param: str, fetch: Fetch | None) -> bytes:
    """The file that ``url`` holds or names. ``param`` is the path of the field; ``fetch`` None refuses remote images.

    Raises ApiError (400) naming ``param``.
    """
    scheme, colon, _ = url[:16].partition(":")
    scheme = scheme.strip().lower() if colon else ""
    if scheme == "data":
        if len(url) > THREAD_CHARS:
            return await trio.to_thread.run_sync(parse_data_url, url, param)
        return parse_data_url(url, param)
    if scheme in ("http", "https"):
        if fetch is None:
            raise _wrong(
                "remote images are not fetched by this server; send the image as a data URL "
                "(data:image/png;base64,…), or have the setting `allow_remote_images` switched on",
                param,
            )
        try:
            return await fetch(url)
        except FetchFailed as error:
            raise _wrong(str(error), param) from error
    raise _wrong("must be a data URL (data:image/png;base64,…) or an http(s) URL", param)


def parse_data_url(url: str, param: str) -> bytes:
    """The bytes of a base64 data URL. Raises ApiError (400) naming ``param``."""
    head, comma, body = url[len("data:") :].partition(",")
    if not comma:
        raise _wrong("the data URL has no comma between its header and its data", param)
    media_type, *parameters = (item.strip().lower() for item in head.split(";"))
    if media_type and not media_type.startswith("image/") and media_type != "application/octet-stream":
        raise _wrong(f"the data URL holds {api.shown(media_type)}, which is not an image type", param)
    if not parameters or parameters[-1] != "base64":
        raise _wrong("the data URL must end its header with ';base64'", param)
    if len(body) > MAX_ENCODED_CHARS:
        raise _too_large(param)
    return decode_base64(body, param)


def decode_base64(text: str, param: str) -> bytes:
    """Decode strict base64: the standard alphabet, complete padding; white space anywhere is fine.

    Raises ApiError (400) naming ``param`` for anything else, for nothing at all and for too much.
    """
    try:
        data = text.encode("ascii")
    except UnicodeEncodeError as error:
        raise _wrong("the base64 data has characters outside ASCII", param) from error
    if b"%" in data:
        data = unquote_to_bytes(data)
    data = data.translate(None, _WHITE_SPACE)
    if not data:
        raise _wrong("the image has no data", param)
    if len(data) // 4 * 3 > MAX_IMAGE_FILE_BYTES + 3:
        raise _too_large(param)
    if data.endswith(_EXCESS):
        raise _wrong("the base64 data is not valid: more than two padding characters", param)
    if len(data) % 4:
        raise _wrong("the base64 data is incomplete: its length is no multiple of four", param)
    try:
        decoded = b"".join(
            binascii.a2b_base64(data[start : start + _SLICE_CHARS], strict_mode=True)
            if start + _SLICE_CHARS >= len(data)
            else _inner_slice(data[start : start + _SLICE_CHARS])
            for start in range(0, len(data), _SLICE_CHARS)
        )
    except binascii.Error as error:
        raise _wrong(f"the base64 data is not valid: {str(error)[:1].lower()}{str(error)[1:]}", param) from error
    if len(decoded) > MAX_IMAGE_FILE_BYTES:
        raise _too_large(param)
    return decoded


def _inner_slice(data: bytes) -> bytes:
    """Decode a slice that others follow: padding is an error there."""
    if data.endswith(_PADDING):
        raise binascii.Error("padding before the end of the data")
    return binascii.a2b_base64(data, strict_mode=True)


def _too_large(param: str) -> api.ApiError:
    return _wrong(f"the image is larger than {MAX_IMAGE_FILE_BYTES // 1024**2} MiB", param)


def _wrong(message: str, param: str) -> api.ApiError:
    return api.bad_request(f"'{param}': {message}", param, "invalid_image")
