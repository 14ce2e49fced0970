import re

import pytest

from rustedvino.config.plugin import OWN_SETTINGS, PLUGIN_PROPERTIES, plugin_property_fault
from rustedvino.config.table import GLOBAL, MODEL


@pytest.mark.parametrize("name", sorted(PLUGIN_PROPERTIES))
def test_listed_properties_may_be_set(name):
    assert plugin_property_fault(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "CACHE_DIR",
        "WEIGHTS_PATH",
        "CONFIG_FILE",
        "GPU_CONV_LOOKUP_TABLE_PATH",
        "NPU_COMPILATION_MODE_PARAMS",
        "NPU_EXPORT_RAW_BLOB",
        "LOG_LEVEL",
        "DEVICE_ID",
        "performance_hint",
        "",
    ],
)
def test_files_code_and_what_the_server_decides_may_not_be_set(name):
    assert plugin_property_fault(name) is not None


def test_no_listed_property_names_a_file_or_folder():
    assert not [name for name in PLUGIN_PROPERTIES if re.search("PATH|DIR|FILE|DUMP|BLOB|LIB", name)]


def test_properties_with_a_setting_of_their_own_say_which():
    names = {row.name for row in (*GLOBAL, *MODEL)}
    for name, setting in OWN_SETTINGS.items():
        assert setting in names
        assert plugin_property_fault(name).endswith(f"use the setting {setting}")


def test_a_slip_of_the_pen_is_answered_with_the_nearest_name():
    assert plugin_property_fault("PERFORMANCE_HNT").endswith('did you mean "PERFORMANCE_HINT"?')
