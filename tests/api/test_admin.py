import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.api import admin
from rustedvino.api.errors import ApiError

KNOWN = ["priority", "pinned", "kind", "load", "kv_cache_gb"]


def refused(call, *arguments):
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    assert caught.value.status == 400
    return caught.value


def test_add_takes_the_id_and_leaves_the_rest():
    wanted = admin.read_add({"priority": 1, "model_id": "m", "load": None}, KNOWN)
    assert (wanted.model_id, wanted.settings) == ("m", {"priority": 1, "load": None})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model_id"),
        ({"model_id": None}, "model_id"),
        ({"model_id": 3}, "model_id"),
        ({"model_id": ["m"]}, "model_id"),
        ({"model_id": "m", "prioritty": 1}, "prioritty"),
        ({"model_id": "m", "_comment": 1}, "_comment"),
        ({"id": "m"}, "id"),
    ],
)
def test_add_names_what_is_wrong(body, param):
    assert refused(admin.read_add, body, KNOWN).param == param


def test_an_unknown_field_suggests_the_nearest():
    error = refused(admin.read_patch, {"Priorty": 1}, KNOWN)
    assert (error.param, error.code) == ("Priorty", "unknown_parameter")
    assert "did you mean 'priority'?" in error.message
    far = refused(admin.read_patch, {"zzz": 1}, KNOWN).message
    assert "did you mean" not in far
    assert "kv_cache_gb" in far


def test_patch_passes_fields_on_with_their_nulls():
    assert admin.read_patch({"priority": None, "pinned": "?"}, KNOWN) == {"priority": None, "pinned": "?"}


@pytest.mark.parametrize("kind", ["text_gen", None, 1])
def test_the_kind_is_immutable(kind):
    error = refused(admin.read_patch, {"priority": 1, "kind": kind}, KNOWN)
    assert (error.param, error.code) == ("kind", "immutable_parameter")


def test_an_empty_patch_is_refused():
    refused(admin.read_patch, {}, KNOWN)


@pytest.mark.parametrize(
    ("body", "query", "force"),
    [
        ({}, {}, False),
        ({"force": True}, {}, True),
        ({"force": None}, {"force": "1"}, True),
        ({}, {"force": "TRUE"}, True),
        ({}, {"force": "0"}, False),
        ({"force": True}, {"force": "true"}, True),
    ],
)
def test_force_from_body_or_query(body, query, force):
    assert admin.read_load(body, query).force is force


@pytest.mark.parametrize(
    ("body", "query", "param"),
    [
        ({"force": 1}, {}, "force"),
        ({"force": "true"}, {}, "force"),
        ({}, {"force": "yes"}, "force"),
        ({}, {"force": ""}, "force"),
        ({}, {"forse": "1"}, "forse"),
        ({"forse": True}, {}, "forse"),
        ({"force": False}, {"force": "1"}, "force"),
    ],
)
def test_force_that_is_unclear(body, query, param):
    assert refused(admin.read_load, body, query).param == param


def test_a_load_may_name_its_pool():
    assert admin.read_load({"kv_cache_gb": 2}, {}).kv_cache_gb == 2.0
    assert admin.read_load({"kv_cache_gb": None}, {}).kv_cache_gb is None
    assert admin.read_load({}, {"kv_cache_gb": "0.5", "force": "1"}) == admin.LoadRequest(True, 0.5)
    assert admin.read_load({"kv_cache_gb": 2}, {"kv_cache_gb": "2.0"}).kv_cache_gb == 2.0


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "1e3", "1_0", " 1", "\u0661", "9" * 30, "2097152"])
def test_a_pool_in_the_query_is_a_number(text):
    assert refused(admin.read_load, {}, {"kv_cache_gb": text}).param == "kv_cache_gb"
    assert refused(admin.read_load, {"kv_cache_gb": 3}, {"kv_cache_gb": "1"}).param == "kv_cache_gb"


@pytest.mark.parametrize("value", [-0.1, "1", True, None, 2**21, [1]])
def test_a_resize_needs_a_size(value):
    assert refused(admin.read_resize, {"kv_cache_gb": value}).param == "kv_cache_gb"
    if value is not None:
        assert refused(admin.read_load, {"kv_cache_gb": value}, {}).param == "kv_cache_gb"


def test_a_resize_has_no_other_field():
    assert admin.read_resize({"kv_cache_gb": 0}).kv_cache_gb == 0
    assert refused(admin.read_resize, {"kv_cache_gb": 1, "force": True}).param == "force"


def test_preload_by_name_or_as_it_is():
    assert admin.read_preload({"model_ids": ["b", "a"]}).model_ids == ("b", "a")
    assert admin.read_preload({"model_ids": []}).model_ids == ()
    assert admin.read_preload({"from_live": True}).model_ids is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model_ids"),
        ({"from_live": False}, "model_ids"),
        ({"model_ids": ["a"], "from_live": True}, "model_ids"),
        ({"model_ids": "a"}, "model_ids"),
        ({"model_ids": ["a", 1]}, "model_ids[1]"),
        ({"model_ids": ["a", "b", "a"]}, "model_ids[2]"),
        ({"from_live": 1}, "from_live"),
        ({"model_id": "a"}, "model_id"),
    ],
)
def test_preload_that_is_unclear(body, param):
    assert refused(admin.read_preload, body).param == param


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["model_id", "model_ids", "from_live", "force", "kv_cache_gb", *KNOWN]) | st.text()


@given(st.dictionaries(names, json_values, max_size=4), st.dictionaries(names, st.text(), max_size=2))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_read_or_refused(body, query):
    calls = [
        lambda: admin.read_add(body, KNOWN),
        lambda: admin.read_patch(body, KNOWN),
        lambda: admin.read_load(body, query),
        lambda: admin.read_resize(body),
        lambda: admin.read_preload(body),
    ]
    for call in calls:
        with contextlib.suppress(ApiError):
            call()
