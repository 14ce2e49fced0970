"""Command lines."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

from rustedvino.rv.errors import UsageError
from rustedvino.rv.parser import overview, parse, split_verb, verb_parser
from rustedvino.rv.verbs import BY_NAME, VERBS, Verb


def parsed(*arguments: str) -> argparse.Namespace:
    verb, options = parse(arguments)
    assert verb is not None
    return options


def test_options_of_all_verbs_stand_before_or_after_the_verb() -> None:
    for order in (["--host", "h", "list", "--json"], ["list", "--json", "--host", "h"], ["--host=h", "--json", "list"]):
        options = parsed(*order)
        assert (options.host, options.json) == ("h", True)
    assert split_verb(["--key", "list", "ps", "x"]) == ("ps", ["--key", "list", "x"])


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ([], "what to do is missing", "rv --help"),
        (["--json"], "no verb in: --json", "rv --help"),
        (["lst"], "no verb 'lst'", "rv list"),
        (["zzzzzz"], "no verb", "rv --help"),
        (["load"], "MODEL", "rv load --help"),
        (["list", "--jsn"], "--jsn", "rv list --help"),
        (["list", "--js"], "--js", "rv list --help"),
        (["logs", "-n", "0"], "0 is less than 1", "rv logs --help"),
        (["resize", "m", "big"], "invalid float", "rv resize --help"),
        (["keys", "old"], "invalid choice", "rv keys --help"),
    ],
)
def test_wrong_usage_says_what_is_wrong(arguments: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_a_function_and_help(verb: Verb) -> None:
    module, name = verb.function.split(":")
    assert callable(getattr(importlib.import_module(f"rustedvino.rv.{module}"), name))
    assert all(len(line) <= 80 for line in overview().splitlines() if verb.name in line[:20])
    text = verb_parser(verb).format_help()
    assert ("--json" in text) == verb.has_json
    assert ("--yes" in text) == verb.asks


def test_every_verb_and_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "RV.md").read_text()
    for verb in VERBS:
        assert f"`rv {verb.name}" in text, verb.name
        for option in re.findall(r"--[a-z-]+", verb_parser(verb).format_help()):
            assert option in text or option == "--help", option


def test_all_verbs_of_the_contract_are_there() -> None:
    wanted = (
        "status list ps check add load unload deregister patch preload save-defaults logs reload-config reload-keys "
        "resize completeness voice-pin sessions session session-kill start stop restart chat pull top keys version "
        "completion"
    )
    assert set(wanted.split()) <= set(BY_NAME)
