"""Which files of a model folder are missing or cannot be used, and why. Nothing is run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

from rustedvino.config.types import ModelKind
from rustedvino.hub.graph import read_graph
from rustedvino.hub.model_evidence import MODEL, Evidence
from rustedvino.hub.model_json import ModelProblem, lfs_pointer
from rustedvino.hub.model_kinds import Detected, Form, Need

MAX_POINTER_BYTES: Final = 1024
_POINTED_SUFFIXES: Final = frozenset({".xml", ".bin", ".json", ".onnx", ".jinja", ".txt", ".model"})


@frozen(kw_only=True)
class FileProblem:
    """A file that cannot be used. ``reason`` follows its name: "is missing: …"."""

    file: str
    reason: str


class IncompleteModel(ModelProblem):
    """Files are missing or broken; ``files`` has them all."""

    def __init__(self, folder: Path, kind: ModelKind, files: list[FileProblem]) -> None:
        super().__init__(f"{folder.name} is not complete: " + "; ".join(f"{each.file} {each.reason}" for each in files))
        self.kind: ModelKind = kind
        self.files = files


def file_problems(evidence: Evidence, detected: Detected) -> list[FileProblem]:
    """Every file that is missing or cannot be used, each with its reason. Raises OSError."""
    if detected.form is None:
        return _speech_problems()
    found: dict[str, str] = {}
    for need in detected.form.needs(evidence):
        _check_need(evidence, need, found)
    if detected.kind == "decision" and evidence.has("decision.json"):
        _check_json(evidence, "decision.json", found)
    for graph in _present_graphs(evidence, detected.form):
        _check_graph(evidence, graph, found)
    for name in _pointers(evidence.folder):
        found.setdefault(name, "is a Git LFS pointer: the file itself was not downloaded")
    return [FileProblem(file=file, reason=reason) for file, reason in found.items()]


def _speech_problems() -> list[FileProblem]:
    return [
        FileProblem(file="NAME.onnx and NAME.onnx.json", reason="are missing: a voice of Piper"),
        FileProblem(file="openvino_vocoder.xml", reason="is missing: a model of SpeechT5"),
        FileProblem(file=f"{MODEL}.xml", reason="is missing, or not of Kokoro"),
    ]


def _check_need(evidence: Evidence, need: Need, found: dict[str, str]) -> None:
    present = [name for name in need.files if evidence.has(name)]
    first, *rest = need.files
    if not present:
        alternatives = f" (or {', '.join(rest)})" if rest else ""
        found[first + alternatives] = f"is missing: {need.purpose}"
        weights = f"{first.removesuffix('.xml')}.bin"
        if first.endswith(".xml") and not evidence.has(weights):
            found[weights] = f"is missing: the weights of {first}"
    elif not any((evidence.folder / name).stat().st_size for name in present):
        found[present[0]] = f"is empty: {need.purpose}"
    elif not rest and first.endswith(".json"):
        _check_json(evidence, first, found)


def _present_graphs(evidence: Evidence, form: Form) -> Iterator[str]:
    """Paths, within the folder, of the graphs that a load may read."""
    yield from sorted(path.name for path in evidence.folder.glob("openvino_*.xml"))
    if form.name == "diffusion":
        folders = dict.fromkeys(need.files[0].partition("/")[0] for need in form.needs(evidence))
        for folder in [*folders, "vae_encoder"]:
            yield from sorted(f"{folder}/{path.name}" for path in (evidence.folder / folder).glob("openvino_*.xml"))


def _check_graph(evidence: Evidence, name: str, found: dict[str, str]) -> None:
    path = evidence.folder / name
    needed = 1
    try:
        needed = read_graph(path).weights_bytes
    except ModelProblem as error:
        found.setdefault(name, str(error).removeprefix(f"{path.name} "))
    weights = path.with_suffix(".bin")
    shown = f"{name.removesuffix('.xml')}.bin"
    size = weights.stat().st_size if weights.is_file() else None
    if not needed or _is_pointer(weights):
        return
    if size is None:
        found.setdefault(shown, f"is missing: the weights of {name}")
    elif not size:
        found.setdefault(shown, f"is empty: it has the weights of {name}")
    elif size < needed:
        found.setdefault(shown, f"has {size} bytes where {name} needs {needed}: it is truncated")


def _check_json(evidence: Evidence, name: str, found: dict[str, str]) -> None:
    try:
        evidence.json(name)
    except ModelProblem as error:
        found.setdefault(name, str(error).removeprefix(f"{name} "))


def _pointers(folder: Path) -> list[str]:
    """Git LFS pointers in a folder and in those directly inside."""
    return [
        path.relative_to(folder).as_posix()
        for pattern in ("*", "*/*")
        for path in sorted(folder.glob(pattern))
        if path.suffix in _POINTED_SUFFIXES and _is_pointer(path)
    ]


def _is_pointer(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > MAX_POINTER_BYTES:
        return False
    with path.open("rb") as stream:
        return lfs_pointer(stream.read(MAX_POINTER_BYTES))
