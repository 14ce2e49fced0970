import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rustedvino.text.decoding import Decoding, TableDecoder, WindowDecoder, decoder_rules
from rustedvino.text.tokenizer import ModelTokenizer

SAMPLES = [
    "🙂é漢字👩‍👩‍👧",
    "안녕하세요 세계, 你好。",
    " leading and trailing ",
    "two  spaces\n\n\tcode\r\n",
    "e\u0301 and é, ﬁ, \U0001d54f",
    "<think>a</think><|im_end|>",
    "❤️‍🔥🇩🇪👍🏽 नमस्ते",
    "",
]


def streamed(decoder, ids) -> tuple[str, list[str]]:
    pieces = [decoder.push(token_id) for token_id in ids]
    pieces.append(decoder.flush())
    return "".join(pieces), pieces


@pytest.mark.parametrize("text", SAMPLES)
def test_streamed_text_is_the_tokenizers_own(tokenizer: ModelTokenizer, reference: Tokenizer, text: str):
    ids = tokenizer.encode_raw(text, add_special_tokens=False)
    expected = reference.decode(ids, skip_special_tokens=False)
    whole, pieces = streamed(tokenizer.decoder(), ids)
    assert tokenizer.decode(ids) == whole
    if tokenizer.decodes_by_table:
        assert whole == expected
        assert not any("\ufffd" in piece for piece in pieces)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_text_streams_as_it_decodes(tokenizer: ModelTokenizer, reference: Tokenizer, data: st.DataObject):
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    ids = tokenizer.encode_raw(text, add_special_tokens=False)
    whole, pieces = streamed(tokenizer.decoder(), ids)
    assert tokenizer.decode(ids) == whole
    expected = reference.decode(ids, skip_special_tokens=False)
    if tokenizer.decodes_by_table:
        assert whole == expected
        if "\ufffd" not in expected:
            assert not any("\ufffd" in piece for piece in pieces)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_ids_never_raise_and_hold_little(tokenizer: ModelTokenizer, data: st.DataObject):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5) | st.just(-1) | st.just(2**40), max_size=40))
    decoder = tokenizer.decoder()
    whole = ""
    for token_id in ids:
        whole += decoder.push(token_id)
        if isinstance(decoder, TableDecoder):
            assert len(decoder._pending) < 4
        else:
            assert isinstance(decoder, WindowDecoder)
            assert len(decoder._ids) <= 8
    whole += decoder.flush()
    assert whole == tokenizer.decode(ids)
    assert decoder.flush() == ""


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_seeded_decoder_continues_its_prompt(tokenizer: ModelTokenizer, data: st.DataObject):
    if not tokenizer.decodes_by_table:
        pytest.skip("decoding looks at neighbours")
    ids = tokenizer.encode_raw(data.draw(st.text("aé🙂 世<\n", min_size=1, max_size=20)), add_special_tokens=False)
    cut = data.draw(st.integers(1, max(1, len(ids) - 1)))
    prompt = tokenizer.decoder()
    before = "".join(prompt.push(token_id) for token_id in ids[:cut])
    after, _ = streamed(tokenizer.decoder(ids[:cut]), ids[cut:])
    if len(ids) > cut:
        assert before + after == tokenizer.decode(ids)


def byte_tokens(tokenizer: ModelTokenizer, data: bytes) -> list[int]:
    """Ids of single bytes, whatever the vocabulary calls them."""
    single = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    return [single[bytes([byte])] for byte in data]


@pytest.mark.parametrize("family", ["legacy", "gemma"])
def test_a_stray_byte_is_given_up_at_the_next_token(synthetic, family):
    tokenizer = _tokenizer(synthetic(family))
    stray, *letters = byte_tokens(tokenizer, b"\xe2abc")
    decoder = tokenizer.decoder((5,))
    assert [decoder.push(token_id) for token_id in (stray, *letters)] == ["", "\ufffda", "b", "c"]


def test_a_character_of_four_tokens_comes_with_the_last(synthetic):
    tokenizer = _tokenizer(synthetic("legacy"))
    decoder = tokenizer.decoder((5,))
    assert [decoder.push(i) for i in byte_tokens(tokenizer, "🙂".encode())] == ["", "", "", "🙂"]


def test_an_unfinished_character_is_one_replacement_at_the_end(synthetic):
    tokenizer = _tokenizer(synthetic("legacy"))
    decoder = tokenizer.decoder((5,))
    assert [decoder.push(i) for i in byte_tokens(tokenizer, "🙂".encode()[:3])] == ["", "", ""]
    assert decoder.flush() == "\ufffd"


def test_a_prompt_that_ends_inside_a_character_is_completed(synthetic):
    tokenizer = _tokenizer(synthetic("gemma"))
    ids = byte_tokens(tokenizer, "🙂".encode())
    decoder = tokenizer.decoder(ids[:2])
    assert [decoder.push(token_id) for token_id in ids[2:]] == ["", "🙂"]


def test_the_first_space_is_dropped_at_the_start_only(synthetic):
    tokenizer = _tokenizer(synthetic("legacy"))
    ids = tokenizer.encode_raw("hello hello", add_special_tokens=False)
    assert tokenizer.decode(ids) == "hello hello"
    assert streamed(tokenizer.decoder((5,)), ids)[0] == " hello hello"


def test_an_error_of_the_tokenizer_restarts_from_the_text_that_is_out():
    class Quirky:
        """Its decode takes back text when a third id joins."""

        def id_to_token(self, token_id):
            return str(token_id)

        def decode(self, ids, skip_special_tokens=True):
            if 9 in ids and len(ids) > 1:
                raise ValueError
            return "x" if len(ids) > 2 else "".join(map(str, ids))

    decoding = Decoding(Quirky(), {"type": "WordPiece"})
    decoder = decoding.decoder()
    assert [decoder.push(token_id) for token_id in (1, 2, 9, 3)] == ["1", "2", "9", "3"]


@pytest.mark.parametrize(
    "section",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}, {"type": "Fuse"}],
        },
        {"type": "BPEDecoder", "suffix": "</w>"},
    ],
)
def test_decoders_that_need_neighbours_get_no_table(section):
    assert decoder_rules(section) is None


def _tokenizer(data) -> ModelTokenizer:
    return ModelTokenizer(Tokenizer.from_str(json.dumps(data)))
