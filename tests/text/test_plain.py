import json

from tokenizers import AddedToken, Tokenizer

from rustedvino.text.plain import LONG_TEXT_CHARS, PlainEncoder, encode_texts
from rustedvino.text.tokenizer import ModelTokenizer


def load(data) -> tuple[ModelTokenizer, Tokenizer]:
    text = json.dumps(data)
    return ModelTokenizer(Tokenizer.from_str(text)), Tokenizer.from_str(text)


def test_a_control_string_the_model_can_spell_is_spelled_otherwise(synthetic):
    for family in ("spelled", "unigram"):
        tokenizer, _ = load(synthetic(family))
        ids = tokenizer.encode_raw("<think>", parse_special=False, add_special_tokens=False)
        assert tokenizer.control_tokens["<think>"] not in ids
        assert tokenizer.decode(ids).strip() == "<think>"


def test_added_text_tokens_keep_their_ids_outside_the_models_vocabulary(synthetic):
    data = synthetic("metaspace-first")
    last = max(token["id"] for token in data["added_tokens"])
    data["added_tokens"].append({**data["added_tokens"][0], "id": last + 1, "content": "   ", "special": False})
    tokenizer, reference = load(data)
    text = "<|im_start|>a   b<|im_end|>"
    assert last + 1 in reference.encode(text, add_special_tokens=False).ids
    assert tokenizer._encode_cut(text) == reference.encode(text, add_special_tokens=False).ids


def test_a_prefix_for_the_start_is_left_out_inside(synthetic):
    _, full = load(synthetic("metaspace-first"))
    added: dict[int, AddedToken] = full.get_added_tokens_decoder()
    plain = PlainEncoder(full, added, set(added))
    start, inside = plain.encode([("hello", True), ("hello", False)])
    assert next(full.id_to_token(token_id) or "" for token_id in start).startswith("▁")
    assert not any((full.id_to_token(token_id) or "").startswith("▁") for token_id in inside)


def test_long_and_short_texts_get_the_same_ids(reference: Tokenizer):
    texts = ["hello user\n" * (LONG_TEXT_CHARS // 8), "", "é🙂"]
    assert sum(map(len, texts)) > LONG_TEXT_CHARS
    assert encode_texts(reference, texts) == [encode_texts(reference, [text])[0] for text in texts]
