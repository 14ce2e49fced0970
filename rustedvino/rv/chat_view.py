"""How an answer is shown while it comes."""

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from rustedvino.rv.conversation import Ending, Piece
from rustedvino.rv.markdown_stream import BlockSplitter
from rustedvino.rv.screen import Screen
from rustedvino.rv.text import counted, safe

if TYPE_CHECKING:
    from rich.live import Live
    from rich.status import Status

REDRAW_SECS: Final = 0.08


class PlainView:
    """The text of the answer as it is, and nothing else: for pipes and files."""

    def show(self, piece: Piece) -> None:
        """Print a piece at once."""
        if not piece.is_thinking:
            sys.stdout.write(piece.text)
            sys.stdout.flush()

    def end(self, ending: Ending | None) -> None:
        """End the line."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def stop(self) -> None:
        """Nothing moves here."""


class TerminalView:
    """Thinking dimmed, the answer as markdown.

    A block that is finished is printed for good; the one that grows is drawn anew as it grows.
    """

    def __init__(self, screen: Screen) -> None:
        self._console = screen.console()
        self._blocks = BlockSplitter()
        self._live: Live | None = None
        self._thinking = False
        self._drawn_at = 0.0
        self._first_at: float | None = None
        self._started_at = time.monotonic()
        self._status: Status | None = self._console.status("", spinner="line")
        self._status.start()

    def show(self, piece: Piece) -> None:
        """Draw a piece."""
        self._stop_status()
        if self._first_at is None:
            self._first_at = time.monotonic()
        if piece.is_thinking:
            self._thinking = True
            self._console.print(safe(piece.text), style="dim italic", end="", soft_wrap=True)
            return
        if self._thinking:
            self._thinking = False
            self._console.print("\n")
        for block in self._blocks.feed(safe(piece.text)):
            self._print(block)
        if self._blocks.rest.strip() and time.monotonic() - self._drawn_at >= REDRAW_SECS:
            self._draw()

    def end(self, ending: Ending | None) -> None:
        """Print what is still growing, and how the answer ended; None: it was cut off here."""
        self._stop_status()
        if self._thinking:
            self._console.print()
        self._print(self._blocks.rest)
        self._blocks = BlockSplitter()
        self._console.print(self._summary(ending), style="dim")

    def stop(self) -> None:
        """Leave nothing on the screen that moves."""
        self._stop_status()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, block: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if block.strip():
            from rich.markdown import Markdown

            self._console.print(Markdown(block, code_theme="ansi_dark"))
            self._console.print()

    def _draw(self) -> None:
        from rich.live import Live

        if self._live is None:
            # Erased when it ends: the finished block is printed instead.
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(_Tail(self._blocks.rest), refresh=True)
        self._drawn_at = time.monotonic()

    def _summary(self, ending: Ending | None) -> str:
        if ending is None:
            return "(cancelled)"
        tokens = ending.usage.get("completion_tokens")
        words = [] if tokens is None else [counted(tokens, "token")]
        if self._first_at is not None:
            took = time.monotonic() - self._first_at
            if tokens and tokens > 1 and took > 0:
                words.append(f"{(tokens - 1) / took:.1f} tokens/s")
            words.append(f"first after {self._first_at - self._started_at:.2f} s")
        if ending.finish_reason not in (None, "stop"):
            words.append({"length": "cut at its limit"}.get(str(ending.finish_reason), str(ending.finish_reason)))
        return ", ".join(words)


class _Tail:
    """Markdown of which the end is shown when it is higher than the screen."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.markdown import Markdown
        from rich.segment import Segment

        lines = console.render_lines(Markdown(self._text, code_theme="ansi_dark"), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()
