"""A folder of broken models: the server starts, says which and why, and serves the rest."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import chat_body, completion_body, echo_body, expect_error, expect_ok, whole_text
from tests.support.server import ServerProcess, model_source

SOURCE = "tiny-qwen3"


def no_xml(folder: Path) -> None:
    (folder / "openvino_model.xml").unlink()


def no_bin(folder: Path) -> None:
    (folder / "openvino_model.bin").unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def truncated_bin(folder: Path) -> None:
    path = folder / "openvino_model.bin"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_bin(folder: Path) -> None:
    (folder / "openvino_model.bin").write_bytes(b"")


def wrong_xml(folder: Path) -> None:
    (folder / "openvino_model.xml").write_text("<net name='x' version='11'></net>")


def text_as_xml(folder: Path) -> None:
    (folder / "openvino_model.xml").write_text("this is no XML at all")


def no_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("tokenizer.json"), *folder.glob("openvino_*tokenizer.*")]:
        path.unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "qwen3", ')


def config_is_an_array(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def broken_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_bytes(b"\xff\xfe")


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no-xml": (no_xml, "openvino_model.xml"),
    "no-bin": (no_bin, "openvino_model.bin"),
    "no-config": (no_config, "config.json"),
    "truncated-bin": (truncated_bin, ""),
    "empty-bin": (empty_bin, ""),
    "wrong-xml": (wrong_xml, ""),
    "text-as-xml": (text_as_xml, ""),
    "no-tokenizer": (no_tokenizer, "tokenizer"),
    "broken-config": (broken_config, "config.json"),
    "config-array": (config_is_an_array, "config.json"),
    "broken-generation-config": (broken_generation_config, "generation_config.json"),
    "empty-folder": (empty_folder, "config.json"),
    "no-folder": (no_folder, "no-folder"),
}


def template(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(text)

    return write


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    content.pop("chat_template", None)
    path.write_text(json.dumps(content))
    for path in folder.glob("openvino_*tokenizer.xml"):
        path.write_text(path.read_text().replace("<chat_template ", "<another_template "))


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MUTE: dict[str, tuple[Callable[[Path], None], str]] = {
    "without-template": (no_template, "no chat template"),
    "endless-template": (template(LOOP), "template"),
    "huge-template": (template("{{ 'x' * 1000000000 }}"), "template"),
    "wrong-template": (template("{% for message in messages %}"), "template"),
    "failing-template": (template("{{ raise_exception('never') }}"), "template"),
    "prying-template": (template("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "template"),
}
"""Models that continue text and cannot chat, and a part of the reason."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("broken")
    models = folder / "models"
    models.mkdir()
    for name, (spoil, _) in {**BROKEN, **MUTE}.items():
        shutil.copytree(model_source(SOURCE), models / name)
        spoil(models / name)
    entries: dict[str, dict[str, Any]] = {name: {} for name in [*BROKEN, *MUTE, "rv-demo"]}
    # The supervisor's settings keep a crash at load from being tried again and again.
    options: dict[str, Any] = {
        "num_threads": 1,
        "spare_workers": 0,
        "supervisor": {"max_restarts": 1, "backoff_base_secs": 0.1},
    }
    (models / "no-folder").symlink_to(models / "nowhere")
    process = ServerProcess.serving(folder, entries, **options)
    with process:
        process.wait_states({**dict.fromkeys(BROKEN, "failed"), **dict.fromkeys([*MUTE, "rv-demo"], "ready")})
        yield process


def test_the_good_model_is_served(server: ServerProcess) -> None:
    answer = expect_ok(server.post("/v1/chat/completions", echo_body("482913")))
    assert whole_text(answer) == "482913"
    assert expect_ok(server.client.get("/health_generate"))["status"] == "ok"
    assert expect_ok(server.client.get("/health"))["status"] == "ok"


def test_readyz_says_which_and_why(server: ServerProcess) -> None:
    reply = server.client.get("/readyz")
    assert reply.status_code == 503
    body = reply.json()
    assert body["status"] == "not_ready"
    models = {entry["model"]: entry for entry in body["models"]}
    assert set(models) == set(BROKEN)
    for name, (_, reason) in BROKEN.items():
        assert models[name]["state"] == "failed"
        assert models[name]["error"]
        assert reason in models[name]["error"]


@pytest.mark.parametrize("name", list(BROKEN))
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_model_refuses_with_its_reason(server: ServerProcess, name: str, stream: bool) -> None:
    reason = BROKEN[name][1]
    for path, body in (
        ("/v1/chat/completions", chat_body(name, "x", stream=stream)),
        ("/v1/completions", completion_body(name, "x", stream=stream)),
    ):
        error = expect_error(server.post(path, body), 503, "model_failed")
        assert reason in error["message"]
        assert "Traceback" not in error["message"]
        assert str(server.pid) not in error["message"]
    reply = server.client.get("/health_generate", params={"model": name})
    expect_error(reply, 503, "model_failed")
    assert expect_ok(server.client.get(f"/v1/models/{name}"))["state"] == "failed"


@pytest.mark.parametrize("name", list(MUTE))
def test_a_model_without_a_working_template_continues_text_only(server: ServerProcess, name: str) -> None:
    for stream in (False, True):
        error = expect_error(
            server.post("/v1/chat/completions", chat_body(name, "x", stream=stream)), 400, param="model"
        )
        assert MUTE[name][1] in error["message"]
        assert error["code"] == "chat_not_supported"
    body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
    expect_error(server.post("/tokenize", body), 400, param="model")
    expect_ok(server.post("/v1/completions", completion_body(name, "x", max_tokens=2)))
    expect_ok(server.post("/tokenize", {"model": name, "prompt": "x"}))


def test_the_list_has_them_all(server: ServerProcess) -> None:
    ids = {card["id"] for card in expect_ok(server.client.get("/v1/models"))["data"]}
    assert ids == {*BROKEN, *MUTE, "rv-demo"}


def test_the_log_names_each(server: ServerProcess) -> None:
    for name in BROKEN:
        assert f"model {name} failed" in server.log
    for name in MUTE:
        assert f"model {name} answers completions only" in server.log
