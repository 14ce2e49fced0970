"""What a chat request demands of the form of its answer: a JSON schema, a tool call."""

from typing import Any

from rustedvino.api import errors as api
from rustedvino.api.chat import ChatRequest
from rustedvino.api.converter import render_path
from rustedvino.hub.hub import Hub, Model
from rustedvino.hub.schemas import ConstraintRefused, admit_constraint, constraint_of_schema
from rustedvino.hub.text_assets import TextAssets
from rustedvino.text.constraints import JSON_OBJECT, Constraint, after_thinking, tools_constraint
from rustedvino.text.reasoning import GPT_OSS, THINK_TAGS
from rustedvino.text.schema_facts import SchemaError
from rustedvino.text.tools.grammar import tool_call_grammar


def check_form(chat: ChatRequest, assets: TextAssets) -> None:
    """Refuse a form that cannot be enforced on this model, before anything is rendered. Raises ApiError."""
    choice = chat.effective_tool_choice
    if chat.tools and choice.mode != "none" and assets.tool_dialect is None:
        raise api.bad_request("this model's chat template has no place for tools", "tools", "unsupported_parameter")
    if wants_json(chat) and GPT_OSS in (assets.reasoning, assets.tool_dialect):
        raise api.bad_request(
            "this model's output format cannot be combined with 'response_format'",
            "response_format",
            "unsupported_parameter",
        )
    if wants_json(chat) and chat.tools and choice.mode == "auto":
        # The runtime takes alternatives only if all of them end by themselves or none does; JSON does, calls do not.
        raise api.bad_request(
            "'response_format' cannot be combined with tools that the model may call: set 'tool_choice' to 'none' or "
            "'required', or leave one of the two out",
            "response_format",
            "unsupported_parameter",
        )
    if chat.ignore_eos and (wants_json(chat) or choice.mode == "required"):
        raise api.bad_request(
            "'ignore_eos' cannot be combined with an answer of a given form: behind its end anything could follow",
            "ignore_eos",
        )


def wants_json(chat: ChatRequest) -> bool:
    """Whether the answer's content must be JSON."""
    return chat.response_format is not None and chat.response_format.type != "text"


async def constraint_for(
    chat: ChatRequest, model: Model, assets: TextAssets, hub: Hub, rendered: str, *, inside_reasoning: bool
) -> Constraint | None:
    """The proven constraint of the answer, None when it is free. Raises ApiError and HubError."""
    choice = chat.effective_tool_choice
    if choice.mode != "required" and not wants_json(chat):
        return None
    param = "tool_choice" if choice.mode == "required" else "response_format"
    try:
        if choice.mode == "required":
            named = choice.names[0] if len(choice.names) == 1 else None
            constraint = _call(chat, assets, named=named, parallel=chat.parallel_tool_calls)
        else:
            constraint = await _json(chat)
    except SchemaError as error:
        path = ("response_format", "json_schema", "schema", *error.path) if wants_json(chat) else ("tools",)
        raise api.bad_request(f"the schema cannot be enforced: {error.message}", render_path(path)) from error
    constraint = _with_thinking(constraint, assets, rendered, inside_reasoning=inside_reasoning)
    try:
        await admit_constraint(constraint, hub.prover, model.actor.schema_limit)
    except ConstraintRefused as error:
        raise api.bad_request(error.message, param) from error
    return constraint


async def _json(chat: ChatRequest) -> Constraint:
    assert chat.response_format is not None
    if chat.response_format.json_schema is None:
        return JSON_OBJECT
    return await constraint_of_schema(chat.response_format.json_schema.schema)


def _call(chat: ChatRequest, assets: TextAssets, *, named: str | None, parallel: bool) -> dict[str, Any]:
    assert assets.tool_dialect is not None
    allowed = chat.effective_tool_choice.names
    tools = {tool.name: tool.parameters or {} for tool in chat.tools if not allowed or tool.name in allowed}
    grammar = tool_call_grammar(assets.tool_dialect, tools, named, parallel=parallel)
    return tools_constraint(grammar, strict=any(tool.strict for tool in chat.tools))


def _with_thinking(constraint: Constraint, assets: TextAssets, rendered: str, *, inside_reasoning: bool) -> Constraint:
    """Let a model that thinks do so in front of the answer, unless the prompt has closed the block already."""
    tags = THINK_TAGS.get(assets.reasoning or "")
    if tags is None or rendered.rstrip().endswith(tags.closing):
        return constraint
    return after_thinking(constraint, "" if inside_reasoning else tags.opening, f"{tags.closing}\n\n")
