"""Chat templates: where they are found and how they are rendered."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn
from xml.parsers import expat

import attrs
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from rustedvino.text.markers import MARK_CHARS

_FILE_MAX_BYTES: Final = 16 * 1024**2
_XML_MAX_BYTES: Final = 64 * 1024**2

_TO_ESCAPE: Final = re.compile(f"[^\x00-\x7f{MARK_CHARS}]")

Now = Callable[[], dt.datetime]


class TemplateError(Exception):
    """The chat template cannot be read or compiled, or refused the conversation.

    The message of `raise_exception` is kept as the template wrote it.
    """


@attrs.frozen
class TemplateSource:
    """A chat template as found with a model."""

    text: str
    origin: str
    """Which file it came from, for the log."""
    tool_use: str | None = None
    """The variant to take when a request has tools, if the model has one of its own."""


def find_chat_template(folder: Path, override: Path | None = None) -> TemplateSource | None:
    """Return the chat template of a model folder, None if it has none.

    In this order: `override`; `chat_template.jinja`; `chat_template.json`; `chat_template` in
    `tokenizer_config.json` (a string, or a list with the names `default` and `tool_use`); the rt_info of
    `openvino_tokenizer.xml` (`chat_template`, then `simplified_chat_template`). An empty template counts as none.
    Raises TemplateError if a file that is there cannot be read or understood.
    """
    if override is not None:
        return TemplateSource(_read(override), str(override))
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file() and (text := _read(jinja_file)).strip():
        tool_file = folder / "additional_chat_templates" / "tool_use.jinja"
        return TemplateSource(text, jinja_file.name, _read(tool_file) if tool_file.is_file() else None)
    for name in ("chat_template.json", "tokenizer_config.json"):
        source = _from_json(folder / name)
        if source is not None:
            return source
    xml_file = folder / "openvino_tokenizer.xml"
    if xml_file.is_file():
        info = _rt_info(xml_file, ("chat_template", "simplified_chat_template"))
        for name in ("chat_template", "simplified_chat_template"):
            if info.get(name, "").strip():
                return TemplateSource(info[name], f"{xml_file.name} ({name})")
    return None


def template_variables(folder: Path) -> dict[str, Any]:
    """Return the special tokens a template may name: `bos_token`, `eos_token`, …, as far as they are set.

    `special_tokens_map.json` first, `tokenizer_config.json` over it. Raises TemplateError for a broken file.
    """
    variables: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        config = _json_object(path)
        for key, value in config.items():
            if key.endswith("_token"):
                token = _token_text(value)
                if token is not None:
                    variables[key] = token
            elif key == "additional_special_tokens" and isinstance(value, list):
                variables[key] = [token for token in map(_token_text, value) if token is not None]
    return variables


class ChatTemplate:
    """A compiled chat template. Rendering has no side effects and may run in any thread."""

    def __init__(
        self,
        source: TemplateSource | str,
        variables: Mapping[str, Any] | None = None,
        *,
        now: Now = dt.datetime.now,
    ) -> None:
        """Raises TemplateError for a syntax error. `now` is what `strftime_now` formats."""
        if isinstance(source, str):
            source = TemplateSource(source, "text")
        self.source = source
        self._variables = dict(variables or {})
        environment = _environment(now)
        self._default = _compile(environment, source.text)
        self._tool_use = _compile(environment, source.tool_use) if source.tool_use else self._default

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt. `kwargs` are further variables of the template, such as `enable_thinking`.

        They cannot replace the special tokens: a client's text in `eos_token` would end its own turn.
        Raises TemplateError if the template refuses the messages or fails.
        """
        template = self._tool_use if tools else self._default
        variables = {
            **kwargs,
            **self._variables,
            "messages": messages,
            "tools": tools or None,
            "documents": documents or None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(variables)
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except Exception as error:  # a template runs arbitrary expressions on client data
            msg = f"{type(error).__name__}: {error}"
            raise TemplateError(msg) from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training: rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=lineno)


def _environment(now: Now) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(  # a prompt is no HTML
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda text: now().strftime(text)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models have seen it in training: letters as they are, nothing escaped for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # Marks have to stay what they are, or they would be text of the prompt.
    return _TO_ESCAPE.sub(lambda match: json.dumps(match.group())[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _compile(environment: jinja2.Environment, text: str) -> jinja2.Template:
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        msg = f"line {error.lineno}: {error.message}"
        raise TemplateError(msg) from error
    except (jinja2.TemplateError, RecursionError) as error:
        msg = f"the template does not compile: {error}"
        raise TemplateError(msg) from error


def _read(path: Path, max_bytes: int = _FILE_MAX_BYTES) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            msg = f"{path} is larger than {max_bytes} bytes"
            raise TemplateError(msg)
        return data.decode("utf-8-sig")
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise TemplateError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8: {error}"
        raise TemplateError(msg) from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not JSON: {error}"
        raise TemplateError(msg) from error
    if not isinstance(value, dict):
        msg = f"{path} does not hold a JSON object"
        raise TemplateError(msg)
    return value


def _from_json(path: Path) -> TemplateSource | None:
    if not path.is_file():
        return None
    value = _json_object(path).get("chat_template")
    if isinstance(value, list):  # [{"name": …, "template": …}]
        value = {
            item["name"]: item["template"]
            for item in value
            if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        }
    if isinstance(value, dict):
        named = {name: text for name, text in value.items() if isinstance(text, str) and text.strip()}
        if not named:
            return None
        default = named.get("default", next(iter(named.values())))
        return TemplateSource(default, path.name, named.get("tool_use"))
    if isinstance(value, str) and value.strip():
        return TemplateSource(value, path.name)
    return None


def _token_text(value: Any) -> str | None:
    """Return a token written as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _rt_info(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the values of these elements directly under the model's `rt_info`."""
    found: dict[str, str] = {}
    depth: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        depth.append(name)
        if name in names and depth[:-1] == ["net", "rt_info"] and "value" in attributes:
            found[name] = attributes["value"]

    def end(_name: str) -> None:
        depth.pop()

    def refuse(*_args: object) -> NoReturn:
        msg = f"{path} has a document type declaration"
        raise TemplateError(msg)

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse  # no entities, so nothing expands
    try:
        parser.Parse(_read(path, _XML_MAX_BYTES).encode(), True)
    except expat.ExpatError as error:
        msg = f"{path} is not XML: {error}"
        raise TemplateError(msg) from error
    return found
