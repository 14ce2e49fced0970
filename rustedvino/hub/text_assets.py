"""What the server knows of a text model without its worker: tokenizer, template, defaults."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import trio
from attrs import define, field, frozen

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.actor import Prepared
from rustedvino.hub.errors import HubError
from rustedvino.hub.model_files import ModelFiles, inspect_folder
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.utility import UtilityTimeout, UtilityWorker
from rustedvino.text.probes import PROBE_STRINGS, ProbeResult
from rustedvino.text.reasoning import detect_reasoning_parser
from rustedvino.text.templates import ChatTemplate, TemplateError, find_chat_template, template_variables
from rustedvino.text.tokenizer import ModelTokenizer, TokenizerUnavailable
from rustedvino.text.tools.detect import detect_tool_dialect
from rustedvino.text.tools.pieces import ControlToken

log = logging.getLogger(__name__)

WARMUP_TEXT: Final = "The quick brown fox jumps over the lazy dog."


@frozen(kw_only=True)
class TextAssets:
    """One reading of a model's folder. ``template`` is None for a model that only continues text, and
    ``template_problem`` says why; likewise ``tokenizer`` for one that its worker must tokenize for."""

    files: ModelFiles
    tokenizer: ModelTokenizer | None
    tokenizer_problem: str | None
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
        if assets.tokenizer is not None:
            warmup = assets.tokenizer.encode_raw(WARMUP_TEXT, add_special_tokens=False)
        return Prepared(assets.files, warmup, list(PROBE_STRINGS))

    async def _read(self) -> TextAssets:
        files = await trio.to_thread.run_sync(
            inspect_folder, self.server.models_dir / self.model_id, self.settings.kind
        )
        tokenizer: ModelTokenizer | None = None
        tokenizer_problem: str | None = None
        try:
            tokenizer = await trio.to_thread.run_sync(ModelTokenizer.from_folder, files.folder)
        except TokenizerUnavailable as error:
            tokenizer_problem = error.reason
            log.warning("model %s is tokenized by its worker: %s", self.model_id, error.reason)
        template, probe, template_problem = await self._template(files)
        source = "" if template is None else template.source.text
        control_names = frozenset() if tokenizer is None else frozenset(tokenizer.control_tokens)
        if template_problem is not None:
            log.warning("model %s answers completions only: %s", self.model_id, template_problem)
        return TextAssets(
            files=files,
            tokenizer=tokenizer,
            tokenizer_problem=tokenizer_problem,
            template=template,
            template_problem=template_problem,
            probe=probe,
            controls={} if tokenizer is None else control_tokens(tokenizer, files.eos_token_ids),
            eos_token_ids=frozenset(files.eos_token_ids),
            reasoning=self.settings.reasoning_parser or detect_reasoning_parser(source),
            tool_dialect=detect_tool_dialect(source, control_names),
        )

    async def _template(self, files: ModelFiles) -> tuple[ChatTemplate | None, ProbeResult | None, str | None]:
        """Find, compile and try the chat template; the trial runs where it can be killed."""
        try:
            source = find_chat_template(files.folder, self.settings.chat_template)
            if source is None:
                return None, None, "it has no chat template"
            variables = template_variables(files.folder)
            found = await self.utility.call(
                "probe_template", {"source": source.text, "tool_use": source.tool_use, "variables": variables}
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


def control_tokens(tokenizer: ModelTokenizer, eos_token_ids: Iterable[int]) -> dict[int, ControlToken]:
    """The added tokens by id, as parsers get them, and the ends of a generation, which are never text."""
    special = tokenizer.special_tokens
    controls = {
        token_id: ControlToken(token_id, text, special=text in special)
        for text, token_id in tokenizer.control_tokens.items()
    }
    for token_id in eos_token_ids:
        controls.setdefault(token_id, ControlToken(token_id, tokenizer.token_text(token_id)))
    return controls
