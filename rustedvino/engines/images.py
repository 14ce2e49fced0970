"""Decoding of images that come from outside. Runs in the utility worker only: the server loads no codec."""

import io
import math
import warnings
from typing import Final

import numpy as np
from attrs import frozen
from PIL import Image, UnidentifiedImageError

from rustedvino.engines.faults import EngineFault

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
MAX_SOURCE_PIXELS: Final = 40_000_000
MAX_SOURCE_SIDE_PIXELS: Final = 16_384
MAX_ASPECT_RATIO: Final = 200
"""Vision encoders refuse images of this ratio of the sides and above."""

_ORIENTATION_TAG: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITE: Final = (255, 255, 255)

# Pillow's own limit warns first and raises at twice its size; ours are checked before anything is decoded.
Image.MAX_IMAGE_PIXELS = None


@frozen(kw_only=True)
class ImageLimits:
    """What may be decoded, and the size that comes out: never more than ``max_pixels``, scaled down to fit."""

    max_pixels: int
    max_source_pixels: int = MAX_SOURCE_PIXELS
    max_source_side_pixels: int = MAX_SOURCE_SIDE_PIXELS


@frozen
class DecodedImage:
    """``rgb`` has ``height`` rows of ``width`` pixels of three bytes each."""

    width: int
    height: int
    rgb: bytes


def decode_image(data: bytes, limits: ImageLimits) -> DecodedImage:
    """Decode PNG, JPEG, WebP or GIF (the first frame) to 8-bit RGB.

    The EXIF orientation is applied, what is transparent becomes white, 16-bit grey is scaled to 8 bit.
    Raises EngineFault (``bad_input``) whose text says to a client what is wrong with the image.
    """
    if not data:
        raise EngineFault("bad_input", "the image is empty")
    try:
        with warnings.catch_warnings(action="ignore"):  # about broken metadata, which do not concern the picture
            return _decode(data, limits)
    except EngineFault:
        raise
    except MemoryError as error:
        raise EngineFault("bad_input", "the image needs too much memory to decode") from error
    except Exception as error:
        # Decoders raise OSError, ValueError, SyntaxError, struct.error and more, all for what a client sent.
        raise EngineFault("bad_input", "the image is damaged or incomplete") from error


def _decode(data: bytes, limits: ImageLimits) -> DecodedImage:
    image = _open(data)
    _check_size(image.size, limits)
    if image.format == "JPEG":
        # The decoder can leave out detail by powers of two, which costs a fraction of the time and memory.
        image.draft(None, fitting(image.size, limits.max_pixels))
    image.load()
    orientation = _orientation(image)
    small = _scaled(_eight_bit(image), limits.max_pixels)
    if orientation in _TURNS:
        small = small.transpose(_TURNS[orientation])
    rgb = _on_white(small)
    return DecodedImage(rgb.width, rgb.height, rgb.tobytes())


def _open(data: bytes) -> Image.Image:
    """Read the header only."""
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise EngineFault(
            "bad_input", "the data is no PNG, JPEG, WebP or GIF image, or its header is broken"
        ) from error


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    shape = f"the image has {width}×{height} pixels"
    if width < 1 or height < 1:
        raise EngineFault("bad_input", f"{shape}: there is nothing to see")
    if width > limits.max_source_side_pixels or height > limits.max_source_side_pixels:
        raise EngineFault("bad_input", f"{shape}; a side may have at most {limits.max_source_side_pixels}")
    if width * height > limits.max_source_pixels:
        raise EngineFault("bad_input", f"{shape}; at most {limits.max_source_pixels} in all are accepted")
    if max(width, height) >= MAX_ASPECT_RATIO * min(width, height):
        raise EngineFault("bad_input", f"{shape}; the ratio of its sides must be below {MAX_ASPECT_RATIO}")


def fitting(size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """The size at the same ratio of the sides that has at most ``max_pixels``; never a larger one.

    Rounding never takes the ratio to MAX_ASPECT_RATIO.
    """
    width, height = size
    if width * height <= max_pixels:
        return size
    factor = math.sqrt(max_pixels / (width * height))
    short = max(1, math.floor(min(size) * factor))
    long = max(short, min(math.floor(max(size) * factor), max_pixels // short, (MAX_ASPECT_RATIO - 1) * short))
    return (long, short) if width >= height else (short, long)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # any error of a parser of metadata: the picture itself is sound, and is shown as it lies
        return 1


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image in a mode whose values can be averaged: L, RGB or RGBA."""
    transparent = "transparency" in image.info
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        scaled = (grey >> 8).astype(np.uint8)
        if transparent:
            scaled[grey == image.info["transparency"]] = 255
        return Image.fromarray(scaled)
    if image.mode == "1" and not transparent:
        return image.convert("L")
    if image.mode in ("L", "RGB", "RGBA") and not transparent:
        return image
    if transparent or image.mode in ("LA", "PA", "La", "RGBa"):
        return image.convert("RGBA")
    return image.convert("RGB")


def _scaled(image: Image.Image, max_pixels: int) -> Image.Image:
    size = fitting(image.size, max_pixels)
    if size == image.size:
        return image
    # Alpha is taken into account: Pillow averages colours weighted by it.
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode != "RGBA":
        return image.convert("RGB")
    ground = Image.new("RGB", image.size, _WHITE)
    ground.paste(image, mask=image.getchannel("A"))
    return ground
