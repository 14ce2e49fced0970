"""The live view."""

import json
from collections.abc import Callable

import pytest

from rustedvino.rv.top import Sample, first_token_secs, read_ttft, rows, speed
from tests.rv.conftest import IDLE, MODEL, Ended, models
from tests.rv.fake import Answer, FakeServer, error_answer
from tests.rv.terminal import ESCAPES, Terminal

Rv = Callable[..., Ended]
METRICS = """\
# TYPE rustedvino_ttft_seconds histogram
rustedvino_ttft_seconds_bucket{model="qwen",device="GPU",kind="text_gen",le="0.05"} 1.0
rustedvino_ttft_seconds_sum{model="qwen",device="GPU",kind="text_gen"} 2.5
rustedvino_ttft_seconds_count{model="qwen",device="GPU",kind="text_gen"} 10.0
rustedvino_ttft_seconds_sum{device="CPU",model="a\\"b\\\\n"} 1e-3
rustedvino_ttft_seconds_count{device="CPU",model="a\\"b\\\\n"} 1.0
other_sum{model="qwen"} 9
"""


def sample(at: float, tokens: int, ttft: tuple[float, float] = (0.0, 0.0)) -> Sample:
    return Sample(at, {}, [{**IDLE}, {**MODEL, "tokens_generated": tokens}], {"qwen": ttft})


def test_speed_is_what_came_between_two_looks() -> None:
    model = sample(3, 150).models[1]
    assert speed(sample(1, 100), sample(3, 150), model) == 25.0
    assert speed(sample(3, 150), sample(3, 150), model) is None
    assert speed(sample(1, 900), sample(3, 150), model) is None, "the model was registered anew"
    assert speed(Sample(1, {}, [], {}), sample(3, 150), model) is None


def test_times_to_first_tokens() -> None:
    assert read_ttft(METRICS) == {"qwen": (2.5, 10.0), 'a"b\\n': (0.001, 1.0)}
    assert read_ttft("nothing of ours") == {}
    assert first_token_secs(sample(0, 0, (2.0, 8)), sample(1, 0, (2.5, 10)), "qwen") == 0.25
    assert first_token_secs(sample(0, 0, (2.0, 8)), sample(1, 0, (2.0, 8)), "qwen") is None


def test_busy_models_come_first() -> None:
    assert [row[0] for row in rows(sample(0, 0), sample(1, 5))] == ["qwen", "phi"]


def test_piped_it_is_one_look(rv: Rv, fake: FakeServer) -> None:
    before, now = {**MODEL, "tokens_generated": 0}, {**MODEL, "tokens_generated": 1000}
    fake.add("GET /v1/admin/models", models(before), models(now))
    fake.add("GET /metrics", Answer(200, METRICS.encode(), {"x-server": "rustedvino"}))
    lines = rv("top", "--interval", "0.2", host=fake).out.splitlines()
    assert lines[0].split() == ["MODEL", "STATE", "DEVICE", "TOK/S", "RUN", "WAIT", "TTFT", "KV", "MEMORY"]
    assert lines[1].startswith("qwen   ready  GPU")
    assert len(lines) == 2
    value = rv("top", "--json", "--interval", "0.2", host=fake).json
    assert value["models"][0]["tokens_per_second"] == 0.0
    assert value["server"]["pid"] == 4711
    assert rv("top", "--interval", "0", host=fake).code == 2
    assert rv("top", "--interval", "nan", host=fake).code == 2
    assert rv("top", "--host", "127.0.0.1:1").code == 3


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("leave", ["q", "\x03"])
def test_live(terminal: Callable[..., Terminal], fake: FakeServer, columns: int, leave: str) -> None:
    looks = [models({**MODEL, "tokens_generated": 10**6 * number}, IDLE) for number in range(50)]
    fake.add("GET /v1/admin/models", *looks)
    fake.add("GET /metrics", error_answer(404, "no", "unknown_url"))
    with terminal("top", "--interval", "0.2", "--host", fake.url, columns=columns) as shell:
        shell.expect(r"gpu0: [█░]+ 3\.0 GiB of 8\.0 GiB \(38%\)")
        shell.expect(r"[1-9]\d+\.\d tokens/s  2 running  1 waiting")
        shell.expect("q leaves")
        shell.type(leave)
        assert shell.end() == 0
    frames = ESCAPES.sub("", shell.raw.replace("\x1b[H", "\n"))
    assert max(len(line) for line in frames.splitlines()) == columns
    assert shell.raw.count("\x1b[?1049h") == shell.raw.count("\x1b[?1049l") == 1, "the screen is as it was before"
    assert shell.raw.rindex("\x1b[?25h") > shell.raw.rindex("\x1b[?25l"), "the cursor is back"


def test_a_server_that_goes_away_is_said(terminal: Callable[..., Terminal]) -> None:
    with FakeServer() as fake:
        fake.add("GET /v1/admin/models", models(MODEL))
        shell = terminal("top", "--interval", "0.2", "--host", fake.url)
        shell.expect("q leaves")
    with shell:
        shell.expect("no server answers")
        shell.type("q")
        assert shell.end() == 0


def test_json_numbers_are_json() -> None:
    json.dumps(rows(sample(0, 0), sample(1, 5)), allow_nan=False)
