"""Downloads from a hub of our own."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rv.conftest import IDLE, Ended
from tests.rv.fake import FakeServer
from tests.rv.hub import COMMIT, Hub
from tests.rv.terminal import Terminal
from tests.support.server import model_source

Rv = Callable[..., Ended]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    source = tmp_path / "source"
    shutil.copytree(model_source("tiny-llama3"), source)
    (source / "model.safetensors").write_bytes(b"not wanted")
    (source / "README.md").write_text("hello")
    other = tmp_path / "pytorch"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (other / "pytorch_model.bin").write_bytes(b"x")
    incomplete = tmp_path / "incomplete"
    incomplete.mkdir()
    (incomplete / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (incomplete / "openvino_model.xml").write_text("<net/>")
    with Hub(OV__tiny=source, OV__torch=other, OV__half=incomplete) as found:
        yield found


@pytest.fixture
def pull(rv_process: Rv, hub: Hub, home: Path) -> Rv:
    (home / "config.json").write_text(json.dumps({"models_dir": "models", "port": 1, "models": {}}))

    def run(*arguments: str, **environment: str) -> Ended:
        return rv_process("pull", *arguments, environment={"HF_ENDPOINT": hub.url, **environment})

    return run


def test_a_model_is_downloaded_without_what_is_not_needed(pull: Rv, home: Path, hub: Hub) -> None:
    done = pull("OV/tiny")
    assert done.code == 0, done.err
    folder = home / "models" / "tiny"
    assert done.out == f"tiny is complete (text_gen): {folder}\n"
    source = hub.repositories["OV/tiny"]
    for path in source.iterdir():
        if path.name == "model.safetensors":
            assert not (folder / path.name).exists()
        else:
            assert (folder / path.name).read_bytes() == path.read_bytes()
    assert COMMIT[:12] in done.err
    assert "`rv add tiny` registers and loads it" in done.err
    assert not any("authorization" in headers for _, _, headers in hub.asked)
    hub.asked.clear()
    assert pull("OV/tiny").code == 0
    assert not any(method == "GET" and "/resolve/" in path for method, path, _ in hub.asked), "nothing twice"


def test_a_lost_connection_is_taken_up_where_it_broke(pull: Rv, home: Path, hub: Hub) -> None:
    weights = hub.repositories["OV/tiny"] / "openvino_model.bin"
    weights.write_bytes(random.Random(5).randbytes(12 * 2**20))  # the hub's client goes on in steps of 10 MB
    hub.broken = {weights.name: 11 * 2**20}
    done = pull("OV/tiny", "--name", "mine")
    assert done.code == 0, done.err
    assert (home / "models" / "mine" / weights.name).read_bytes() == weights.read_bytes()
    assert [headers["range"] for _, _, headers in hub.asked if "range" in headers] == ["bytes=10485760-"]


def test_complete_files_are_kept_by_a_download_that_fails(pull: Rv, home: Path, hub: Hub) -> None:
    tokenizer = hub.repositories["OV/tiny"] / "tokenizer.json"
    content = tokenizer.read_bytes()
    hub.changed = {tokenizer.name: content[:-1]}
    done = pull("OV/tiny")
    assert done.code == 1
    assert "the same command fetches the rest" in done.err
    assert not (home / "models" / "tiny" / tokenizer.name).exists()
    kept = {path.name for path in (home / "models" / "tiny").iterdir() if path.is_file()}
    assert kept
    hub.changed, hub.asked = {}, []
    done = pull("OV/tiny")
    assert done.code == 0, done.err
    assert (home / "models" / "tiny" / tokenizer.name).read_bytes() == content
    fetched = {path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET" and "/resolve/" in path}
    assert tokenizer.name in fetched
    assert not kept & fetched


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["OV/nothing"], "there is no model OV/nothing at http://127.0.0.1:"),
        (["OV/tiny", "--revision", "v9"], "OV/tiny has no revision 'v9'"),
        (["OV/torch"], "OV/torch holds no OpenVINO model"),
        (["OV/half"], "half was downloaded, but cannot be served: half is not complete: "),
    ],
)
def test_what_goes_wrong_is_said(pull: Rv, home: Path, arguments: list[str], words: str) -> None:
    done = pull(*arguments)
    assert (done.code, words in done.err) == (1, True), done.err
    assert "Traceback" not in done.err
    assert not (home / "models" / "tiny").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny"], "'tiny' is not OWNER/NAME"),
        (["OV/tiny", "--name", "../x"], "cannot be a model id"),
        (["OV/tiny", "--add", "--no-add"], "cannot both"),
        (["OV/tiny", "--host", "far"], "use it there"),
    ],
)
def test_wrong_usage(rv: Rv, home: Path, arguments: list[str], words: str) -> None:
    (home / "config.json").write_text(json.dumps({"models_dir": "models"}))
    done = rv("pull", *arguments)
    assert (done.code, words in done.err) == (2, True), done.err


def test_a_gated_model_needs_a_token(pull: Rv, hub: Hub) -> None:
    hub.gated = {"OV/tiny"}
    done = pull("OV/tiny")
    assert (done.code, "OV/tiny is gated" in done.err) == (1, True), done.err
    assert f"accept its terms at {hub.url}/OV/tiny" in done.err
    done = pull("OV/tiny", HF_TOKEN="hf_wrong")
    assert done.code == 1
    assert "hf_wrong" not in done.err + done.out
    assert pull("OV/tiny", HF_TOKEN=hub.token).code == 0


@pytest.mark.parametrize("environment", [{"HF_ENDPOINT": "http://127.0.0.1:1"}, {"HF_HUB_OFFLINE": "1"}])
def test_offline(pull: Rv, environment: dict[str, str]) -> None:
    done = pull("OV/tiny", **environment)
    assert done.code == 3, done.err
    assert "offline" in done.err or "switched off" in done.err
    assert "Traceback" not in done.err


def test_files_stay_in_the_models_folder() -> None:
    from types import SimpleNamespace

    from rustedvino.rv.errors import RvError
    from rustedvino.rv.pull import _check_files

    for name in ("../evil.xml", "/etc/evil.xml", "a/../../evil.xml"):
        with pytest.raises(RvError, match="leave the models folder"):
            _check_files("OV/x", SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=1)]))
    inside = SimpleNamespace(siblings=[SimpleNamespace(rfilename="unet/model.xml", size=5)])
    assert _check_files("OV/x", inside) == {"unet/model.xml": 5}


def test_no_room_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rustedvino.rv import pull as module
    from rustedvino.rv.errors import RvError

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=2**30))
    module._check_space(tmp_path / "a", {"x": 2**29})
    with pytest.raises(RvError, match="no room"):
        module._check_space(tmp_path / "a", {"x": 2**30})


def test_it_is_added_where_that_is_wanted(pull: Rv, home: Path, fake: FakeServer) -> None:
    port = int(fake.url.rpartition(":")[2])
    (home / "config.json").write_text(json.dumps({"models_dir": "models", "port": port, "models": {"known": {}}}))
    fake.add("GET /v1/admin/models", {"models": []})
    fake.add("POST /v1/admin/models", {**IDLE, "model_id": "tiny", "state": "ready"})
    done = pull("OV/tiny", "--add")
    assert done.code == 0, done.err
    assert "tiny is ready" in done.out
    assert fake.bodies("POST /v1/admin/models") == [{"model_id": "tiny"}]
    assert "is registered already" in pull("OV/tiny", "--name", "known").err
    assert pull("OV/tiny", "-y").code == 0
    assert len(fake.bodies("POST /v1/admin/models")) == 2


def test_in_a_terminal_it_shows_progress_and_asks(
    pull: Rv, terminal: Callable[..., Terminal], hub: Hub, home: Path
) -> None:
    with terminal("pull", "OV/tiny", HF_ENDPOINT=hub.url) as shell:
        shell.expect("100%")
        shell.expect(r"Add tiny to the server and load it\? \[y/N\]")
        shell.type("n\n")
        assert shell.end() == 0
    assert (home / "models" / "tiny" / "config.json").is_file()
