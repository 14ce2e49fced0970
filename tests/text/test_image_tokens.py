import json
from pathlib import Path

import pytest

from rustedvino.text.image_tokens import ImageGrid, image_grid, read_preprocessor


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (28, 28, 4),  # enlarged to the least of 56×56 pixels
        (56, 56, 4),
        (84, 56, 6),
        (300, 200, 77),
        (1, 1, 4),
        (4000, 3000, 143 * 107),
    ],
)
def test_counts_of_the_usual_grid(width: int, height: int, tokens: int) -> None:
    assert ImageGrid().tokens(width, height) == tokens


def test_an_image_above_the_bound_stays_below_it() -> None:
    grid = ImageGrid(max_pixels=64 * 28 * 28)
    assert grid.tokens(2000, 2000) == 64
    assert 0 < grid.tokens(3000, 1000) <= 64


def test_an_image_too_thin_for_the_grid_has_no_tokens() -> None:
    assert ImageGrid(max_pixels=64 * 28 * 28).tokens(28, 5500) == 0


def test_the_grid_is_read_from_the_files_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"}))
    size = {"shortest_edge": 65536, "longest_edge": 16777216}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"patch_size": 16, "merge_size": 2, "size": size}))
    assert image_grid(*read_preprocessor(tmp_path)) == ImageGrid(
        patch_size=16, merge_size=2, min_pixels=65536, max_pixels=16777216
    )


def test_own_bounds_win_over_size_and_null_counts_as_absent() -> None:
    config = {"model_type": "qwen2_5_vl"}
    size = {"shortest_edge": 1, "longest_edge": 2}
    assert image_grid(config, {"min_pixels": 100, "max_pixels": 200, "size": size}) == ImageGrid(
        min_pixels=100, max_pixels=200
    )
    assert image_grid(config, {"min_pixels": None, "max_pixels": None, "size": size}) == ImageGrid(
        min_pixels=1, max_pixels=2
    )
    assert image_grid(config, {"patch_size": None, "merge_size": -1}) == ImageGrid()


def test_other_families_and_missing_files_have_no_grid(tmp_path: Path) -> None:
    assert image_grid({"model_type": "llava"}, {}) is None
    (tmp_path / "config.json").write_text("[")
    assert read_preprocessor(tmp_path) == ({}, {})
