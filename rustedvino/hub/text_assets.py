"""What the server knows of a text model without its worker: tokenizer, template, defaults."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio
from attrs import define, field, frozen

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.actor import Prepared
from rustedvino.hub.calls import Call
from rustedvino.hub.errors import HubError
from rustedvino.hub.model_files import ModelFiles, ModelProblem, inspect_folder
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.runtime_tokenizer import RuntimeTokenizer
from rustedvino.hub.utility import UtilityTimeout, UtilityWorker
from rustedvino.text.probes import PROBE_STRINGS, ProbeResult
from rustedvino.text.reasoning import detect_reasoning_parser
from rustedvino.text.templates import ChatTemplate, TemplateError, find_chat_template, template_variables
from rustedvino.text.tokenizer import LONG_TEXT_CHARS, ModelTokenizer, TokenizerUnavailable
from rustedvino.text.tools.detect import detect_tool_dialect
from rustedvino.text.tools.pieces import ControlToken

log = logging.getLogger(__name__)

WARMUP_TEXT: Final = "The quick brown fox jumps over the lazy dog."


@frozen(kw_only=True)
class TextAssets:
    """One reading of a model's folder. ``template`` is None for a model that only continues text, and
    ``template_problem`` says why. A RuntimeTokenizer encodes only while the model is loaded."""

    files: ModelFiles
    tokenizer: ModelTokenizer | RuntimeTokenizer
    template: ChatTemplate | None
    template_problem: str | None
    probe: ProbeResult | None
    controls: Mapping[int, ControlToken]
    eos_token_ids: frozenset[int]
    reasoning: str | None
    """Name of the parser that splits thinking from answers, None for a model that does not think."""
    tool_dialect: str | None
    """How the model writes tool calls, None if its template has no place for tools."""


@define(eq=False)
class TextModel:
    """The text side of a model; read once, again before each load."""

    model_id: str
    settings: ModelSettings
    server: ServerSettings
    utility: UtilityWorker
    _assets: TextAssets | None = None
    _tokenizer: ModelTokenizer | None = None
    """The last one read from the folder, kept while its file is the same."""
    _lock: trio.Lock = field(factory=trio.Lock)

    async def assets(self) -> TextAssets:
        """The model's assets, read on first use. Raises ModelProblem."""
        if self._assets is None:
            async with self._lock:
                if self._assets is None:
                    self._assets = await self._read()
        return self._assets

    async def prepare(self) -> Prepared:
        """Read the folder anew for a load. Raises ModelProblem."""
        async with self._lock:
            assets = self._assets = await self._read()
        warmup = [0]
        if isinstance(assets.tokenizer, ModelTokenizer):
            warmup = assets.tokenizer.encode_raw(WARMUP_TEXT, add_special_tokens=False)
        return Prepared(assets.files, warmup, list(PROBE_STRINGS))

    async def accept(self, facts: Mapping[str, Any], call: Call) -> None:
        """Compare tokenizers with the worker that has just loaded the model; let it tokenize where they differ.

        Raises HubError when the worker cannot, or ends.
        """
        async with self._lock:
            assets = self._assets
            assert assets is not None
            tokenizer = assets.tokenizer
            if isinstance(tokenizer, ModelTokenizer):
                differs = _first_difference(tokenizer, facts.get("probe_ids"))
                if differs is None:
                    return
                log.warning(
                    "model %s is tokenized by its worker: tokenizer.json gives other ids than the runtime for %r",
                    self.model_id,
                    differs,
                )
                tokenizer = self._runtime_tokenizer(assets.files)
            tokenizer.call = call
            await tokenizer.fetch()
            self._assets = attrs.evolve(
                assets, tokenizer=tokenizer, controls=control_tokens(tokenizer, assets.files.eos_token_ids)
            )

    def _runtime_tokenizer(self, files: ModelFiles) -> RuntimeTokenizer:
        try:
            return RuntimeTokenizer.from_folder(files.folder)
        except (OSError, ValueError, AttributeError) as error:
            raise ModelProblem(f"tokenizer_config.json cannot be used: {error}") from error

    async def _read(self) -> TextAssets:
        files = await trio.to_thread.run_sync(
            inspect_folder, self.server.models_dir / self.model_id, self.settings.kind
        )
        tokenizer: ModelTokenizer | RuntimeTokenizer
        try:
            read = partial(ModelTokenizer.from_folder, files.folder, kept=self._tokenizer)
            tokenizer = self._tokenizer = await trio.to_thread.run_sync(read)
        except TokenizerUnavailable as error:
            log.warning("model %s is tokenized by its worker: %s", self.model_id, error.reason)
            tokenizer = self._runtime_tokenizer(files)
        template, probe, template_problem = await self._template(files)
        source = "" if template is None else template.source.text
        if template_problem is not None:
            log.warning("model %s answers completions only: %s", self.model_id, template_problem)
        return TextAssets(
            files=files,
            tokenizer=tokenizer,
            template=template,
            template_problem=template_problem,
            probe=probe,
            controls=control_tokens(tokenizer, files.eos_token_ids),
            eos_token_ids=frozenset(files.eos_token_ids),
            reasoning=self.settings.reasoning_parser or detect_reasoning_parser(source),
            tool_dialect=detect_tool_dialect(source, frozenset(tokenizer.control_tokens)),
        )

    async def _template(self, files: ModelFiles) -> tuple[ChatTemplate | None, ProbeResult | None, str | None]:
        """Find, compile and try the chat template; the trial runs where it can be killed."""
        try:
            source = find_chat_template(files.folder, self.settings.chat_template)
            if source is None:
                return None, None, "it has no chat template"
            variables = template_variables(files.folder)
            found = await self.utility.call(
                "probe_template",
                {"source": source.text, "tool_use": source.tool_use, "variables": variables},
                # Others may have endless templates, and none of them may cost this model its own.
                queue_secs=self.server.load_timeout_secs,
            )
            probe = ProbeResult(**found)
            if not probe.ok:
                return None, probe, f"its chat template does not work: {probe.error}"
            template = ChatTemplate(source, variables)
        except TemplateError as error:
            return None, None, f"its chat template cannot be used: {error}"
        except UtilityTimeout as error:
            return None, None, f"its chat template does not come to an end: {error}"
        except (HubError, WorkerStartError, trio.TooSlowError, TypeError) as error:
            return None, None, f"its chat template could not be tried: {error}"
        log.info("model %s: chat template from %s", self.model_id, source.origin)
        return template, probe, None


def control_tokens(
    tokenizer: ModelTokenizer | RuntimeTokenizer, eos_token_ids: Iterable[int]
) -> dict[int, ControlToken]:
    """The added tokens by id, as parsers get them, and the ends of a generation, which are never text."""
    special = tokenizer.special_tokens
    controls = {
        token_id: ControlToken(token_id, text, special=text in special)
        for text, token_id in tokenizer.control_tokens.items()
    }
    for token_id in eos_token_ids:
        controls.setdefault(token_id, ControlToken(token_id, tokenizer.token_text(token_id)))
    return controls


def _first_difference(tokenizer: ModelTokenizer, theirs: Any) -> str | None:
    """The first probe string that the runtime encodes otherwise; null entries could not be encoded there."""
    if not isinstance(theirs, list):
        return None
    for text, ids in zip(PROBE_STRINGS, theirs, strict=False):
        if text and ids is not None and tokenizer.encode_raw(text, add_special_tokens=False) != ids:
            return text
    return None


async def encode_raw(
    tokenizer: ModelTokenizer | RuntimeTokenizer,
    text: str,
    *,
    parse_special: bool = True,
    add_special_tokens: bool = True,
) -> list[int]:
    """Ids of a raw prompt; a long one is encoded in a thread. Raises HubError where a worker encodes."""
    if isinstance(tokenizer, RuntimeTokenizer):
        return await tokenizer.encode_raw(text, parse_special=parse_special, add_special_tokens=add_special_tokens)
    work = partial(tokenizer.encode_raw, text, parse_special=parse_special, add_special_tokens=add_special_tokens)
    return await trio.to_thread.run_sync(work) if len(text) > LONG_TEXT_CHARS else work()


async def encode_rendered(tokenizer: ModelTokenizer | RuntimeTokenizer, rendered: str) -> list[int]:
    """Ids of a rendered conversation; a long one is encoded in a thread. Raises HubError where a worker encodes."""
    if isinstance(tokenizer, RuntimeTokenizer):
        return await tokenizer.encode_rendered(rendered)
    if len(rendered) > LONG_TEXT_CHARS:
        return await trio.to_thread.run_sync(tokenizer.encode_rendered, rendered)
    return tokenizer.encode_rendered(rendered)
