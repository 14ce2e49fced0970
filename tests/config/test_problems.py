import pytest

from rustedvino.config.problems import (
    ConfigError,
    ConfigProblem,
    JsonObject,
    Literal,
    Reading,
    join,
    nearest,
    show,
)


@pytest.mark.parametrize(
    ("where", "name", "path"),
    [
        ("", "port", "port"),
        ("models", "qwen", "models.qwen"),
        ("models", "Qwen2.5-7B", "models.Qwen2.5-7B"),
        ("models", "", 'models[""]'),
        ("models", "a b", 'models["a b"]'),
        ("models", 'a"b', 'models["a\\"b"]'),
    ],
)
def test_join_gives_a_path_that_cannot_be_misread(where, name, path):
    assert join(where, name) == path


def test_error_text_lists_every_problem_and_the_source():
    error = ConfigError([ConfigProblem("port", "is odd"), ConfigProblem("", "is short")], "config.json")
    assert str(error) == "config.json: 2 problems\n  port: is odd\n  is short"


def test_problems_are_printable_whatever_the_file_held(tmp_path):
    reading = Reading(tmp_path)
    reading.problem("models.\ud800", "got \x1b[31m")
    (problem,) = reading.problems
    assert str(problem) == "models.\\ud800: got \\u001b[31m"


def test_json_object_remembers_repeated_keys_once_each():
    repeated = JsonObject([("a", 1), ("b", 2), ("a", 3), ("a", 4)])
    assert repeated == {"a": 4, "b": 2}
    assert repeated.repeated == ("a",)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 500, '"' + "x" * 60 + '…"'),
        (None, "null"),
        (True, "true"),
        ([1], "a list"),
        ({}, "an object"),
        (Literal("NaN"), "NaN, which is no usable number"),
        (1.5, "1.5"),
    ],
)
def test_values_are_shown_short_and_in_json_terms(value, text):
    assert show(value) == text


def test_nearest_ignores_case_and_gives_up_on_the_unlike():
    assert nearest("VRAM_GB", ["vram_gb", "kind"]) == "vram_gb"
    assert nearest("zzzzzz", ["vram_gb", "kind"]) is None
