"""Strict structuring: kinds, coercions, absence, paths."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.api.converter import FieldError, NonEmpty, Within, render_path, structure
from rustedvino.api.errors import ApiError


@frozen(kw_only=True)
class Inner:
    size: int
    tags: tuple[str, ...] = ()


@frozen(kw_only=True)
class Outer:
    REFUSED: ClassVar[Mapping[str, str]] = {"legacy": "use 'inner'"}

    name: Annotated[str, NonEmpty(5)]
    flag: bool = False
    count: int = 7
    share: Annotated[float, Within(0, 1, above=True)] | None = None
    mode: Literal["a", "b"] = "a"
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    either: str | tuple[int, ...] | None = None
    weights: dict[str, Annotated[float, Within(-1, 1)]] | None = None
    free: dict[str, Any] | None = None

    def __attrs_post_init__(self) -> None:
        if self.flag and self.count == 13:
            raise FieldError("must not be 13 with a flag.", ("count",))


def refused(data: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        structure(data, Outer)
    assert caught.value.status == 400
    return caught.value


def test_a_full_object_is_structured():
    data = {
        "name": "n",
        "flag": True,
        "count": 5.0,
        "share": 1,
        "mode": "b",
        "inner": {"size": 1, "tags": ["x"]},
        "many": [{"size": 2}],
        "either": [1, 2.0],
        "weights": {"1": -1},
        "free": {"anything": [None, {"x": True}]},
        "unknown": object,
    }
    assert structure(data, Outer) == Outer(
        name="n",
        flag=True,
        count=5,
        share=1.0,
        mode="b",
        inner=Inner(size=1, tags=("x",)),
        many=(Inner(size=2),),
        either=(1, 2),
        weights={"1": -1.0},
        free={"anything": [None, {"x": True}]},
    )
    result = structure(data, Outer)
    assert type(result.count) is int
    assert type(result.share) is float


def test_null_means_absent():
    nulls = dict.fromkeys(["flag", "count", "share", "mode", "inner", "many", "either", "weights", "free", "legacy"])
    assert structure({"name": "n", **nulls}, Outer) == Outer(name="n")


@pytest.mark.parametrize("data", [{}, {"name": None}])
def test_a_missing_field_is_named(data):
    error = refused(data)
    assert (error.param, error.code) == ("name", "missing_required_parameter")
    assert "you must provide a name parameter" in error.message


@pytest.mark.parametrize(
    ("field", "value", "param", "expected"),
    [
        ("name", 5, "name", "a string, but it is 5"),
        ("name", "", "name", "a non-empty string with at most 5 characters"),
        ("name", "toolong", "name", "at most 5 characters"),
        ("flag", 1, "flag", "true or false, but it is 1"),
        ("flag", "true", "flag", 'true or false, but it is "true"'),
        ("count", True, "count", "an integer, but it is true"),
        ("count", "5", "count", 'an integer, but it is "5"'),
        ("count", 5.5, "count", "an integer, but it is 5.5"),
        ("count", float("inf"), "count", "an integer"),
        ("share", "0.5", "share", "a number"),
        ("share", False, "share", "a number"),
        ("share", float("nan"), "share", "a number, but it is nan"),
        ("share", 10**400, "share", "a number"),
        ("share", 0, "share", "a number above 0 and at most 1, but it is 0"),
        ("share", 1.5, "share", "a number above 0 and at most 1"),
        ("mode", "c", "mode", "one of 'a', 'b', but it is \"c\""),
        ("mode", ["a"], "mode", "one of 'a', 'b', but it is an array of 1 item"),
        ("inner", [], "inner", "an object, but it is []"),
        ("inner", {}, "inner.size", "you must provide a size parameter"),
        ("inner", {"size": 1, "tags": ["x", 2]}, "inner.tags[1]", "a string"),
        ("many", {"size": 1}, "many", "an array"),
        ("many", [{"size": 1}, {"size": "1"}], "many[1].size", "an integer"),
        ("many", [{"size": 1}, None], "many[1]", "an object, but it is null"),
        ("either", 1, "either", "a string or an array"),
        ("either", [1, "2"], "either[1]", "an integer"),
        ("weights", {"7": 2}, "weights.7", "a number between -1 and 1"),
        ("weights", {"a b": "x"}, 'weights["a b"]', "a number"),
        ("free", [1], "free", "an object"),
        ("legacy", False, "legacy", "use 'inner'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(field, value, param, expected):
    error = refused({"name": "n", field: value})
    assert error.param == param
    assert f"'{param}'" in error.message
    assert expected in error.message


def test_a_check_over_fields_keeps_its_path():
    assert refused({"name": "n", "flag": True, "count": 13}).param == "count"


@pytest.mark.parametrize("data", [None, [], "x", 5])
def test_the_whole_must_be_an_object(data):
    error = refused(data)
    assert error.param is None
    assert "must be an object" in error.message


def test_of_many_wrong_items_the_first_is_named():
    many = [{"size": "x"} for _ in range(1000)]
    assert refused({"name": "n", "many": many}).param == "many[0].size"


@given(st.lists(st.integers(0, 10**6) | st.text(st.characters(exclude_categories=()), max_size=200), max_size=6))
def test_any_path_renders_as_encodable_text(path):
    assert render_path(path).encode("utf-8") is not None


def test_paths_read_like_the_api():
    assert render_path(("messages", 2, "content", 0, "type")) == "messages[2].content[0].type"
    assert render_path(("logit_bias", "50256")) == "logit_bias.50256"
    assert render_path(()) == ""
