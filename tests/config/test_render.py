import json
from pathlib import Path

import pytest

from rustedvino.config import render
from rustedvino.config.kinds import Group
from rustedvino.config.load import load_config
from rustedvino.config.model_table import MODEL
from rustedvino.config.plugin import PLUGIN_PROPERTIES
from rustedvino.config.table import GLOBAL
from rustedvino.config.types import ModelSettings

ROOT = Path(__file__).parent.parent.parent


def names(rows):
    return [row.name for row in rows]


def load_text(text, folder):
    (folder / "models").mkdir()
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    return load_config(path).settings


def test_the_shipped_reference_is_the_rendered_one():
    assert (ROOT / "docs" / "CONFIG.md").read_text(encoding="utf-8") == render.config_markdown()


def test_the_shipped_example_is_the_rendered_one():
    assert (ROOT / "config.example.json").read_text(encoding="utf-8") == render.example_config_json()


def test_the_reference_has_a_line_for_every_setting_and_property():
    text = render.config_markdown()
    rows = [*GLOBAL, *MODEL]
    for row in rows:
        assert f"| `{row.name}` |" in text
        assert row.meaning in text
        if isinstance(row.kind, Group):
            rows += row.kind.rows
    for name in PLUGIN_PROPERTIES:
        assert f"| {name} |" in text


def test_the_example_gives_every_setting_and_loads(tmp_path):
    text = render.example_config_json()
    config = json.loads(text)
    assert list(config) == names(GLOBAL)
    (entry,) = config["models"].values()
    assert list(entry) == names(MODEL)
    settings = load_text(text, tmp_path)
    assert settings.models_dir == tmp_path / "models"
    assert settings.ov_cache_dir == tmp_path / "ov_cache"


def test_the_printed_defaults_give_every_setting_and_load_as_defaults(tmp_path):
    text = render.default_config_json()
    assert list(json.loads(text)) == names(GLOBAL)
    settings = load_text(text, tmp_path)
    assert settings == type(settings)(
        models_dir=tmp_path / "models", device=settings.device, total_vram_gb=settings.total_vram_gb
    )


def test_the_printed_model_defaults_load_as_defaults(tmp_path):
    entry = json.loads(render.default_model_json())
    assert list(entry) == names(MODEL)
    config = json.loads(render.default_config_json()) | {"models": {"m": entry}}
    assert load_text(json.dumps(config), tmp_path).models == {"m": ModelSettings()}


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_main_writes_both_files_with_unix_line_ends(tmp_path, newline):
    (tmp_path / "docs").mkdir()
    render.main([str(tmp_path)])
    for name in ("docs/CONFIG.md", "config.example.json"):
        written = (tmp_path / name).read_bytes()
        assert written == (ROOT / name).read_bytes()
        assert newline.encode() not in written
