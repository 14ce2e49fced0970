"""``rv top``: models, speed, queue and memory, once a second."""

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_OK, Refused, RvError, Unreachable, UsageError
from rustedvino.rv.look import MODELS, NUMBERS, memory_bytes
from rustedvino.rv.screen import Cell, rich_table, state_cell
from rustedvino.rv.text import duration, safe, shown, size

COLUMNS: Final = ("MODEL", "STATE", "DEVICE", "TOK/S", "RUN", "WAIT", "TTFT", "KV", "MEMORY")
RIGHT: Final = ("TOK/S", "RUN", "WAIT", "TTFT", "KV", "MEMORY", *NUMBERS)
KEY_SECS: Final = 0.1
MIN_INTERVAL_SECS: Final = 0.2
_TTFT: Final = re.compile(
    r'^rustedvino_ttft_seconds_(sum|count)\{[^}]*?model="((?:[^"\\]|\\.)*)"[^}]*\} (\S+)', re.MULTILINE
)


class Sample(NamedTuple):
    """The server at one moment. ``ttft`` is, by model, the seconds to first tokens so far and their number; {}: no
    metrics can be had."""

    at: float
    server: Mapping[str, Any]
    models: list[dict[str, Any]]
    ttft: Mapping[str, tuple[float, float]]


def top(command: Command) -> int:
    """``rv top``: live on a terminal, one look elsewhere."""
    if not command.options.interval >= MIN_INTERVAL_SECS:
        raise UsageError(f"--interval must be at least {MIN_INTERVAL_SECS:g} s")
    if command.options.json or not (command.screen.is_terminal and command.screen.can_ask):
        return _once(command)
    _live(command)
    return EXIT_OK


def take(command: Command) -> Sample:
    """Look at the server. Raises RvError."""
    answer = command.client.get(MODELS)
    try:
        ttft = read_ttft(command.client.text("/metrics"))
    except Refused:
        ttft = {}
    return Sample(time.monotonic(), answer.get("server") or {}, answer["models"], ttft)


def read_ttft(metrics: str) -> dict[str, tuple[float, float]]:
    """Sum and count of times to first tokens, by model."""
    found: dict[str, dict[str, float]] = {}
    for part, model, value in _TTFT.findall(metrics):
        totals = found.setdefault(re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], model), {})
        totals[part] = totals.get(part, 0.0) + float(value)
    return {model: (totals.get("sum", 0.0), totals.get("count", 0.0)) for model, totals in found.items()}


def _once(command: Command) -> int:
    """Two looks, so that there is a speed to tell, and one table."""
    before = take(command)
    time.sleep(command.options.interval)
    now = take(command)
    if command.options.json:
        models = [{**model, "tokens_per_second": speed(before, now, model)} for model in now.models]
        command.screen.json({"server": now.server, "models": models})
    else:
        command.screen.table(COLUMNS, rows(before, now), right=RIGHT)
    return EXIT_OK


def speed(before: Sample, now: Sample, model: Mapping[str, Any]) -> float | None:
    """Tokens per second that a model generated between two looks; None when that cannot be told."""
    earlier = next((other for other in before.models if other["model_id"] == model["model_id"]), None)
    if earlier is None or now.at <= before.at:
        return None
    count = (model.get("tokens_generated") or 0) - (earlier.get("tokens_generated") or 0)
    return round(count / (now.at - before.at), 1) if count >= 0 else None


def first_token_secs(before: Sample, now: Sample, model_id: str) -> float | None:
    """Mean time to first tokens that came between two looks."""
    (sum_before, count_before), (total, count) = (
        before.ttft.get(model_id, (0.0, 0.0)),
        now.ttft.get(model_id, (0.0, 0.0)),
    )
    return (total - sum_before) / (count - count_before) if count > count_before else None


def rows(before: Sample, now: Sample) -> list[list[Cell]]:
    """The table's lines: busy models first, then loaded ones."""
    found = []
    order = {"ready": 0, "draining": 1, "loading": 2, "restarting": 3, "failed": 4, "not_loaded": 5}
    for model in sorted(now.models, key=lambda model: (-(model.get("running") or 0), order.get(model["state"], 6))):
        rate = speed(before, now, model)
        ttft = first_token_secs(before, now, model["model_id"])
        used = (model.get("kv_cache") or {}).get("used_percent")
        found.append(
            [
                model["model_id"],
                state_cell(model["state"]),
                shown(model.get("device")),
                "–" if rate is None else (f"{rate:.1f}", "bold green" if rate else ""),
                shown(model.get("running")),
                (shown(model.get("waiting")), "yellow" if model.get("waiting") else ""),
                "–" if ttft is None else f"{ttft * 1000:.0f} ms",
                "–" if used is None else f"{used:.0f} %",
                size(memory_bytes(model)),
            ]
        )
    return found


def _live(command: Command) -> None:
    from rich.live import Live

    console = command.screen.console()
    before = now = take(command)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        error: Unreachable | None = None
        try:
            while True:
                live.update(_page(command, before, now, error), refresh=True)
                if _wait(pressed, command.options.interval):
                    return
                try:
                    before, now, error = now, take(command), None
                except Unreachable as down:
                    error = down  # it may come back
        except KeyboardInterrupt:
            return


def _page(command: Command, before: Sample, now: Sample, error: RvError | None) -> Any:
    from rich.console import Group
    from rich.text import Text

    server = now.server
    speeds = [rate for model in now.models if (rate := speed(before, now, model)) is not None]
    running, waiting = (sum(model.get(name) or 0 for model in now.models) for name in ("running", "waiting"))
    head = Text.assemble(
        (f"{command.target.base_url}", "bold"),
        f"  up {duration(server.get('uptime_secs'))}  ",
        (f"{sum(speeds):.1f} tokens/s", "bold green" if any(speeds) else ""),
        f"  {running} running  {waiting} waiting",
    )
    lines: list[Any] = [head]
    for name, domain in (server.get("memory") or {}).items():
        lines.append(_memory_line(name, domain))
    lines += [Text(""), rich_table(COLUMNS, rows(before, now), right=RIGHT)]
    if error is not None:
        lines += [Text(""), Text(safe(error.message), style="bold red")]
    lines += [Text(""), Text("q leaves", style="dim")]
    return Group(*lines)


def _memory_line(name: str, domain: Mapping[str, Any]) -> Any:
    from rich.text import Text

    used, budget = domain.get("used_bytes") or 0, domain.get("budget_bytes")
    if not budget:
        return Text(f"{safe(name)}: {size(used)} used, no limit")
    share = min(1.0, used / budget)
    full = round(share * 24)
    style = "green" if share < 0.75 else "yellow" if share < 0.92 else "red"
    return Text.assemble(
        f"{safe(name)}: ",
        ("█" * full, style),
        ("░" * (24 - full), "dim"),
        f" {size(used)} of {size(budget)} ({share:.0%})",
    )


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key for some seconds and returns it, "" when none came. Keys are not echoed."""
    if sys.platform == "win32":
        import msvcrt

        def pressed(secs: float) -> str:
            end = time.monotonic() + secs
            while not msvcrt.kbhit():
                if time.monotonic() >= end:
                    return ""
                time.sleep(KEY_SECS)
            return msvcrt.getwch()

        yield pressed
    else:
        import select
        import termios
        import tty

        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)

        def pressed(secs: float) -> str:
            ready, _, _ = select.select([number], [], [], secs)
            return sys.stdin.read(1) if ready else ""

        try:
            tty.setcbreak(number)
            yield pressed
        finally:
            termios.tcsetattr(number, termios.TCSADRAIN, before)


def _wait(pressed: Any, secs: float) -> bool:
    """Wait until the next look is due; whether q was pressed meanwhile, or the terminal is gone."""
    end = time.monotonic() + secs
    while (left := end - time.monotonic()) > 0:
        if pressed(left) in ("q", "Q", "\x04"):
            return True
    return False
