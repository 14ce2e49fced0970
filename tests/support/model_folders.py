"""Small model folders of every kind, made of graphs with a signature and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]
WEIGHTS_BYTES = 16
TEXT: Shapes = {"input_ids": (-1, -1), "attention_mask": (-1, -1)}
CAUSAL: Shapes = {**TEXT, "position_ids": (-1, -1), "beam_idx": (-1,)}


def write_graph(
    path: Path,
    inputs: Shapes,
    outputs: Shapes,
    *,
    state: bool = False,
    weights: bool = True,
    older: bool = False,
) -> None:
    """Write a graph as the runtime does, and its weights of WEIGHTS_BYTES.

    ``older``: as exporters did it whose outputs had no names; they are found by the edges.
    """
    layers, edges = [], []
    for number, (name, shape) in enumerate(inputs.items()):
        layers.append(
            f'<layer id="{number}" name="{name}" type="Parameter" version="opset1">'
            f'<data shape="?" element_type="i64" /><output>{_port(0, shape, name)}</output></layer>'
        )
    number = len(inputs)
    layers.append(
        f'<layer id="{number}" name="weights" type="Const" version="opset1">'
        f'<data element_type="f32" shape="4" offset="0" size="{WEIGHTS_BYTES}" />'
        f"<output>{_port(0, (4,), 'weights')}</output></layer>"
    )
    if state:
        number += 1
        layers.append(f'<layer id="{number}" name="past" type="ReadValue" version="opset6"></layer>')
    for name, shape in outputs.items():
        source, result = number + 1, number + 2
        number += 2
        layers.append(
            f'<layer id="{source}" name="op{source}" type="MatMul" version="opset1">'
            f"<input>{_port(0, shape)}</input><output>{_port(1, shape, name)}</output></layer>"
        )
        named = "" if older else f' output_names="{name}"'
        layers.append(
            f'<layer id="{result}" name="Result_{result}" type="Result" version="opset1"{named}>'
            f"<input>{_port(0, shape)}</input></layer>"
        )
        edges.append(f'<edge from-layer="{source}" from-port="1" to-layer="{result}" to-port="0" />')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<?xml version="1.0"?>\n<net name="Model0" version="11"><layers>'
        + "\n".join(layers)
        + "</layers><edges>"
        + "\n".join(edges)
        + "</edges><rt_info></rt_info></net>"
    )
    if weights:
        path.with_suffix(".bin").write_bytes(bytes(WEIGHTS_BYTES))


def _port(number: int, shape: tuple[int, ...], names: str | None = None) -> str:
    named = "" if names is None else f' names="{names}"'
    return f'<port id="{number}" precision="FP32"{named}>' + "".join(f"<dim>{size}</dim>" for size in shape) + "</port>"


def write_json(path: Path, **content: Any) -> None:
    """Write a JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_tokenizer(folder: Path) -> None:
    """The tokenizer of the runtime, both ways."""
    write_graph(folder / "openvino_tokenizer.xml", {"Parameter_1": (-1,)}, TEXT)
    write_graph(folder / "openvino_detokenizer.xml", {"Parameter_1": (-1, -1)}, {"string_output": (-1,)})


def text_gen(folder: Path, architecture: str = "Qwen3ForCausalLM") -> None:
    write_json(folder / "config.json", architectures=[architecture], model_type="qwen3")
    write_graph(folder / "openvino_model.xml", CAUSAL, {"logits": (-1, -1, 100)}, state=True)
    write_tokenizer(folder)


def decision(folder: Path) -> None:
    text_gen(folder)
    write_json(folder / "decision.json", version=1)


def vision(folder: Path) -> None:
    write_json(folder / "config.json", model_type="llava", vision_config={})
    write_json(folder / "preprocessor_config.json", image_processor_type="CLIPImageProcessor")
    language = {"attention_mask": (-1, -1), "inputs_embeds": (-1, -1, 8), "beam_idx": (-1,)}
    write_graph(folder / "openvino_language_model.xml", language, {"logits": (-1, -1, 100)}, state=True)
    for part in ("text", "vision"):
        path = folder / f"openvino_{part}_embeddings_model.xml"
        write_graph(path, {"input": (-1, -1)}, {"last_hidden_state": (-1, 8)})
    write_tokenizer(folder)


def embedding(folder: Path) -> None:
    write_json(folder / "config.json", architectures=["BertModel"], model_type="bert")
    write_graph(folder / "openvino_model.xml", TEXT, {"last_hidden_state": (-1, -1, 8)})
    write_tokenizer(folder)


def embedding_by_a_text_model(folder: Path) -> None:
    embedding(folder)
    write_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], model_type="qwen3")


def sentence_transformer(folder: Path) -> None:
    embedding(folder)
    outputs = {"token_embeddings": (-1, -1, 8), "sentence_embedding": (-1, 8)}
    write_graph(folder / "openvino_model.xml", TEXT, outputs)
    write_json(folder / "1_Pooling/config.json", pooling_mode_mean_tokens=True)


def reranking(folder: Path, labels: int = 1) -> None:
    write_json(folder / "config.json", architectures=["BertForSequenceClassification"], model_type="bert")
    write_graph(folder / "openvino_model.xml", TEXT, {"logits": (-1, labels)})
    write_tokenizer(folder)


def stt(folder: Path) -> None:
    write_json(folder / "config.json", architectures=["WhisperForConditionalGeneration"], model_type="whisper")
    write_json(folder / "generation_config.json", is_multilingual=False)
    write_graph(
        folder / "openvino_encoder_model.xml", {"input_features": (-1, 80, 3000)}, {"last_hidden_state": (-1, 9, 8)}
    )
    decoder = {"input_ids": (-1, -1), "encoder_hidden_states": (-1, -1, 8), "beam_idx": (-1,)}
    write_graph(folder / "openvino_decoder_model.xml", decoder, {"logits": (-1, -1, 100)}, state=True)
    write_tokenizer(folder)


def speecht5(folder: Path) -> None:
    write_json(folder / "config.json", architectures=["SpeechT5ForTextToSpeech"], model_type="speecht5")
    for part in ("encoder_model", "decoder_model", "postnet", "vocoder"):
        write_graph(folder / f"openvino_{part}.xml", {"input_ids": (-1, -1)}, {"out": (-1, 8)})
    write_tokenizer(folder)


def kokoro(folder: Path) -> None:
    write_json(folder / "config.json", architectures=["KokoroForTextToSpeech"], vocab={"a": 1})
    inputs = {"input_ids": (1, -1), "ref_s": (1, 256), "speed": (1,)}
    write_graph(folder / "openvino_model.xml", inputs, {"waveform": (-1,)})


def piper(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "en_US-joe.onnx").write_bytes(bytes(100))
    write_json(folder / "en_US-joe.onnx.json", audio={"sample_rate": 22050})


def image_gen(folder: Path) -> None:
    write_json(
        folder / "model_index.json",
        _class_name="StableDiffusionPipeline",
        _name_or_path="x",
        feature_extractor=[None, None],
        safety_checker=[None, None],
        requires_safety_checker=False,
        scheduler=["diffusers", "PNDMScheduler"],
        text_encoder=["transformers", "CLIPTextModel"],
        tokenizer=["transformers", "CLIPTokenizer"],
        unet=["diffusers", "UNet2DConditionModel"],
        vae=["diffusers", "AutoencoderKL"],
    )
    write_json(folder / "scheduler/scheduler_config.json", _class_name="PNDMScheduler")
    for part in ("text_encoder", "unet", "vae_decoder"):
        write_json(folder / part / "config.json", model_type="x")
        write_graph(folder / part / "openvino_model.xml", {"sample": (-1, 4, -1, -1)}, {"out": (-1, 4, -1, -1)})
    write_tokenizer(folder / "tokenizer")


FOLDERS = {
    "text_gen": text_gen,
    "decision": decision,
    "vision": vision,
    "embedding": embedding,
    "embedding_by_a_text_model": embedding_by_a_text_model,
    "sentence_transformer": sentence_transformer,
    "reranking": reranking,
    "stt": stt,
    "speecht5": speecht5,
    "kokoro": kokoro,
    "piper": piper,
    "image_gen": image_gen,
}
"""Makers of complete folders."""
