"""The command line: which verb, and what it is given. Only the verb's own parser is made."""

import argparse
from collections.abc import Sequence
from typing import Final, NoReturn

from rustedvino.rv.errors import UsageError
from rustedvino.rv.verbs import BY_NAME, VERBS, Verb

VALUE_OPTIONS: Final = ("--config", "--host", "--key")
"""Options of every verb that are followed by a value, and may stand before the verb, too."""

EPILOG: Final = """\
Every verb takes
  --config FILE    config of a local server; else $RUSTEDVINO_CONFIG, ./config.json, or your own
  --host HOST      another server: HOST, HOST:PORT or a URL; else $RUSTEDVINO_HOST
  --key KEY        API key; else $RUSTEDVINO_KEY, or the keys file of a local server
  --no-color       no colours; also $NO_COLOR
and where it makes sense --json for scripts and -y to go ahead without a question.
`rv VERB --help` tells the rest.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server reached.
"""


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong as every other error of ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` shows what it takes")


def parse(arguments: Sequence[str]) -> tuple[Verb | None, argparse.Namespace]:
    """The verb and its options; no verb means that help is wanted. Raises UsageError, and SystemExit after --help."""
    name, rest = split_verb(arguments)
    if name is None:
        if any(argument in ("-h", "--help") for argument in rest):
            return None, argparse.Namespace()
        if "--version" in rest:
            name, rest = "version", [argument for argument in rest if argument != "--version"]
        else:
            raise UsageError(
                "what to do is missing: rv VERB …" if not rest else f"there is no verb in: {' '.join(rest)}",
                hint="`rv --help` lists the verbs",
            )
    verb = BY_NAME.get(name)
    if verb is None:
        import difflib

        near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
        hint = f"did you mean `rv {near[0]}`?" if near else "`rv --help` lists the verbs"
        raise UsageError(f"there is no verb {name!r}", hint=hint)
    return verb, verb_parser(verb).parse_intermixed_args(rest)


def split_verb(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first argument that is no option, and all others in their order."""
    value_next = False
    for index, argument in enumerate(arguments):
        if value_next:
            value_next = False
        elif argument in VALUE_OPTIONS:
            value_next = True
        elif not argument.startswith("-"):
            return argument, [*arguments[:index], *arguments[index + 1 :]]
    return None, list(arguments)


def verb_parser(verb: Verb) -> argparse.ArgumentParser:
    """The parser of what follows a verb."""
    parser = _Parser(
        prog=f"rv {verb.name}", description=f"{verb.summary[:1].upper()}{verb.summary[1:]}.", allow_abbrev=False
    )
    if verb.add is not None:
        verb.add(parser)
    parser.add_argument("--config", metavar="FILE", help="config of a local server")
    parser.add_argument("--host", metavar="HOST", help="another server: HOST, HOST:PORT or a URL")
    parser.add_argument(
        "--key", metavar="KEY", help="API key (seen by other users of this machine: prefer RUSTEDVINO_KEY)"
    )
    parser.add_argument("--no-color", action="store_true", help="no colours")
    parser.set_defaults(json=False, yes=False)
    if verb.has_json:
        parser.add_argument("--json", action="store_true", help="JSON for scripts")
    if verb.asks:
        parser.add_argument("-y", "--yes", action="store_true", help="go ahead without a question")
    return parser


def overview() -> str:
    """What ``rv --help`` prints."""
    lines = ["usage: rv VERB [options]", ""]
    for group in dict.fromkeys(verb.group for verb in VERBS):
        lines.append(group)
        lines += [f"  {verb.name:<15} {verb.summary}" for verb in VERBS if verb.group == group]
        lines.append("")
    return "\n".join(lines) + "\n" + EPILOG
