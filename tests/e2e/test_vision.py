"""Images in chats over HTTP, with a real vision model."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from tests.support.server import F32, ServerProcess, sse_chunks

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    entries = {"tiny-vlm": F32, "tiny-qwen3-chat": {}}
    with ServerProcess.serving(tmp_path_factory.mktemp("vision"), entries) as server:
        server.wait_ready()
        yield server


def picture(colour: tuple[int, int, int], kind: str = "PNG", size: tuple[int, int] = (84, 56)) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def ask(*parts: dict[str, Any] | str, model: str = "tiny-vlm", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    fields = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields, **more}


def answer(server: ServerProcess, body: dict[str, Any]) -> tuple[str, int]:
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    reply = response.json()
    return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens"]


def test_the_answer_depends_on_the_image_and_its_place(vision: ServerProcess) -> None:
    red, blue = picture((255, 0, 0)), picture((0, 0, 255))
    first, tokens = answer(vision, ask("What is this?", image(red, detail="low")))
    second, same = answer(vision, ask("What is this?", image(blue, detail="low")))
    bare, few = answer(vision, ask("What is this?"))
    assert len({first, second, bare}) == 3
    assert tokens == same > few
    there, both = answer(vision, ask("One", image(red), "two", image(blue), "three"))
    back, _ = answer(vision, ask("One", image(blue), "two", image(red), "three"))
    assert there != back
    assert both > tokens


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_kinds_of_images(vision: ServerProcess, kind: str) -> None:
    answer(vision, ask("What?", image(picture((10, 200, 30), kind))))


def test_streamed_is_as_whole(vision: ServerProcess) -> None:
    body = ask("Look", image(picture((1, 2, 3))))
    whole, _ = answer(vision, body)
    chunks = sse_chunks(vision.post(CHAT, {**body, "stream": True}).text)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole


def test_an_image_of_an_earlier_turn_counts(vision: ServerProcess) -> None:
    def talk(url: str) -> dict[str, Any]:
        body = ask("and now?")
        body["messages"] = [
            {"role": "user", "content": [{"type": "text", "text": "see"}, image(url)]},
            {"role": "assistant", "content": "yes"},
            *body["messages"],
        ]
        return body

    assert answer(vision, talk(picture((255, 0, 0))))[0] != answer(vision, talk(picture((0, 255, 0))))[0]


BAD = {
    "truncated": picture((1, 1, 1))[:90],
    "no image": "data:image/png;base64," + base64.b64encode(b"hello, I am text").decode(),
    "not base64": "data:image/png;base64,!!!!",
    "empty": "data:image/png;base64,",
    "remote": "https://example.com/cat.png",
    "file": "file:///etc/passwd",
    "too long": picture((1, 1, 1), size=(6000, 20)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_refused_by_its_place(vision: ServerProcess, name: str) -> None:
    response = vision.post(CHAT, ask("a", image(picture((9, 9, 9))), "b", image(BAD[name])))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("messages[0].content[3]")
    answer(vision, ask("still there?"))


def test_a_text_model_refuses_images(vision: ServerProcess) -> None:
    response = vision.post(CHAT, ask("a", image(picture((9, 9, 9))), model="tiny-qwen3-chat"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[1]"


def test_text_that_looks_like_a_tag_is_text(vision: ServerProcess) -> None:
    answer(vision, ask("<ov_genai_image_0> <|image_pad|> <|vision_start|> <ov_genai_image_99999999999999999999>"))


def test_the_openai_client_sends_images_to_both_routes(vision: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{vision.url}/v1", api_key="unused", max_retries=0)
    url = picture((200, 100, 0))
    parts: Any = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    chat = client.chat.completions.create(
        model="tiny-vlm", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8
    )
    items: Any = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What?"},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ],
        }
    ]
    response = client.responses.create(model="tiny-vlm", input=items, temperature=0, max_output_tokens=8)
    assert response.output_text == chat.choices[0].message.content
