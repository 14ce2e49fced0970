"""``rv chat``: a conversation in the terminal, or one question through a pipe."""

import sys
from pathlib import Path
from typing import Any, Final

from rustedvino.rv.chat_view import PlainView, TerminalView
from rustedvino.rv.command import Command
from rustedvino.rv.conversation import Conversation, choose_model
from rustedvino.rv.errors import EXIT_INTERRUPTED, EXIT_OK, RvError, UsageError
from rustedvino.rv.files import make_private_folder, state_folder
from rustedvino.rv.text import safe

MAX_HISTORY_LINES: Final = 1000
HELP: Final = """\
/model [MODEL]   talk to another model; without: show which there are
/system [TEXT]   set the system message; without: show it; "/system -" removes it
/clear           forget what was said
/help            this
/quit            leave, as ctrl-D does
ctrl-C cancels the answer. A line that ends in \\ goes on in the next one."""


def chat(command: Command) -> int:
    """``rv chat``."""
    options = command.options
    question = _one_question(command)
    sampling: dict[str, Any] = {}
    if options.temperature is not None:
        sampling["temperature"] = options.temperature
    if options.max_tokens is not None:
        sampling["max_completion_tokens"] = options.max_tokens
    if options.no_think:
        sampling["enable_thinking"] = False
    model = options.model or choose_model(command.client)
    conversation = Conversation(model, system=options.system, sampling=sampling)
    if question is None:
        return _Dialogue(command, conversation).run()
    return EXIT_OK if _answer(command, conversation, question) else EXIT_INTERRUPTED


def _one_question(command: Command) -> str | None:
    """What is asked without a dialogue; None when there is a person to talk to."""
    if command.options.prompt is not None:
        return str(command.options.prompt)
    if command.screen.can_ask:
        return None
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    question = sys.stdin.read().strip()
    if not question:
        raise UsageError("there is nothing to ask: the input is empty")
    return question


def _answer(command: Command, conversation: Conversation, question: str) -> bool:
    """Ask and show the answer. Returns whether it came to its end; ctrl-C is a cancelled answer. Raises RvError."""
    view = TerminalView(command.screen) if command.screen.is_terminal else PlainView()
    pieces = conversation.ask(command.client, question)
    began = False
    try:
        while True:
            piece = next(pieces)
            began = True
            view.show(piece)
    except StopIteration as end:
        view.end(end.value)
        return True
    except KeyboardInterrupt:
        pieces.close()
        view.end(None)
        return False
    except RvError:
        if began:
            view.end(None)
        raise
    finally:
        view.stop()
        pieces.close()


class _Dialogue:
    """Questions from a person, one after the other."""

    def __init__(self, command: Command, conversation: Conversation) -> None:
        self._command = command
        self._conversation = conversation
        self._history = state_folder() / "chat_history"

    def run(self) -> int:
        """Until ctrl-D or /quit. A failed answer is told, and the dialogue goes on."""
        screen = self._command.screen
        readline = _load_readline(self._history)
        self._models()  # a server that cannot be reached, or a wrong key, is told before anything is typed
        screen.note((f"{self._conversation.model}: /help explains, ctrl-D leaves", "dim"))
        try:
            while True:
                question = self._read()
                if question is None:
                    return EXIT_OK
                if question.startswith("/"):
                    if not self._obey(question):
                        return EXIT_OK
                elif question:
                    self._ask(question)
        finally:
            if readline is not None:
                _save_history(readline, self._history)

    def _ask(self, question: str) -> None:
        try:
            _answer(self._command, self._conversation, question)
        except RvError as error:
            self._tell(error)

    def _tell(self, error: RvError) -> None:
        self._command.screen.note(("rv: ", "red"), error.message)
        if error.hint:
            self._command.screen.note((f"    {error.hint}", "dim"))

    def _read(self) -> str | None:
        """A question; "" after ctrl-C, None at the end of input."""
        lines: list[str] = []
        prompt = ">>> "
        try:
            while True:
                line = input(prompt)
                if not line.endswith("\\"):
                    return "\n".join([*lines, line]).strip()
                lines.append(line[:-1])
                prompt = "... "
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return ""

    def _obey(self, line: str) -> bool:
        """Carry out a command; whether to go on."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        screen, conversation = self._command.screen, self._conversation
        match name:
            case "/quit" | "/exit" | "/bye":
                return False
            case "/help" | "/?":
                screen.note(HELP)
            case "/clear":
                conversation.clear()
                screen.note(("forgotten", "dim"))
            case "/system":
                if rest:
                    conversation.system = None if rest == "-" else rest
                screen.note((f"system message: {conversation.system or 'none'}", "dim"))
            case "/model":
                self._switch(rest)
            case _:
                screen.note(f"there is no {name}: /help explains")
        return True

    def _switch(self, model: str) -> None:
        try:
            known = self._models()
        except RvError as error:
            self._tell(error)
            return
        if model and model not in known:
            self._command.screen.note(f"there is no model {model!r}: {', '.join(known)}")
        elif model:
            self._conversation.model = model
            self._command.screen.note((f"talking to {model} now", "dim"))
        else:
            for model_id, state in known.items():
                mark = "*" if model_id == self._conversation.model else " "
                self._command.screen.note(f"{mark} {safe(model_id)} ", (state.replace("_", " "), "dim"))

    def _models(self) -> dict[str, str]:
        return {str(card["id"]): str(card.get("state")) for card in self._command.client.get("/v1/models")["data"]}


def _load_readline(path: Path) -> Any:
    """The module that edits lines, with the history of before; None where there is none."""
    if sys.platform == "win32":
        return None  # the console edits lines itself
    try:
        import readline
    except ImportError:  # an interpreter that was built without
        return None
    readline.set_history_length(MAX_HISTORY_LINES)
    try:
        readline.read_history_file(path)
    except OSError:
        pass  # the first time there is none
    return readline


def _save_history(readline: Any, path: Path) -> None:
    try:
        make_private_folder(path.parent)
        path.touch(mode=0o600)
        readline.write_history_file(path)
    except OSError as error:
        print(f"rv: the history cannot be saved in {path}: {error.strerror}", file=sys.stderr)
