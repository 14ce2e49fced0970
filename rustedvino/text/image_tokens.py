"""How many tokens an image becomes, told from its size before it is encoded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

_MAX_JSON_BYTES: Final = 1024 * 1024

_GRID_FAMILIES: Final = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe"})
"""Values of ``model_type`` whose images are cut into patches of a grid, several merged to one token."""

GRID_TAG: Final = "<|vision_start|><|image_pad|><|vision_end|>"
"""How these families write an image; the placeholder in the middle is repeated for each token."""


@attrs.frozen(kw_only=True)
class ImageGrid:
    """The grid of an image encoder. Pixels are those of the whole image, after it was resized to the grid."""

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 3136
    max_pixels: int = 12845056

    def tokens(self, width: int, height: int) -> int:
        """Placeholder tokens of an image; 0 when the encoder cannot take it (too thin to fit on the grid)."""
        cell = self.patch_size * self.merge_size
        rows, columns = _half_up(height / cell), _half_up(width / cell)
        if rows * columns * cell * cell > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            rows, columns = math.floor(height / factor / cell), math.floor(width / factor / cell)
        elif rows * columns * cell * cell < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * factor / cell), math.ceil(width * factor / cell)
        return rows * columns


def image_grid(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> ImageGrid | None:
    """The grid that ``config.json`` and ``preprocessor_config.json`` describe, None for families without one."""
    if config.get("model_type") not in _GRID_FAMILIES:
        return None
    bounds: dict[str, Any] = {name: preprocessor.get(name) for name in ("min_pixels", "max_pixels")}
    if bounds["min_pixels"] is None and bounds["max_pixels"] is None:
        size = preprocessor.get("size")
        edges = size if isinstance(size, Mapping) else {}
        bounds = {"min_pixels": edges.get("shortest_edge"), "max_pixels": edges.get("longest_edge")}
    bounds |= {name: preprocessor.get(name) for name in ("patch_size", "merge_size")}
    return ImageGrid(**{name: value for name, value in bounds.items() if _is_count(value)})


def read_preprocessor(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """``config.json`` and ``preprocessor_config.json`` of a model; empty where there is no such JSON object."""
    return _read(folder / "config.json"), _read(folder / "preprocessor_config.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            return {}
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _half_up(value: float) -> int:
    return math.floor(value + 0.5)
