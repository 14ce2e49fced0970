"""Render the conversations of tests/text/goldens with the `transformers` package and write down what it gives.

    python tools/make_template_goldens.py [--check]

For each `<name>.jinja` beside `conversations.json` this writes `<name>.json`: conversation → `{"text": …}`, or
`{"error": …}` when the template refuses or fails. `--check` writes nothing and exits with 1 if anything would change.

Needs `transformers` (written with 4.57.6) in an environment of its own; PyTorch is not needed, and neither is this
project. The date that templates print is the one given in `conversations.json`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any, Final

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

REPOSITORY: Final = Path(__file__).resolve().parents[1]
GOLDENS: Final = REPOSITORY / "tests" / "text" / "goldens"
TOKENIZER: Final = REPOSITORY / "tests" / "models" / "tiny-qwen3" / "tokenizer.json"
"""Any will do: only special tokens are taken from it, and those are given."""


def freeze_time(now: dt.datetime) -> None:
    """Let `strftime_now` of the package format `now`."""

    class Frozen(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Frozen:
            return cls(*now.timetuple()[:6], tzinfo=tz)

    chat_template_utils.datetime = Frozen


def render(tokenizer: PreTrainedTokenizerFast, template: str, case: dict[str, Any], tools: Any) -> dict[str, str]:
    """What the package makes of one conversation."""
    try:
        text = tokenizer.apply_chat_template(
            case["messages"],
            chat_template=template,
            tools=tools,
            documents=case.get("documents"),
            add_generation_prompt=case.get("add_generation_prompt", True),
            tokenize=False,
            **case.get("variables", {}),
        )
    except jinja2.TemplateError as error:
        return {"error": error.message or type(error).__name__}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    given = json.loads((GOLDENS / "conversations.json").read_text("utf-8"))
    freeze_time(dt.datetime.fromisoformat(given["now"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), **given["special_tokens"])
    changed = []
    for path in sorted(GOLDENS.glob("*.jinja")):
        template = path.read_text("utf-8")
        found = {
            name: render(tokenizer, template, case, given["tools"].get(case.get("tools")))
            for name, case in given["conversations"].items()
        }
        text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
        golden = path.with_suffix(".json")
        if not golden.exists() or golden.read_text("utf-8") != text:
            changed.append(golden.name)
            if not check:
                golden.write_text(text, "utf-8")
        errors = sum("error" in answer for answer in found.values())
        sys.stdout.write(f"{path.stem}: {len(found) - errors} prompts, {errors} refusals\n")
    sys.stdout.write("changed: " + (", ".join(changed) or "nothing") + "\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
