"""A chat with a vision model: its images are had, decoded, counted and put in their places in the prompt.

The runtime tokenizes the prompt of a vision model itself, so it is sent as text, and nothing a client wrote may
look like a control string there (see `text.image_tags`). Images of earlier turns stay where they were: all images of
a conversation are numbered through and sent along, for the server keeps nothing between requests.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
import trio
from attrs import define, field, frozen

from rustedvino.api import errors as api
from rustedvino.api.chat import ChatRequest
from rustedvino.api.messages import ImagePart
from rustedvino.http import generation
from rustedvino.http.context import ServerContext
from rustedvino.http.images import Fetch, image_bytes
from rustedvino.http.remote_images import RemoteImages
from rustedvino.hub.errors import BadInput, WorkerLost
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.text_assets import TextAssets, encode_raw
from rustedvino.hub.utility import UtilityCrashed, UtilityTimeout, UtilityWorker
from rustedvino.text.image_tags import (
    PromptGuard,
    image_tag,
    place_images,
    replace_tags,
    split_at_tags,
    tagged_images,
)
from rustedvino.text.image_tokens import GRID_TAG, ImageGrid, image_grid, read_preprocessor
from rustedvino.text.markers import ControlMarker
from rustedvino.text.tokenizer import LONG_TEXT_CHARS

MAX_IMAGES: Final = 16
"""Images of a request times its choices: each choice encodes them anew."""
MAX_IMAGE_PIXELS: Final = 1_003_520
"""Larger images are scaled down to this: 1280 tokens of a model with 28×28 pixels to the token."""
MAX_REQUEST_PIXELS: Final = 2 * MAX_IMAGE_PIXELS
"""All images of a request together, which bounds the time that encoding them holds up the model's other streams,
and its frame (6 MB). Many images share it evenly."""
LOW_DETAIL_PIXELS: Final = 512 * 512
"""Size of an image with ``detail`` "low"."""
DECODE_SECS: Final = 15.0
"""Bound on decoding one image, which is killed then."""
MAX_MEASURED_TOKENS: Final = 4096
"""Room kept for an image whose number of tokens is found by running it."""
MEASURED_TEXT: Final = "What is this?"
BUSY_RETRY_SECS: Final = 2.0

Arrange = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
Render = Callable[[ControlMarker, Arrange], str]
"""Renders the chat: client text marked by the marker, then the marked messages passed through the function."""
Plan = Callable[[list[int]], GenerationRequest]
"""Checks a prompt of these token ids against the model and makes the hub's request of it. Raises ApiError."""


@frozen(kw_only=True)
class Picture:
    """A decoded image, as submit options have it, and the field it came from."""

    param: str
    width: int
    height: int
    data: bytes

    def option(self) -> dict[str, Any]:
        """Its form in the options of a submit frame."""
        return {"width": self.width, "height": self.height, "data": self.data}


async def prepare_vision(
    chat: ChatRequest,
    model: Model,
    assets: TextAssets,
    server: ServerContext,
    render: Render,
    plan: Plan,
    *,
    fetch: Fetch | None = None,
) -> tuple[str, GenerationRequest]:
    """The rendered prompt of a chat with a vision model, and what to ask the hub for.

    ``fetch`` replaces the fetcher of remote images. Raises ApiError (400) naming the part for what is wrong with an
    image, 429 when too many wait for decoding, and HubError.
    """
    parts = _image_parts(chat)
    side = _side(model, assets)
    parts_form = assets.probe is not None and assets.probe.content == "parts"

    def work() -> str:
        rendered = render(side.guard.marker, lambda messages: place_images(messages, parts=parts_form))
        return side.guard.finish(rendered)

    size = generation.weight(
        (chat.to_template_messages(), chat.template_tools(), chat.chat_template_kwargs), LONG_TEXT_CHARS
    )
    prompt = _without_bos(await generation.in_thread_if_long(size, LONG_TEXT_CHARS, work), assets)
    if sorted(tagged_images(prompt)) != list(range(len(parts))):
        raise api.bad_request("the model's chat template has no place for some of the images", "messages")
    ids = await _text_ids(side, prompt)

    text_plan = plan(ids)  # refuses what is too long by its text alone, before any image is decoded
    if fetch is None and server.settings.allow_remote_images:
        fetch = _fetcher()
    utility = server.hub.utility
    pictures = [await _picture(path, part, len(parts) * chat.n, utility, fetch) for path, part in parts]
    for picture in pictures:
        # The request is made for as many ids as the prompt will have; those of images stand for nothing yet.
        ids += [0] * await _image_tokens(side, model, picture, text_plan)
    return prompt, _with_images(plan(ids), prompt, pictures)


def _image_parts(chat: ChatRequest) -> list[tuple[str, ImagePart]]:
    """The images with the paths of their URLs. Raises ApiError for other media and for too many."""
    parts: list[tuple[str, ImagePart]] = []
    for path, part in chat.media_parts():
        if not isinstance(part, ImagePart):
            raise api.bad_request(f"content of type '{part.type}' is not supported by this model", path)
        parts.append((f"{path}.image_url.url", part))
    if len(parts) > MAX_IMAGES:
        path, _ = parts[MAX_IMAGES]
        raise api.bad_request(f"a request may have at most {MAX_IMAGES} images", path, "too_many_images")
    if len(parts) * chat.n > MAX_IMAGES:
        raise api.bad_request(
            f"'n' times the number of images must be at most {MAX_IMAGES}, but it is {chat.n} × {len(parts)}",
            "n",
            "too_many_images",
        )
    return parts


# -- one image ------------------------------------------------------------------------------------------


@cache
def _fetcher() -> RemoteImages:
    return RemoteImages()


def pixel_bound(part: ImagePart, encoded: int) -> int:
    """Pixels an image is scaled down to; ``encoded`` images share what a request may have."""
    own = LOW_DETAIL_PIXELS if part.image_url.detail == "low" else MAX_IMAGE_PIXELS
    return min(own, MAX_REQUEST_PIXELS // encoded)


async def _picture(param: str, part: ImagePart, encoded: int, utility: UtilityWorker, fetch: Fetch | None) -> Picture:
    data = await image_bytes(part.image_url.url, param, fetch)
    decoded = await decode(data, pixel_bound(part, encoded), utility, param)
    return Picture(param=param, width=decoded["width"], height=decoded["height"], data=decoded["data"])


async def decode(data: bytes, max_pixels: int, utility: UtilityWorker, param: str) -> dict[str, Any]:
    """``width``, ``height`` and RGB ``data`` of an image file, scaled down to ``max_pixels``.

    Raises ApiError: 400 naming ``param`` for a bad image, 429 when too many wait, 503 without a decoder.
    """
    try:
        decoded: dict[str, Any] = await utility.call(
            "decode_image", {"data": data, "max_pixels": max_pixels}, bound_secs=DECODE_SECS
        )
    except BadInput as error:
        raise _bad_image(error.message, param) from error
    except UtilityTimeout as error:
        if error.starved:
            raise api.unavailable("worker_restarting", "this machine is too busy to decode", BUSY_RETRY_SECS) from error
        raise _bad_image(f"the image takes longer than {DECODE_SECS:g} s to decode", param) from error
    except UtilityCrashed as error:  # after a second try with the same image
        raise _bad_image("the image cannot be decoded", param) from error
    except trio.TooSlowError as error:
        raise api.rate_limited("too many images are waiting to be decoded", BUSY_RETRY_SECS) from error
    except (WorkerLost, WorkerStartError) as error:
        raise api.unavailable("worker_restarting", "images cannot be decoded now", BUSY_RETRY_SECS) from error
    return decoded


def _bad_image(message: str, param: str) -> api.ApiError:
    return api.bad_request(f"'{param}': {message}", param, "invalid_image")


# -- counting -------------------------------------------------------------------------------------------


@define(eq=False)
class _Side:
    """What is known of a vision model beside its text assets."""

    assets: TextAssets
    guard: PromptGuard
    grid: ImageGrid | None
    measured: dict[tuple[int, int], int] = field(factory=dict)
    """Tokens by width and height, for models whose encoder is not a known grid."""


_sides: Final[WeakKeyDictionary[Model, _Side]] = WeakKeyDictionary()


def _side(model: Model, assets: TextAssets) -> _Side:
    side = _sides.get(model)
    if side is None or side.assets is not assets:
        guard = PromptGuard(assets.tokenizer.control_tokens)
        grid = image_grid(*read_preprocessor(assets.files.folder))
        if model.actor.facts.get("image_tokens") == "measured":
            grid = None  # the worker tried the formula on this model, and it was wrong
        side = _sides[model] = _Side(assets, guard, grid)
    return side


async def _text_ids(side: _Side, prompt: str) -> list[int]:
    """Ids of the prompt but for its images, as the runtime makes them around its own tags."""
    tokenizer = side.assets.tokenizer
    if side.grid is not None:
        return await encode_raw(tokenizer, replace_tags(prompt, GRID_TAG))
    first, *others = split_at_tags(prompt)
    ids = await encode_raw(tokenizer, first)
    for text in others:
        ids += await encode_raw(tokenizer, text, add_special_tokens=False)
    return ids


async def _image_tokens(side: _Side, model: Model, picture: Picture, plan: GenerationRequest) -> int:
    """Tokens an image adds to `_text_ids`. Raises ApiError for one the encoder cannot take, and HubError."""
    width, height = picture.width, picture.height
    if side.grid is not None:
        tokens = side.grid.tokens(width, height)
        if tokens < 1:
            raise _bad_image(f"{width}×{height} pixels are too thin for the model's image encoder", picture.param)
        return tokens - 1  # one placeholder is in the text
    if (width, height) not in side.measured:
        side.measured[width, height] = await _measure(side, model, width, height, plan)
    return side.measured[width, height]


async def _measure(side: _Side, model: Model, width: int, height: int, plan: GenerationRequest) -> int:
    """Run a blank image of this size through the model: the number of tokens depends on the size alone."""
    await model.actor.ready()
    text_tokens = len(await encode_raw(side.assets.tokenizer, MEASURED_TEXT))
    block = int(model.actor.facts["block_size"])
    room = min(MAX_MEASURED_TOKENS, side.assets.files.context_tokens or MAX_MEASURED_TOKENS)
    prompt_tokens = min(room, (model.actor.blocks_total - 1) * block)
    options = {
        **plan.options[0],
        "prompt_text": image_tag(0) + MEASURED_TEXT,
        "images": [{"width": width, "height": height, "data": bytes(width * height * 3)}],
        "prompt_tokens": prompt_tokens,
    }
    request = GenerationRequest(
        prompt=b"",
        prompt_tokens=prompt_tokens,
        max_new_tokens=1,
        shrinkable=False,
        options=(options,),
        fingerprint=hashlib.blake2b(b"measure %d %d" % (width, height), digest_size=16).digest(),
    )
    lease = await model.actor.lease(request)
    try:
        (sequence,) = lease.sequences
        while not sequence.done:
            await lease.wait()
        if sequence.failure is not None:
            raise sequence.failure
        count: int = await model.actor.call("input_tokens", {"sequence": sequence.number})
    finally:
        lease.close()
    return count - text_tokens


# -- the request ----------------------------------------------------------------------------------------


def _without_bos(prompt: str, assets: TextAssets) -> str:
    """The prompt without the begin-of-text that its template wrote: the runtime adds it to every text."""
    bos = "".join(map(assets.tokenizer.token_text, assets.tokenizer.bos_token_ids))
    return prompt.removeprefix(bos)


def _with_images(plan: GenerationRequest, prompt: str, pictures: Sequence[Picture]) -> GenerationRequest:
    extra = {
        "prompt_text": prompt,
        "images": [picture.option() for picture in pictures],
        "prompt_tokens": plan.prompt_tokens,
    }
    digest = hashlib.blake2b(b"%d " % plan.max_new_tokens + prompt.encode(), digest_size=16)
    for picture in pictures:
        digest.update(b"\0%d %d\0" % (picture.width, picture.height))
        digest.update(picture.data)
    return attrs.evolve(
        plan,
        prompt=b"",
        options=tuple({**options, **extra} for options in plan.options),
        fingerprint=digest.digest(),
    )
