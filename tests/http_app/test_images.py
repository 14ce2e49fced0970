import base64
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.api.errors import ApiError
from rustedvino.http.images import MAX_IMAGE_FILE_BYTES, decode_base64, image_bytes, parse_data_url
from rustedvino.http.remote_images import FetchFailed

PARAM = "messages[0].content[1].image_url.url"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refused(url: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_data_url(url, PARAM)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, PARAM, "invalid_image")
    assert error.message.startswith(f"'{PARAM}': ")
    return error


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64",
        "DATA:IMAGE/PNG;BASE64",
        "data:;base64",
        "data:image/jpeg;name=a.jpg;charset=utf-8;base64",
        "data:application/octet-stream;base64",
        "data: image/webp ; base64",
    ],
)
def test_headers_that_are_accepted(head: str) -> None:
    assert parse_data_url(f"{head},{b64(b'some bytes')}", PARAM) == b"some bytes"


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32))
def test_white_space_anywhere_is_fine(data: bytes, seed: int) -> None:
    dice = random.Random(seed)
    text = "".join(char + dice.choice(["", "", " ", "\n", "\r\n", "\t"]) for char in b64(data))
    assert decode_base64(text, PARAM) == data


@pytest.mark.parametrize("size", [786432 - 1, 786432, 786432 + 1, 3 * 786432 + 5])
def test_data_of_several_slices_comes_out_whole(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert decode_base64(b64(data), PARAM) == data


def test_percent_encoding_is_undone() -> None:
    data = b"\xfb\xff\xfe" * 3
    assert parse_data_url("data:image/png;base64," + b64(data).replace("+", "%2B").replace("/", "%2f"), PARAM) == data


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png,abcd", "';base64'"),
        ("data:image/png;base64;x=y,abcd", "';base64'"),
        ("data:,abcd", "';base64'"),
        ("data:text/html;base64,abcd", '"text/html", which is not an image type'),
        ("data:application/pdf;base64,abcd", "not an image type"),
        ("data:image/png;base64,", "no data"),
        ("data:image/png;base64, \n", "no data"),
        ("data:image/png;base64,abcde", "multiple of four"),
        ("data:image/png;base64,ab_-", "not valid"),
        ("data:image/png;base64,ab=c", "not valid"),
        ("data:image/png;base64,====", "not valid"),
        ("data:image/png;base64,AAAA====", "not valid"),
        ("data:image/png;base64,QQ==QQ==", "not valid"),
        ("data:image/png;base64,aé==", "outside ASCII"),
        ("data:image/png;base64,ab%c", "not valid"),
    ],
)
def test_everything_else_is_refused(url: str, text: str) -> None:
    assert text in refused(url).message


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_in_any_slice_is_found(place: int) -> None:
    text = bytearray(base64.b64encode(bytes(2 * 786432 + 30)))
    text[place * 1024 * 1024 + 8 : place * 1024 * 1024 + 12] = b"QQ=="
    assert "not valid" in refused("data:image/png;base64," + text.decode()).message
    text = bytearray(base64.b64encode(bytes(2 * 786432 + 30)))
    text[1024 * 1024 - 4 : 1024 * 1024] = b"QQ=="
    assert "not valid" in refused("data:image/png;base64," + text.decode()).message


def test_too_much_is_refused_and_the_limit_itself_is_not() -> None:
    whole = bytes(MAX_IMAGE_FILE_BYTES)
    assert len(decode_base64(b64(whole), PARAM)) == MAX_IMAGE_FILE_BYTES
    for data in (b64(whole + b"x"), "A" * (4 * MAX_IMAGE_FILE_BYTES)):
        assert "larger than 20 MiB" in refused(f"data:image/png;base64,{data}").message


async def test_long_data_urls_are_read_as_short_ones_are() -> None:
    data = bytes(range(256)) * 1000
    assert await image_bytes(f"data:image/png;base64,{b64(data)}", PARAM, None) == data


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "/etc/passwd", "image.png", "javascript:1", "gopher://x", ":", "data"]
)
async def test_other_schemes_are_refused(url: str) -> None:
    async def fetch(url: str) -> bytes:
        raise AssertionError(url)

    for given_fetch in (None, fetch):
        with pytest.raises(ApiError, match="must be a data URL") as caught:
            await image_bytes(url, PARAM, given_fetch)
        assert caught.value.param == PARAM


async def test_remote_images_need_the_setting() -> None:
    with pytest.raises(ApiError, match="allow_remote_images") as caught:
        await image_bytes("https://example.com/a.png", PARAM, None)
    assert (caught.value.status, caught.value.param) == (400, PARAM)


async def test_remote_images_are_fetched_when_allowed() -> None:
    async def fetch(url: str) -> bytes:
        if url.endswith("gone"):
            raise FetchFailed("the image's server answered with status 404")
        return url.encode()

    assert await image_bytes("HTTPS://example.com/a.png", PARAM, fetch) == b"HTTPS://example.com/a.png"
    with pytest.raises(ApiError, match="status 404") as caught:
        await image_bytes("http://example.com/gone", PARAM, fetch)
    assert caught.value.param == PARAM
