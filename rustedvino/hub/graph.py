"""What the file of a graph (``openvino_*.xml``) says of it, read without the runtime.

Inputs, outputs, whether it keeps state, and how many bytes of weights it refers to. The file is parsed as it is read,
up to the end of the list of layers; the edges are read only for graphs of older exporters, whose outputs have no names
of their own. No entity is ever expanded: a document type is refused.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from xml.parsers import expat

from attrs import define, field, frozen

from rustedvino.hub.model_json import ModelProblem, lfs_pointer

MAX_GRAPH_BYTES: Final = 512 * 2**20
MAX_PARSE_CPU_SECS: Final = 60.0
"""Time of the processor, so that a busy machine refuses nothing good. About 20 MB are parsed in a second."""
MAX_NAME_CHARS: Final = 256
MAX_DEPTH: Final = 256
_CHUNK_BYTES: Final = 64 * 1024
_CACHED_GRAPHS: Final = 256

Shape = tuple[int, ...]
"""Sizes of the dimensions; -1 is one that is not fixed."""


@frozen(kw_only=True)
class Graph:
    """The signature of a graph. Inputs and outputs have every name they go by."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    has_state: bool
    weights_bytes: int
    """The least size of its ``.bin``."""


def read_graph(path: Path) -> Graph:
    """Read a graph; a file that has not changed is not read again. Raises ModelProblem naming the file, OSError."""
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=_CACHED_GRAPHS)
def _read(path: Path, size: int, _modified_ns: int, _inode: int) -> Graph:
    if size == 0:
        raise ModelProblem(f"{path.name} is empty")
    if size > MAX_GRAPH_BYTES:
        raise ModelProblem(f"{path.name} is larger than {MAX_GRAPH_BYTES} bytes")
    deadline = time.thread_time() + MAX_PARSE_CPU_SECS
    reader = _Reader()
    with path.open("rb") as stream:
        start = stream.read(_CHUNK_BYTES)
        if lfs_pointer(start):
            raise ModelProblem(f"{path.name} is a Git LFS pointer: the file itself was not downloaded")
        try:
            chunk = start
            while not reader.done:
                reader.feed(chunk)
                if not chunk:
                    break
                if time.thread_time() > deadline:
                    raise ModelProblem(f"{path.name} takes longer than {MAX_PARSE_CPU_SECS:g} s to be read")
                chunk = stream.read(_CHUNK_BYTES)
            return reader.graph()
        except (expat.ExpatError, _NotAGraph) as error:
            raise ModelProblem(f"{path.name} is not a graph of the runtime: {error}") from error


class _NotAGraph(Exception):
    """The file is XML of another kind, or has what no graph has."""


@define(eq=False)
class _Layer:
    kind: str
    number: str
    names: list[str]
    shape: list[int] = field(factory=list)


@define(eq=False)
class _Reader:
    """Collects a graph from the events of a parser."""

    done: bool = False
    _depth: int = 0
    _section: str = ""
    _side: str = ""
    _layer: _Layer | None = None
    _with_shape: bool = False
    _text: list[str] | None = None
    _inputs: list[_Layer] = field(factory=list)
    _outputs: list[_Layer] = field(factory=list)
    _port_names: dict[tuple[str, str], list[str]] = field(factory=dict)
    _has_state: bool = False
    _weights_bytes: int = 0
    _parser: expat.XMLParserType = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def feed(self, data: bytes) -> None:
        """Take the next part of the file; b"" is its end. Raises ExpatError, _NotAGraph."""
        self._parser.Parse(data, not data)

    def graph(self) -> Graph:
        """What was found. Raises _NotAGraph."""
        if not self._inputs and not self._outputs:
            raise _NotAGraph("it has neither inputs nor outputs")
        return Graph(
            inputs={name: tuple(layer.shape) for layer in self._inputs for name in layer.names},
            outputs={name: tuple(layer.shape) for layer in self._outputs for name in layer.names},
            has_state=self._has_state,
            weights_bytes=self._weights_bytes,
        )

    def _doctype(self, *_: Any) -> None:
        raise _NotAGraph("it has a document type")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        depth = self._depth = self._depth + 1
        if depth > 3:
            if name == "dim":
                if depth == 6 and self._with_shape:
                    self._text = []
            elif depth == 4:
                self._side = name
            elif depth == 5 and name == "port" and "names" in attributes:
                self._name_port(attributes)
            if name == "data":
                self._data(attributes)
            if depth > MAX_DEPTH:
                raise _NotAGraph(f"its elements are nested more than {MAX_DEPTH} deep")
        elif depth == 3:
            if name == "layer" and self._section == "layers":
                self._begin_layer(attributes)
            elif name == "edge" and self._section == "edges":
                self._edge(attributes)
        elif depth == 2:
            self._section = name
        elif name != "net":
            raise _NotAGraph(f"its root is <{name[:MAX_NAME_CHARS]}>")

    def _end(self, name: str) -> None:
        depth = self._depth
        self._depth = depth - 1
        if depth == 6:
            if self._text is not None and self._layer is not None:
                self._layer.shape.append(_integer("".join(self._text)))
                self._text = None
        elif depth == 3:
            self._layer, self._with_shape = None, False
        elif depth == 2 and (name == "edges" or (name == "layers" and all(layer.names for layer in self._outputs))):
            self.done = True  # edges and conversion parameters follow, a fifth of the file

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _begin_layer(self, attributes: dict[str, str]) -> None:
        kind = attributes.get("type", "")
        layer = self._layer = _Layer(kind, attributes.get("id", ""), _names(attributes.get("output_names")))
        if kind == "Parameter":
            layer.names = _names(attributes.get("name"))
            self._inputs.append(layer)
        elif kind == "Result":
            self._outputs.append(layer)
        elif kind == "ReadValue":
            self._has_state = True
        self._with_shape = kind in ("Parameter", "Result")

    def _name_port(self, attributes: dict[str, str]) -> None:
        layer = self._layer
        names = _names(attributes["names"])
        if layer is None or not names or self._side != "output":
            return
        if layer.kind == "Parameter":
            layer.names = list(dict.fromkeys([*names, *layer.names]))
        self._port_names[layer.number, attributes.get("id", "")] = names

    def _data(self, attributes: dict[str, str]) -> None:
        offset, size = attributes.get("offset"), attributes.get("size")
        if offset is not None and size is not None and offset.isdecimal() and size.isdecimal():
            self._weights_bytes = max(self._weights_bytes, _integer(offset) + _integer(size))

    def _edge(self, attributes: dict[str, str]) -> None:
        for layer in self._outputs:
            if not layer.names and layer.number == attributes.get("to-layer"):
                source = attributes.get("from-layer", ""), attributes.get("from-port", "")
                layer.names = self._port_names.get(source, [])


def _names(text: str | None) -> list[str]:
    return [name[:MAX_NAME_CHARS] for name in text.split(",") if name] if text else []


def _integer(text: str) -> int:
    try:
        return int(text[:MAX_NAME_CHARS])
    except ValueError as error:
        raise _NotAGraph(f"{text[:MAX_NAME_CHARS]!r} where a whole number must be") from error
