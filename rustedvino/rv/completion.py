"""``rv completion SHELL``: a script that completes verbs, options and model ids."""

import argparse
from typing import Final

from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_OK
from rustedvino.rv.parser import verb_parser
from rustedvino.rv.verbs import TAKES_MODEL, VERBS, Verb

MODEL_IDS: Final = 'rv list --json 2>/dev/null | grep -o \'"model_id": *"[^"]*"\' | cut -d\'"\' -f4'
"""Prints a model id a line; nothing when there is no server."""

_BASH: Final = """\
# rv completion bash > ~/.local/share/bash-completion/completions/rv
_rv() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb= word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in -*) ;; *) verb=$word; break ;; esac
    done
    if [[ $previous == --config ]]; then
        COMPREPLY=($(compgen -f -- "$current"))
        return
    fi
    if [[ -z $verb ]]; then
        COMPREPLY=($(compgen -W "{verbs}" -- "$current"))
        return
    fi
    if [[ $current == -* ]]; then
        case $verb in
{options}
        esac
        return
    fi
    case $verb in
        {with_model})
            # Not by compgen -W, which would expand what an id may hold.
            while IFS= read -r word; do
                [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "$word")")
            done < <({model_ids})
            ;;
        help) COMPREPLY=($(compgen -W "{verbs}" -- "$current")) ;;
        completion) COMPREPLY=($(compgen -W "bash zsh fish" -- "$current")) ;;
        keys) COMPREPLY=($(compgen -W "new" -- "$current")) ;;
    esac
}}
complete -F _rv rv
"""

_ZSH: Final = """\
#compdef rv
# rv completion zsh > a folder of $fpath, as _rv
_rv() {{
    local -a verbs options
    local verb
    verbs=(
{verbs}
    )
    verb=${{${{words[2,CURRENT-1]:#-*}}[1]}}
    if [[ -z $verb ]]; then
        _describe 'verb' verbs
        return
    fi
    if [[ $words[CURRENT] == -* ]]; then
        case $verb in
{options}
        esac
        compadd -- $options
        return
    fi
    case $verb in
        {with_model}) compadd -- ${{(f)"$({model_ids})"}} ;;
        help) _describe 'verb' verbs ;;
        completion) compadd bash zsh fish ;;
        keys) compadd new ;;
    esac
}}
if [[ $funcstack[1] == _rv ]]; then _rv "$@"; else compdef _rv rv; fi
"""


def completion(command: Command) -> int:
    """``rv completion``."""
    make = {"bash": bash, "zsh": zsh, "fish": fish}
    print(make[command.options.shell](), end="")
    return EXIT_OK


def bash() -> str:
    """For bash."""
    return _BASH.format(
        verbs=" ".join(verb.name for verb in VERBS),
        options="\n".join(
            f'            {verb.name}) COMPREPLY=($(compgen -W "{" ".join(_options(verb))}" -- "$current")) ;;'
            for verb in VERBS
        ),
        with_model="|".join(sorted(TAKES_MODEL)),
        model_ids=MODEL_IDS,
    )


def zsh() -> str:
    """For zsh."""
    return _ZSH.format(
        verbs="\n".join(f"        '{verb.name}:{_quoted(verb.summary)}'" for verb in VERBS),
        options="\n".join(f"            {verb.name}) options=({' '.join(_options(verb))}) ;;" for verb in VERBS),
        with_model="|".join(sorted(TAKES_MODEL)),
        model_ids=MODEL_IDS,
    )


def fish() -> str:
    """For fish."""
    names = " ".join(verb.name for verb in VERBS)
    lines = [
        "# rv completion fish > ~/.config/fish/completions/rv.fish",
        "complete -c rv -f",
        f"set -l __rv_verbs {names}",
    ]
    for verb in VERBS:
        lines.append(
            f"complete -c rv -n 'not __fish_seen_subcommand_from {names}' -a {verb.name} -d '{_quoted(verb.summary)}'"
        )
        seen = f"-n '__fish_seen_subcommand_from {verb.name}'"
        for action in _actions(verb):
            words = " ".join(
                f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                for option in action.option_strings
            )
            value = "" if action.nargs == 0 else " -r"
            files = " -F" if action.dest == "config" else ""
            lines.append(f"complete -c rv {seen} {words}{value}{files} -d '{_quoted(action.help or '')}'")
    seen = " ".join(sorted(TAKES_MODEL))
    ids = MODEL_IDS.replace('"', '\\"')
    lines.append(f"complete -c rv -n '__fish_seen_subcommand_from {seen}' -a \"({ids})\"")
    lines.append("complete -c rv -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
    lines.append("complete -c rv -n '__fish_seen_subcommand_from keys' -a new")
    return "\n".join(lines) + "\n"


def _actions(verb: Verb) -> list[argparse.Action]:
    return [action for action in verb_parser(verb)._actions if action.option_strings]  # noqa: SLF001  # there is no other way to list them


def _options(verb: Verb) -> list[str]:
    return [option for action in _actions(verb) for option in action.option_strings]


def _quoted(text: str) -> str:
    """For between single quotes, in which neither shell has escapes that the other has."""
    return text.replace("'", "").replace(":", ",").replace("`", "")
