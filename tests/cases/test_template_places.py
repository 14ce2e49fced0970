"""Where a model's chat template is found, seen from a client, for every place it may be in."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.answers import chat_body, completion_body, expect_error, expect_ok
from tests.support.server import ServerProcess, model_source
from tests.support.template_models import link_model

CHAT = "/v1/chat/completions"
TEMPLATE = "{% for m in messages %}NAME {{ m.content }}{% endfor %}"


def own(folder: Path, name: str) -> Path:
    """Put a copy of a file in place of the link to it."""
    text = (folder / name).read_text()
    (folder / name).unlink()
    (folder / name).write_text(text)
    return folder / name


def without_xml_template(folder: Path, value: str | None = None) -> None:
    path = own(folder, "openvino_tokenizer.xml")
    kept = re.sub(r"<(simplified_)?chat_template value=\"[^\"]*\" ?/>", "", path.read_text())
    if value is not None:
        kept = kept.replace("<rt_info>", f'<rt_info><chat_template value="{value}" />', 1)
    path.write_text(kept)


def with_config(folder: Path, value: object) -> None:
    path = own(folder, "tokenizer_config.json")
    content = json.loads(path.read_text())
    content.pop("chat_template", None)
    path.write_text(json.dumps(content if value is None else {**content, "chat_template": value}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("places")
    models = folder / "models"
    named = {place: TEMPLATE.replace("NAME", place) for place in ("jinja", "json", "config", "xml", "default", "tools")}
    for name in ("all", "jinja-only", "json-file", "config-only", "named", "xml-only", "none"):
        link_model(models / name, named["jinja"] if name in ("all", "jinja-only") else None)
        if name in ("all", "json-file"):
            (models / name / "chat_template.json").write_text(json.dumps({"chat_template": named["json"]}))
        listed = [{"name": key, "template": named[own]} for key, own in (("tool_use", "tools"), ("default", "default"))]
        with_config(models / name, {"all": named["config"], "config-only": named["config"], "named": listed}.get(name))
        without_xml_template(models / name, named["xml"] if name in ("all", "xml-only") else None)
    entries = {path.name: {"load": "on_demand"} for path in models.iterdir()}
    with ServerProcess.serving(folder, entries, num_threads=1, spare_workers=0) as process:
        yield process


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("all", "jinja"), ("jinja-only", "jinja"), ("json-file", "json")),
        *(("config-only", "config"), ("named", "default"), ("xml-only", "xml")),
    ],
)
def test_the_first_place_counts(server: ServerProcess, name: str, place: str) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
    tokens = expect_ok(server.post("/tokenize", body))["tokens"]
    assert expect_ok(server.post("/detokenize", {"model": name, "tokens": tokens}))["prompt"] == f"{place} hello"
    expect_ok(server.post(CHAT, {**body, "max_tokens": 1}))


def test_without_one_a_model_continues_text(server: ServerProcess) -> None:
    for stream in (False, True):
        error = expect_error(server.post(CHAT, chat_body("none", "x", stream=stream)), 400, "chat_not_supported")
        assert "no chat template" in error["message"]
        assert "/v1/completions" in error["message"]
    expect_ok(server.post("/v1/completions", completion_body("none", "x", max_tokens=1)))


def test_a_template_of_the_settings_comes_first(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(TEMPLATE.replace("NAME", "mine"))
    models = {"tiny-qwen3": {"load": "on_demand", "chat_template": "mine.jinja"}}
    with ServerProcess.serving(tmp_path, models, num_threads=1, spare_workers=0) as server:
        body = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "hello"}]}
        tokens = expect_ok(server.post("/tokenize", body))["tokens"]
        text = expect_ok(server.post("/detokenize", {"model": "tiny-qwen3", "tokens": tokens}))["prompt"]
        assert text == "mine hello"
    assert model_source("tiny-qwen3").joinpath("chat_template.jinja").is_file()
