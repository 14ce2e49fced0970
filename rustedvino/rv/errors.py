"""How a command ends without having done what it was asked."""

from typing import Any, Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_INTERRUPTED: Final = 130


class RvError(Exception):
    """It was refused, or it failed. ``hint`` is what to do about it; ``answer`` what the server sent, if it did."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, code: str = "failed", hint: str | None = None, answer: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.answer = answer

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints for it."""
        error = {"message": self.message, "code": self.code, "hint": self.hint, "exit_code": self.exit_code}
        return {"error": error} if self.answer is None else {"error": error, "answer": self.answer}


class UsageError(RvError):
    """The command line asks for something that cannot be asked for so."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, *, code: str = "usage", hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)


class Unreachable(RvError):
    """No server of ours answers there."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, message: str, *, code: str = "unreachable", hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)


class Refused(RvError):
    """The server answered, with an error. ``status`` is that of HTTP, ``code`` the wire code."""

    def __init__(self, status: int, message: str, *, code: str, hint: str | None = None, answer: Any = None) -> None:
        super().__init__(message, code=code, hint=hint, answer=answer)
        self.status = status


class Declined(RvError):
    """The user answered no."""

    def __init__(self) -> None:
        super().__init__("nothing was changed", code="declined")
