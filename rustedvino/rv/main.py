"""The ``rv`` command: from the command line to an exit code."""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rustedvino.rv.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNREACHABLE, Refused, RvError
from rustedvino.rv.parser import overview, parse, verb_parser
from rustedvino.rv.verbs import BY_NAME, Verb

if TYPE_CHECKING:
    from rustedvino.rv.command import Command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal's encoding has not
    try:
        code = _run(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `rv list | head`: nobody reads on, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _run(arguments: list[str]) -> int:
    try:
        verb, options = parse(arguments)
        if verb is None:
            print(overview(), end="")
            return EXIT_OK
    except RvError as error:
        _tell(error)
        return error.exit_code
    except SystemExit as end:  # after --help
        return int(end.code or 0)
    from rustedvino.rv.command import Command
    from rustedvino.rv.screen import Screen

    command = Command(options, Screen(as_json=options.json, no_color=options.no_color))
    try:
        return int(_function(verb)(command) or EXIT_OK)
    except RvError as error:
        if isinstance(error, Refused) and error.code == "model_not_found":
            _suggest(command, error)
        if options.json:
            command.screen.json(error.as_json())
        _tell(error, command)
        return error.exit_code


def _function(verb: Verb) -> Any:
    import importlib

    module, name = verb.function.split(":")
    return getattr(importlib.import_module(f"rustedvino.rv.{module}"), name)


def _tell(error: RvError, command: "Command | None" = None) -> None:
    """Say on standard error what went wrong and what can be done."""
    lines = [f"rv: {error.message}", *([f"    {error.hint}"] if error.hint else [])]
    if command is None:
        print("\n".join(lines), file=sys.stderr)
        return
    style = "yellow" if error.exit_code == EXIT_UNREACHABLE else "red"
    command.screen.note(("rv: ", style), error.message)
    for line in lines[1:]:
        command.screen.note((line, "dim"))


def _suggest(command: "Command", error: Refused) -> None:
    """Name the model that was probably meant."""
    import difflib

    try:
        known = [str(card["id"]) for card in command.client.get("/v1/models")["data"]]
    except (RvError, LookupError, TypeError):
        return  # it is only a hint
    near = difflib.get_close_matches(str(getattr(command.options, "model", "")), known, n=1, cutoff=0.5)
    error.hint = f"did you mean {near[0]}?" if near else "`rv list` shows the models there are"


def show_help(command: "Command") -> int:
    """``rv help [VERB]``."""
    verb = BY_NAME.get(command.options.verb or "")
    if command.options.verb and verb is None:
        from rustedvino.rv.errors import UsageError

        raise UsageError(f"there is no verb {command.options.verb!r}", hint="`rv --help` lists the verbs")
    print(overview() if verb is None else verb_parser(verb).format_help(), end="")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
