"""What rv prints: tables, colours and questions on a terminal, plain text elsewhere, JSON when asked for.

rich draws on terminals; it is not imported for anything else.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from rustedvino.rv.errors import Declined, UsageError
from rustedvino.rv.text import safe, shown

if TYPE_CHECKING:
    from rich.console import Console

Cell = str | tuple[str, str]
"""A text, or a text and the style it has on a terminal."""

STATE_STYLES: Final = {
    "ready": "green",
    "loading": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "failed": "bold red",
    "not_loaded": "dim",
}


def state_cell(state: str) -> Cell:
    """A model's state in the colour of it."""
    return state, STATE_STYLES.get(state, "")


class Screen:
    """Standard output and error of one command."""

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        dumb = os.environ.get("TERM") == "dumb"
        self.is_terminal = sys.stdout.isatty() and not dumb
        self.err_is_terminal = sys.stderr.isatty() and not dumb
        self.can_ask = sys.stdin is not None and sys.stdin.isatty()
        self.colour = not no_color and not os.environ.get("NO_COLOR")
        self._consoles: dict[bool, Console] = {}

    def console(self, *, error: bool = False) -> "Console":
        """The rich console of a terminal."""
        if error not in self._consoles:
            from rich.console import Console

            self._consoles[error] = Console(
                file=sys.stderr if error else sys.stdout,
                color_system="auto" if self.colour else None,
                no_color=not self.colour,
                highlight=False,
                markup=False,
                emoji=False,
            )
        return self._consoles[error]

    # Output.

    def json(self, value: Any) -> None:
        """Print a JSON value: indented on a terminal, on one line elsewhere."""
        print(json.dumps(value, indent=2 if self.is_terminal else None, ensure_ascii=self.is_terminal))

    def line(self, *parts: Cell) -> None:
        """Print one line to standard output."""
        self._write(parts, error=False)

    def note(self, *parts: Cell) -> None:
        """Print one line to standard error: what is said beside the result."""
        self._write(parts, error=True)

    def _write(self, parts: Sequence[Cell], *, error: bool) -> None:
        stream: TextIO = sys.stderr if error else sys.stdout
        terminal = self.err_is_terminal if error else self.is_terminal
        if terminal and self.colour and any(isinstance(part, tuple) and part[1] for part in parts):
            from rich.text import Text

            text = Text.assemble(
                *((safe(part), "") if isinstance(part, str) else (safe(part[0]), part[1]) for part in parts)
            )
            self.console(error=error).print(text, soft_wrap=True)
            return
        plain = "".join(part if isinstance(part, str) else part[0] for part in parts)
        print(safe(plain) if terminal else plain, file=stream, flush=error)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
        """Print rows under headings; ``right`` names the columns of numbers.

        On a terminal the table fits its width, the last column being folded and others cut only where there is no
        room. Elsewhere nothing is cut.
        """
        found = [list(row) for row in rows]
        if self.is_terminal:
            self.console().print(rich_table(columns, found, right=right))
            return
        texts = [list(columns), *([cell if isinstance(cell, str) else cell[0] for cell in row] for row in found)]
        widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
        for row in texts:
            cells = [
                text.rjust(width) if name in right else text.ljust(width)
                for text, width, name in zip(row, widths, columns, strict=True)
            ]
            print("  ".join(cells).rstrip())

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Print names and values, a pair a line."""
        found = list(pairs)
        width = max((len(name) for name, _ in found), default=0)
        for name, value in found:
            self.line((f"{name:<{width}}  ", "dim"), value)

    def object(self, value: Any, indent: str = "") -> None:
        """Print a JSON value whose shape is the server's affair: one fact a line, objects indented below their name."""
        if not isinstance(value, dict):
            self.line(indent + shown(value))
            return
        for name, item in value.items():
            if isinstance(item, dict) and item:
                self.line(indent, (f"{name}:", "dim"))
                self.object(item, indent + "  ")
            elif isinstance(item, list) and item and all(isinstance(entry, dict) for entry in item):
                self.line(indent, (f"{name}:", "dim"))
                self.records(item)
            else:
                self.line(indent, (f"{name}: ", "dim"), shown(item))

    def records(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Print JSON objects as a table of the fields they have."""
        names = list(dict.fromkeys(name for entry in entries for name in entry))
        self.table(
            [name.upper().replace("_", " ") for name in names],
            [[shown(entry.get(name)) for name in names] for entry in entries],
        )

    # Questions.

    def confirm(self, what: str, *, yes: bool) -> None:
        """Ask before ``what`` is done ("This unloads qwen."). Raises Declined; UsageError when nobody can be asked."""
        if yes:
            return
        if not self.can_ask:
            raise UsageError(
                f"{what} There is no terminal to ask on: nothing was changed.",
                code="confirmation_needed",
                hint="-y goes ahead without a question",
            )
        if not self.ask(f"{what} Go ahead?"):
            raise Declined

    def ask(self, question: str) -> bool:
        """Ask a question of yes or no; no is the answer to an empty line and to the end of input."""
        print(f"{safe(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            print(file=sys.stderr)
        return line.strip().casefold() in ("y", "yes")


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = ()) -> Any:
    """The table that a terminal is shown."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        table.add_column(
            name,
            justify="right" if name in right else "left",
            # An id that is cut could not be copied.
            overflow="fold" if last or index == 0 else "ellipsis",
            no_wrap=not last and index != 0,
        )
    for row in rows:
        table.add_row(
            *(Text(safe(cell)) if isinstance(cell, str) else Text(safe(cell[0]), style=cell[1]) for cell in row)
        )
    return table
