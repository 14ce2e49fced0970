"""Waiting, shown: what goes on and for how long, on a terminal; a line for each phase elsewhere."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from rustedvino.rv.screen import Screen
from rustedvino.rv.text import duration, safe

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Answer = TypeVar("Answer")

REDRAW_SECS: Final = 0.1
POLL_SECS: Final = 0.5


class Waiting:
    """``with Waiting(screen, "loading qwen") as waiting:`` and in it ``waiting.phase("…")`` and ``waiting.tick()``.

    ``expected_secs`` makes it a bar that fills in that time.
    """

    def __init__(self, screen: Screen, phase: str, *, expected_secs: float | None = None) -> None:
        self._screen = screen
        self._phase = phase
        self._expected_secs = expected_secs
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self.started_at = time.monotonic()

    @property
    def elapsed_secs(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_at

    def __enter__(self) -> Self:
        if not self._screen.err_is_terminal:
            self._screen.note(f"{self._phase} …")
            return self
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns: list[Any] = [SpinnerColumn("line"), TextColumn("{task.description}")]
        if self._expected_secs:
            columns.append(BarColumn(bar_width=24))
        columns.append(TextColumn("{task.fields[elapsed]}", style="dim"))
        self._progress = Progress(
            *columns, console=self._screen.console(error=True), transient=True, auto_refresh=False, expand=False
        )
        self._task = self._progress.add_task(safe(self._phase), total=self._expected_secs or None, elapsed="")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def phase(self, text: str) -> None:
        """Say what goes on now."""
        if text == self._phase:
            return
        self._phase = text
        if self._progress is None:
            self._screen.note(f"{text} …")

    def tick(self) -> None:
        """Draw it as it is now."""
        if self._progress is None or self._task is None:
            return
        elapsed = self.elapsed_secs
        expected = self._expected_secs
        of = f"{duration(elapsed)} of about {duration(expected)}" if expected else duration(elapsed)
        # A bar that is full before the end would be a lie.
        done = None if expected is None else min(elapsed, expected * 0.98)
        self._progress.update(self._task, description=safe(self._phase), completed=done, elapsed=of, refresh=True)


def wait_for(work: Callable[[], Answer], waiting: Waiting, phase: Callable[[], str | None] | None = None) -> Answer:
    """Do ``work`` in a thread and return what it returns, drawing meanwhile; ``phase`` is asked what goes on.

    An interrupt leaves the thread behind, which ends with the process.
    """
    answers: list[Answer] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    next_poll = time.monotonic() + POLL_SECS
    while not done.wait(REDRAW_SECS):
        if phase is not None and time.monotonic() >= next_poll:
            text = phase()
            next_poll = time.monotonic() + POLL_SECS
            if text is not None:
                waiting.phase(text)
        waiting.tick()
    if errors:
        raise errors[0]
    return answers[0]
