"""From constraints as plain data to the runtime's configuration of structured output."""

import json
from collections.abc import Mapping
from typing import Any

import openvino_genai as genai

from rustedvino.engines.faults import EngineFault
from rustedvino.text.constraints import compiled
from rustedvino.text.schema_facts import SchemaError


def structured_output(constraint: Mapping[str, Any]) -> Any:
    """The runtime's StructuredOutputConfig of a constraint (see text.constraints).

    Raises EngineFault when the constraint cannot be enforced. That it compiles is not checked here: the runtime does
    so at the first step, and its pipeline is lost when that fails. Prove it elsewhere first.
    """
    try:
        ready = compiled(constraint)
    except (SchemaError, KeyError, TypeError, ValueError) as error:
        raise EngineFault("bad_input", f"the constraint cannot be used: {error}") from error
    config = genai.StructuredOutputConfig()
    match ready["type"]:
        case "grammar":
            config.grammar = ready["grammar"]
        case "regex":
            config.regex = ready["pattern"]
        case _:
            config.structural_tags_config = json.dumps(ready, ensure_ascii=False)
    return config


def constrain(config: Any, options: Mapping[str, Any]) -> None:
    """Give a generation its constraint, where ``options`` have one. Raises EngineFault."""
    constraint = options.get("constraint")
    if constraint is None:
        return
    if options["ignore_eos"]:
        # Behind the end of the grammar nothing is constrained any more.
        raise EngineFault("bad_input", "ignore_eos cannot be combined with constrained output")
    if not options["eos_token_ids"]:
        raise EngineFault("bad_input", "constrained output needs a model that has an end-of-sequence token")
    config.structured_output_config = structured_output(constraint)
