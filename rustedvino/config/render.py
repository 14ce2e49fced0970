"""Texts made from the table of settings: defaults, the example file and the reference in docs/CONFIG.md.

``python -m rustedvino.config.render [project folder]`` writes docs/CONFIG.md and config.example.json.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rustedvino.config.kinds import UNSET, Group, Setting
from rustedvino.config.model_table import MODEL
from rustedvino.config.plugin import PLUGIN_PROPERTIES
from rustedvino.config.table import GLOBAL

EXAMPLE_MODEL_ID: Final = "qwen3-8b"

_INTRODUCTION: Final = """\
# Settings

<!-- Written by `python -m rustedvino.config.render`; a test compares it with the table of settings. -->

The server reads one file, `config.json`: JSON in UTF-8, with or without a byte order mark. A name that is not
listed here, a name written twice or a value of the wrong kind is an error that says where it is
(`models.qwen.vram_gb`); `rustedvino --config config.json --check-config` reports all of them at once.
`rustedvino --print-default-config` and `--print-default-model` print every setting with its default, and
`config.example.json` is a file to start from.

- Keys that begin with `_` or `//` are comments: nobody reads their values, and they are kept when the server saves
  the file. Directly in `models` only `//` makes a comment, since an id may begin with `_`.
- Sizes in GB: 1 GB is 2^30 bytes (1,073,741,824). Fractions are fine.
- Times: `_secs` are seconds and may be fractions; `_ms` are whole milliseconds.
- `null` is allowed where the default is `null`, and means what the text says.
- Relative paths start at the folder of the config file, wherever the server is started.
- A model id is the plain name of a folder in `models_dir`: no `/`, `\\` or `:`, not only dots,
  at most 255 bytes.
- API keys never stand in this file. They belong in `<config-stem>.keys.json` beside it (`config.keys.json`)
  or in the file that `keys_file` names. Without keys the server only listens on loopback, unless
  `allow_insecure_public_bind` is true.
"""

_PLUGIN: Final = """\
## OpenVINO properties in `plugin_config`

Only the properties below may be set: what reads or writes files, loads code or is decided by the server is
left out. A property the device does not support is refused when the model is loaded.

| property | what |
|---|---|
"""


def default_config_json() -> str:
    """Every global setting with its default; a required one with the value of the example."""
    return _dump(_defaults(GLOBAL))


def default_model_json() -> str:
    """Every per-model setting with its default."""
    return _dump(_defaults(MODEL))


def example_config_json() -> str:
    """The example file: every global setting, and one model with every per-model setting."""
    config = {row.name: _example(row) for row in GLOBAL}
    config["models"] = {EXAMPLE_MODEL_ID: {row.name: _example(row) for row in MODEL}}
    return _dump(config)


def config_markdown() -> str:
    """The reference of all settings (docs/CONFIG.md)."""
    parts = [_INTRODUCTION, "## Global settings\n\n" + _markdown_table(GLOBAL)]
    parts += [f"### In `{path}`\n\n{_markdown_table(rows)}" for path, rows in _groups(GLOBAL)]
    parts.append(
        "## Settings of one model\n\n"
        "Each entry of `models` is an id and an object with these settings; `{}` will do. "
        "A change marked live takes effect at once, any other at the model's next load.\n\n"
        + _markdown_table(MODEL, with_live=True)
    )
    parts += [f"### In `{path}`\n\n{_markdown_table(rows)}" for path, rows in _groups(MODEL)]
    parts.append(_PLUGIN + "".join(f"| {name} | {what} |\n" for name, what in PLUGIN_PROPERTIES.items()))
    return "\n".join(parts)


def _defaults(rows: Sequence[Setting]) -> dict[str, object]:
    values: dict[str, object] = {}
    for row in rows:
        if row.required:
            values[row.name] = row.example
        elif isinstance(row.kind, Group) and row.default is not None:
            values[row.name] = _defaults(row.kind.rows)
        else:
            values[row.name] = row.default
    return values


def _example(row: Setting) -> object:
    return _defaults([row])[row.name] if row.example is UNSET else row.example


def _groups(rows: Sequence[Setting], prefix: str = "") -> Iterator[tuple[str, Sequence[Setting]]]:
    for row in rows:
        if isinstance(row.kind, Group):
            yield prefix + row.name, row.kind.rows
            yield from _groups(row.kind.rows, f"{prefix}{row.name}.")


def _markdown_table(rows: Sequence[Setting], *, with_live: bool = False) -> str:
    live = " live |" if with_live else ""
    lines = [
        f"| name | type | default | unit |{live} meaning |",
        "|---|---|---|---|" + "---|" * (1 + with_live),
    ]
    for row in rows:
        default = "required" if row.required else f"`{json.dumps(row.default)}`"
        cells = [f"`{row.name}`", _type(row), default, row.unit]
        cells += ["live" if row.live else ""] if with_live else []
        lines.append("| " + " | ".join([*cells, row.meaning]) + " |")
    return "\n".join(lines) + "\n"


def _type(row: Setting) -> str:
    words = row.kind.describe()
    return words + ", or null" if row.nullable else words


def _dump(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write the generated files into a project folder (the current one unless given)."""
    root = Path(arguments[0] if arguments else ".")
    (root / "docs" / "CONFIG.md").write_text(config_markdown(), encoding="utf-8", newline="\n")
    (root / "config.example.json").write_text(example_config_json(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
