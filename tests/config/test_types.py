from pathlib import Path

import attrs
import pytest

from rustedvino.config.types import LoadedConfig, ServerSettings, gb_to_bytes, keys_file_name


def settings(**changes):
    return ServerSettings(models_dir=Path("/m"), device="CPU", total_vram_gb=0.0, **changes)


def test_a_gb_is_two_to_the_thirty_bytes():
    assert gb_to_bytes(1) == 1_073_741_824
    assert gb_to_bytes(0.5) == 536_870_912
    assert gb_to_bytes(0) == 0


def test_zero_running_sequences_stand_for_256():
    assert settings(max_num_seqs=0).max_running_seqs == 256
    assert settings(max_num_seqs=3).max_running_seqs == 3


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        settings().port = 1


def test_default_containers_are_not_shared():
    assert settings().models is not settings().models


def test_keys_stand_beside_the_config_unless_a_file_is_named():
    def loaded(path, **changes):
        return LoadedConfig(settings=settings(**changes), path=path, folder=Path("/etc/rv"), raw={})

    assert keys_file_name(Path("/etc/rv/prod.config.json")) == "prod.config.keys.json"
    assert loaded(Path("/etc/rv/config.json")).keys_path == Path("/etc/rv/config.keys.json")
    assert loaded(Path("/etc/rv/config.json"), keys_file=Path("/k")).keys_path == Path("/k")
    assert loaded(None).keys_path is None
