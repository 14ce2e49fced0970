"""Chat templates that loop, grow or pry: found at load, told, and no harm to the models beside them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.answers import chat_body, completion_body, echo_body, expect_error, expect_ok, whole_text
from tests.support.server import ServerProcess
from tests.support.template_models import link_model

QUESTION = "{{ messages[0].content }}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"

HOSTILE: dict[str, tuple[str, str]] = {
    "range-too-long": ("{% for i in range(10**12) %}x{% endfor %}" + QUESTION, "Range too big"),
    "nested-loops": (ENDLESS.replace("BODY", ""), "to an end"),
    "endless-join": ("{{ (range(99999) | list * 9999) | join('x') }}", ""),
    "doubling": (DOUBLING + QUESTION, ""),
    "multiplied": ("{{ ('x' * 99999) * 99999 }}" + QUESTION, "MemoryError"),
    "padded": ("{{ 'x' | center(10**10) }}" + QUESTION, ""),
    "formatted": ("{{ '%9999999999d' | format(1) }}" + QUESTION, ""),
    "formatted-by-method": ("{{ '{:>9999999999}'.format(1) }}" + QUESTION, ""),
    "indented-json": ("{{ messages | tojson(indent=10**10) }}" + QUESTION, ""),
    "huge-number": ("{{ (9**(9**9)) | string | length }}" + QUESTION, "to an end"),
    "words": ("{{ lipsum(n=99999, html=false, min=99999, max=999999) }}" + QUESTION, ""),
    "cycler": (ENDLESS.replace("BODY", "{% set c = cycler(1, 2) %}{{ c.next() }}"), "to an end"),
    "joiner": ("{{ joiner.__init__.__globals__.os.system('id') }}" + QUESTION, ""),
    "recursive-macro": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}" + QUESTION, "recursion"),
    "branching-macro": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "to an end",
    ),
    "class-walk": ("{{ ''.__class__.__mro__[1].__subclasses__() }}" + QUESTION, "unsafe"),
    "class-walk-by-filter": ("{{ (''|attr('__class__')).__mro__ }}" + QUESTION, ""),
    "class-walk-by-format": ("{{ '{0.__class__.__mro__[1].__subclasses__}'.format('') | length + 1 }}" + QUESTION, ""),
    "class-walk-by-map": ("{{ [''] | map(attribute='__class__.__mro__') | first | length }}" + QUESTION, ""),
    "globals-of-a-function": ("{{ raise_exception.__globals__['json'].codecs.open('/etc/passwd').read() }}", "unsafe"),
    "globals-of-the-template": ("{{ self._TemplateReference__context.environment.loader.x }}" + QUESTION, ""),
    "changed-messages": ("{{ messages.clear() }}" + QUESTION, "unsafe"),
    "included": ("{% include '/etc/passwd' %}" + QUESTION, "loader"),
    "imported": ("{% import 'os' as os %}{{ os.system('id') }}" + QUESTION, "loader"),
    "extended": ("{% extends 'base.html' %}" + QUESTION, "loader"),
    "debugged": ("{% debug %}" + QUESTION, "debug"),
    "deep-source": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}" + QUESTION, ""),
    "many-nested-blocks": ("{% if true %}" * 500 + QUESTION + "{% endif %}" * 500, ""),
    "only-for-tools": (
        "{% if tools %}{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}{% endif %}" + QUESTION,
        "to an end",
    ),
}
"""Templates, and a part of what is said of each."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    models = folder / "models"
    models.mkdir()
    for name, (text, _) in HOSTILE.items():
        link_model(models / name, text)
    # The good model comes last: it must not pay for those before it.
    entries = {**{name: {"load": "on_demand"} for name in HOSTILE}, "rv-demo": {}}
    process = ServerProcess.serving(folder, entries, num_threads=1, spare_workers=0)
    with process:
        yield process.wait_ready()


@pytest.mark.parametrize("name", list(HOSTILE))
def test_it_continues_text_and_says_why_it_does_not_chat(server: ServerProcess, name: str) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
    error = expect_error(server.post("/tokenize", body), 400, "chat_not_supported", "model")
    assert HOSTILE[name][1] in error["message"]
    assert "root:" not in error["message"]
    assert "uid=" not in error["message"]
    assert len(error["message"]) < 1000
    assert expect_ok(server.post("/tokenize", {"model": name, "prompt": "x"}))["count"] == 1
    assert whole_text(expect_ok(server.post("/v1/chat/completions", echo_body("482913")))) == "482913"


@pytest.mark.parametrize("name", ["nested-loops", "doubling", "class-walk"])
def test_it_is_loaded_for_completions(server: ServerProcess, name: str) -> None:
    expect_ok(server.post("/v1/completions", completion_body(name, "x", max_tokens=2)))
    for stream in (False, True):
        reply = server.post("/v1/chat/completions", chat_body(name, "x", stream=stream))
        expect_error(reply, 400, "chat_not_supported", "model")
    assert f"model {name} answers completions only" in server.log


def test_a_good_model_loads_beside_them(tmp_path: Path) -> None:
    """Templates are tried one after the other; who waits behind endless ones keeps its own."""
    models = tmp_path / "models"
    models.mkdir()
    looping = [f"loop-{index}" for index in range(4)]
    for name in looping:
        link_model(models / name, HOSTILE["nested-loops"][0])
    with ServerProcess.serving(tmp_path, [*looping, "rv-demo"], num_threads=1, spare_workers=0) as server:
        server.wait_ready()
        assert whole_text(expect_ok(server.post("/v1/chat/completions", echo_body("482913")))) == "482913"
        for name in looping:
            error = expect_error(server.post("/v1/chat/completions", chat_body(name, "x")), 400, "chat_not_supported")
            assert "does not come to an end" in error["message"]
