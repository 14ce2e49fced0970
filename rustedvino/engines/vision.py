"""Text generation about images, on the runtime's continuous-batching pipeline.

A vision pipeline takes prompts as text only: token ids make its next step fail, or crash the process. It encodes
the images inside ``submit``, which holds up the other sequences of the batch for so long; the server bounds their
size. Nothing tells how many tokens an image became until its sequence has ended, so the server counts ahead, and
``load`` proves the way it counts.
"""

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import openvino as ov

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.text import TextEngine, generation_config, warmup_config
from rustedvino.text.image_tags import image_tag, tagged_images
from rustedvino.text.image_tokens import ImageGrid, image_grid, read_preprocessor
from rustedvino.worker.loop import Delta

WARMUP_PROMPT: Final = "The quick brown fox"
PROBE_SIZES: Final = ((28, 28), (300, 200), (420, 560))
"""Width and height of the blank images the count of tokens is proven on: the first is enlarged by most encoders."""
MAX_REMEMBERED: Final = 256
"""Ended sequences whose prompt length ``input_tokens`` can still tell."""


class VisionEngine(TextEngine):
    """A TextEngine whose prompts are text with images.

    ``submit`` ignores ``prompt`` and takes from ``options``, besides what TextEngine takes:
    ``prompt_text`` (rendered, with ``<ov_genai_image_i>`` where image ``i`` belongs; client text made harmless),
    ``images`` (list of ``width``, ``height``, ``data``: RGB, three bytes a pixel) and ``prompt_tokens``, what the
    server counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counting: Literal["computed", "measured"] = "measured"
        self._grid: ImageGrid | None = None
        self._prompt_tokens: dict[int, int] = {}
        self._input_tokens: OrderedDict[int, int] = OrderedDict()

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """See TextEngine. Also returns ``image_tokens``: ``computed`` where ImageGrid counts right for this model,
        ``measured`` where the tokens of an image are only known by running it."""
        folder = Path(spec["path"])
        self._grid = image_grid(*read_preprocessor(folder))
        # PrefixGuard cannot tell such prompts apart, so there is no prefix cache for them.
        facts = super().load(spec | {"enable_prefix_caching": False})
        return {**facts, "image_tokens": self._counting}

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Also ``input_tokens``: ``sequence``, ended not long ago → tokens of its prompt, images included."""
        if method == "input_tokens":
            count = self._input_tokens.get(arguments["sequence"])
            if count is None:
                raise EngineFault("bad_input", f"sequence {arguments['sequence']} has not ended lately")
            return count
        return super().call(method, arguments)

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool:
        """See the class. Blocks while the images are encoded; returns whether there were any."""
        expected = options["prompt_tokens"]
        super().submit(sequence, prompt, options)
        self._prompt_tokens[sequence] = expected
        return bool(options["images"])

    def _add(self, prompt: bytes, options: dict[str, Any]) -> Any:
        text = options["prompt_text"]
        images = [_tensor(image) for image in options["images"]]
        if sorted(tagged_images(text)) != list(range(len(images))):
            raise EngineFault("bad_input", "the images and their tags in the prompt do not match")
        config = generation_config(options)
        config.apply_chat_template = False
        return self._pipeline.add_request(self._new_request(), text, images, config)

    def _read(self, sequence: int, running: Any) -> Delta | None:
        delta = super()._read(sequence, running)
        if delta is not None and delta[2] is not None:
            expected = self._prompt_tokens.pop(sequence)
            if delta[2] in ("stop", "length"):
                self._remember(sequence, running.handle.get_perf_metrics().get_num_input_tokens(), expected)
        return delta

    def _remember(self, sequence: int, count: int, expected: int) -> None:
        self._input_tokens[sequence] = count
        if len(self._input_tokens) > MAX_REMEMBERED:
            self._input_tokens.popitem(last=False)
        if count > expected:
            # The pool was reserved by the expected count: more could crowd out other sequences.
            print(f"a prompt has {count} tokens, {expected} were counted ahead", file=sys.stderr, flush=True)

    def _warm_up(self, prompt: list[int]) -> None:
        """Run text and images once, and prove the count of tokens on them."""
        plain = self._count(WARMUP_PROMPT, [])
        grown = [self._count(image_tag(0) + WARMUP_PROMPT, [_blank(*size)]) - plain for size in PROBE_SIZES]
        if self._grid is not None and grown == [self._grid.tokens(*size) + 2 for size in PROBE_SIZES]:
            self._counting = "computed"

    def _count(self, text: str, images: list[Any]) -> int:
        """Tokens of a prompt, found by running it."""
        config = warmup_config()
        config.apply_chat_template = False
        handle = self._pipeline.add_request(self._new_request(), text, images, config)
        self._run_alone(handle)
        count: int = handle.get_perf_metrics().get_num_input_tokens()
        return count


def _tensor(image: dict[str, Any]) -> Any:
    """The image as the runtime takes it. What it does not check itself would end the process or show noise."""
    width, height, data = image["width"], image["height"], image["data"]
    if width < 1 or height < 1 or len(data) != width * height * 3:
        raise EngineFault("bad_input", f"{len(data)} bytes are not an RGB image of {width}×{height} pixels")
    return ov.Tensor(np.frombuffer(data, dtype=np.uint8).reshape(1, height, width, 3))


def _blank(width: int, height: int) -> Any:
    return ov.Tensor(np.zeros((1, height, width, 3), dtype=np.uint8))
