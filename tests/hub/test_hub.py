"""All models of a server together, without HTTP."""

import os
import shutil
from pathlib import Path

import pytest
import trio

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.errors import UnknownModel
from rustedvino.hub.states import State
from tests.support.actors import EXACT, TEST_POOL_GB, generate, hub, model_folder, server_settings, until


def settings_for(folder: Path, **models: ModelSettings) -> ServerSettings:
    return server_settings(models_dir=folder, models={name.replace("_", "-"): entry for name, entry in models.items()})


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}


async def test_a_broken_model_says_why_and_the_others_are_served(tmp_path: Path) -> None:
    for name in ("tiny-qwen3", "tiny-llama3", "tiny-mistral"):
        shutil.copytree(model_folder(name), tmp_path / name)
    (tmp_path / "tiny-llama3" / "openvino_model.bin").write_bytes(b"cut")
    (tmp_path / "tiny-mistral" / "config.json").unlink()
    entry = ModelSettings(plugin_config=EXACT, kv_cache_gb=TEST_POOL_GB)
    settings = settings_for(
        tmp_path,
        tiny_qwen3=entry,
        tiny_llama3=entry,
        tiny_mistral=entry,
        missing=entry,
        later=ModelSettings(load="on_demand"),
    )
    before = children()
    async with hub(settings) as made:
        for name, state in [
            ("tiny-qwen3", State.READY),
            ("tiny-llama3", State.FAILED),
            ("tiny-mistral", State.FAILED),
            ("missing", State.FAILED),
        ]:
            assert await made.get(name).actor.wait_state(State.READY, State.FAILED) is state, name
        assert "openvino_model.bin has 3 bytes" in str(made.get("tiny-llama3").actor.last_error)
        assert "config.json is missing" in str(made.get("tiny-mistral").actor.last_error)
        assert "does not exist" in str(made.get("missing").actor.last_error)
        assert made.get("later").actor.state is State.NOT_LOADED
        assert {actor.model_id for actor in made.not_ready()} == {"tiny-llama3", "tiny-mistral", "missing"}
        assert len(await generate(made.get("tiny-qwen3").actor, [1, 2], 4)) == 4
        for wrong in ("tiny", "TINY-QWEN3", "", "later "):
            with pytest.raises(UnknownModel):
                made.get(wrong)
        assert [name for name, _ in made] == list(settings.models)
        with trio.fail_after(20):
            await until(lambda: made.utility.pid)
    assert children() <= before


async def test_a_hub_that_ends_while_everything_starts_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tiny-qwen3").symlink_to(model_folder("tiny-qwen3"))
    before = children()
    settings = settings_for(tmp_path, tiny_qwen3=ModelSettings(plugin_config=EXACT))
    for moment_secs in (0.0, 0.1):
        async with hub(settings):
            await trio.sleep(moment_secs)  # different moments of the start; any must do
    assert children() <= before
