import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.images import DecodedImage, ImageLimits, decode_image, fitting

LIMITS = ImageLimits(max_pixels=1_000_000)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pixels(decoded: DecodedImage) -> np.ndarray:
    assert len(decoded.rgb) == decoded.width * decoded.height * 3
    return np.frombuffer(decoded.rgb, np.uint8).reshape(decoded.height, decoded.width, 3)


def png(width: int, height: int, data: bytes | None = None, *, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG file as a client can forge it: any size in the header, any data behind it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(b"\0" * 100) if data is None else data
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP file whose extended header announces a canvas of any size."""
    head = b"VP8X" + struct.pack("<I", 10) + b"\x10\0\0\0"
    head += struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBP" + head + encoded(Image.new("RGBA", (16, 16)), "WEBP", lossless=True)[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_come_out_exactly(kind: str, options: dict[str, Any]) -> None:
    image = noise()
    assert (pixels(decode_image(encoded(image, kind, **options), LIMITS)) == np.asarray(image)).all()


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_come_out_nearly(kind: str) -> None:
    image = Image.linear_gradient("L").convert("RGB").resize((64, 48))
    found = pixels(decode_image(encoded(image, kind, quality=95), LIMITS)).astype(int)
    assert found.shape == (48, 64, 3)
    assert abs(found - np.asarray(image).astype(int)).max() < 12


def test_gif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (pixels(decode_image(data, LIMITS)) == (255, 0, 0)).all()


def test_animated_webp_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "green")]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert (pixels(decode_image(data, LIMITS)) == (255, 0, 0)).all()


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "PNG", {}),
        (Image.new("LA", (8, 8), (0, 0)), "PNG", {}),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "WEBP", {"lossless": True, "exact": True}),
        (Image.new("P", (8, 8), 0), "GIF", {"transparency": 0}),
        (Image.new("P", (8, 8), 0), "PNG", {"transparency": 0}),
        (Image.new("L", (8, 8), 7), "PNG", {"transparency": 7}),
        (Image.new("RGB", (8, 8), (1, 2, 3)), "PNG", {"transparency": (1, 2, 3)}),
        (Image.new("1", (8, 8), 0), "PNG", {"transparency": 0}),
        (Image.new("I;16", (8, 8), 700), "PNG", {"transparency": 700}),
    ],
    ids=lambda value: getattr(value, "mode", None) or "-",
)
def test_what_is_transparent_becomes_white(image: Image.Image, kind: str, options: dict[str, Any]) -> None:
    assert (pixels(decode_image(encoded(image, kind, **options), LIMITS)) == 255).all()


def test_what_is_half_transparent_is_mixed_with_white() -> None:
    found = pixels(decode_image(encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 128)), "PNG"), LIMITS))
    assert abs(found.astype(int) - (255, 127, 127)).max() <= 1


def test_hidden_colours_do_not_bleed_when_scaled_down() -> None:
    image = Image.new("RGBA", (100, 100), (0, 0, 255, 0))
    image.paste((255, 0, 0, 255), (0, 0, 50, 100))
    found = pixels(decode_image(encoded(image, "PNG"), ImageLimits(max_pixels=100))).astype(int)
    assert found.shape == (10, 10, 3)
    assert (found[:, :, 0] >= 250).all()  # red fades to white; the blue under full transparency is never seen


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    found = pixels(decode_image(encoded(Image.fromarray(ramp), "PNG"), LIMITS)).astype(int)
    assert abs(found[:, :, 0] - ramp / 257).max() <= 1
    assert (found[:, :, 0] == found[:, :, 2]).all()


def test_16_bit_colour_is_read() -> None:
    row = b"\0" + struct.pack(">HHH", 65535, 0, 32768) * 4
    found = pixels(decode_image(png(4, 4, zlib.compress(row * 4), depth=16), LIMITS)).astype(int)
    assert abs(found - (255, 0, 128)).max() <= 1


def test_cmyk_keeps_its_colours() -> None:
    data = encoded(Image.new("RGB", (16, 16), (200, 30, 40)).convert("CMYK"), "JPEG", quality=95)
    assert abs(pixels(decode_image(data, LIMITS)).astype(int) - (200, 30, 40)).max() < 12


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_modes_of_few_colours_are_read(mode: str) -> None:
    image = Image.new("L", (8, 8), 255)
    image.paste(0, (0, 0, 4, 8))
    found = pixels(decode_image(encoded(image.convert(mode), "PNG"), LIMITS))
    assert (found[:, :4] == 0).all()
    assert (found[:, 4:] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    upright = Image.new("RGB", (64, 32), "white")
    upright.paste("red", (0, 0, 16, 16))
    turned = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    }[orientation](upright)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(decode_image(encoded(turned, kind, exif=exif), LIMITS)).astype(int)
    assert found.shape == (32, 64, 3)
    assert abs(found[8, 8] - (255, 0, 0)).max() < 40
    assert (found[24:, 32:] > 200).all()


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"\xff" * 40])
def test_broken_metadata_does_not_matter(exif: bytes) -> None:
    decoded = decode_image(encoded(noise(), "JPEG", exif=exif), LIMITS)
    assert (decoded.width, decoded.height) == (40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_large_images_are_scaled_down(kind: str) -> None:
    decoded = decode_image(encoded(noise(1200, 600), kind), ImageLimits(max_pixels=20_000))
    assert (decoded.width, decoded.height) == (200, 100)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 16384), st.integers(1, 16384), st.integers(1, 2_000_000))
def test_fitting_never_exceeds_the_bound_and_never_enlarges(width: int, height: int, max_pixels: int) -> None:
    found = fitting((width, height), max_pixels)
    assert 1 <= found[0] <= width
    assert 1 <= found[1] <= height
    assert found[0] * found[1] <= max_pixels
    if found != (width, height):
        assert max(found) < 200 * min(found)
    if width * height <= max_pixels:
        assert found == (width, height)
    elif min(found) > 20:
        assert max(width, height) >= 200 * min(width, height) or abs(found[0] / found[1] / (width / height) - 1) < 0.1


HOSTILE: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "empty"),
    ("text", lambda: b"hello there", "no PNG"),
    ("svg", lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG"),
    ("bmp", lambda: encoded(noise(), "BMP"), "no PNG"),
    ("tiff", lambda: encoded(noise(), "TIFF"), "no PNG"),
    ("signature", lambda: b"\x89PNG\r\n\x1a\n" + b"x" * 100, ""),
    ("truncated png", lambda: encoded(noise(), "PNG")[:-2000], "damaged"),
    ("truncated jpeg", lambda: encoded(noise(200, 200), "JPEG")[:-3000], "damaged"),
    ("truncated webp", lambda: encoded(noise(200, 200), "WEBP")[:-3000], ""),
    ("truncated gif", lambda: encoded(noise(200, 200), "GIF")[:-9000], "damaged"),
    ("little data", lambda: png(5000, 5000, zlib.compress(b"\0" * 10)), "damaged"),
    ("wrong checksum", lambda: png(4, 4, b"\0" * 40), "damaged"),
    ("no pixels", lambda: png(0, 0), "header is broken"),
    ("no rows", lambda: png(5, 0), "header is broken"),
    ("bomb", lambda: png(16000, 16000), "at most 40000000"),
    ("long side", lambda: png(10**9, 1), "a side may have"),
    ("huge webp canvas", lambda: webp_canvas(16384, 16384), ""),
    ("thin", lambda: encoded(Image.new("L", (400, 2)), "PNG"), "ratio"),
    ("tall", lambda: encoded(Image.new("L", (1, 200)), "PNG"), "ratio"),
]


@pytest.mark.parametrize(("make", "text"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_images_are_refused(make: Callable[[], bytes], text: str) -> None:
    with pytest.raises(EngineFault) as caught:
        decode_image(make(), LIMITS)
    assert caught.value.kind == "bad_input"
    assert text in caught.value.message
    assert "Traceback" not in caught.value.message


def test_ratio_below_the_limit_is_accepted() -> None:
    decoded = decode_image(encoded(Image.new("L", (199, 1)), "PNG"), LIMITS)
    assert (decoded.width, decoded.height) == (199, 1)


def test_inflating_text_chunk_is_refused_or_ignored_but_never_inflated() -> None:
    body = b"k\0\0" + zlib.compress(b"A" * 100_000_000)
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    plain = encoded(noise(), "PNG")
    with pytest.raises(EngineFault, match="damaged"):
        decode_image(plain[:33] + chunk + plain[33:], LIMITS)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]), st.data())
def test_no_damage_raises_anything_else(kind: str, data: st.DataObject) -> None:
    file = bytearray(encoded(noise(), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(file)))
    try:
        decoded = decode_image(bytes(file[:cut]), LIMITS)
    except EngineFault:
        return
    assert pixels(decoded).size > 0
