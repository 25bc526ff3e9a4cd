"""`tandemfeed completion SHELL` prints a script that completes `tandemfeed` in a shell. Generated from the parsers.

For bash: tandemfeed completion bash > ~/.local/share/bash-completion/completions/tandemfeed
For zsh, into a folder of fpath: tandemfeed completion zsh > ~/.zfunc/_tandemfeed
For fish: tandemfeed completion fish > ~/.config/fish/completions/tandemfeed.fish
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
from collections.abc import Iterator, Sequence
from unittest import mock

from tandemfeed.deploy.command import SUMMARIES, commands

Table = dict[str, list[str]]  # the words so far -> what may come next

BASH = """\
_tandemfeed_next() {{
  case "$1" in
{cases}
  esac
}}
_tandemfeed() {{
  local so_far="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    _tandemfeed_next "$so_far $word" >/dev/null && so_far="$so_far $word"
  done
  local choices
  choices=$(_tandemfeed_next "$so_far ${{COMP_WORDS[COMP_CWORD-1]}}=") || choices=$(_tandemfeed_next "$so_far")
  COMPREPLY=($(compgen -W "$choices" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _tandemfeed tandemfeed
"""
ZSH = """\
#compdef tandemfeed
_tandemfeed_next() {{
  case "$1" in
{cases}
  esac
}}
_tandemfeed() {{
  local so_far="" word choices
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    _tandemfeed_next "$so_far $word" >/dev/null && so_far="$so_far $word"
  done
  choices=$(_tandemfeed_next "$so_far ${{words[CURRENT-1]}}=") || choices=$(_tandemfeed_next "$so_far")
  compadd -- ${{=choices}} || _files
}}
compdef _tandemfeed tandemfeed
"""
FISH = """\
function __tandemfeed_next
  switch "$argv[1]"
{cases}
    case '*'
      return 1
  end
end
function __tandemfeed_complete
  set -l so_far ""
  set -l words (commandline -opc)[2..-1]
  for word in $words
    __tandemfeed_next "$so_far $word" >/dev/null; and set so_far "$so_far $word"
  end
  __tandemfeed_next "$so_far $words[-1]="; or __tandemfeed_next "$so_far"
end
# File names only after an option.
complete -c tandemfeed -f -n 'not string match -q -- "--*" (commandline -opc)[-1]'
complete -c tandemfeed -a '(__tandemfeed_complete)'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a script that completes `tandemfeed` in a shell."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed completion", description=main.__doc__)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell that reads the script")
    shell = parser.parse_args(argv).shell
    table = completions()
    if shell == "fish":
        cases = "\n".join(
            f"    case {_quoted(words)}\n      printf '%s\\n' {' '.join(map(_quoted, choices))}"
            for words, choices in table.items()
        )
        print(FISH.format(cases=cases), end="")
    else:
        cases = "\n".join(
            f"    {_quoted(words)}) echo {_quoted(' '.join(choices))} ;;" for words, choices in table.items()
        )
        cases += "\n    *) return 1 ;;"
        print((BASH if shell == "bash" else ZSH).format(cases=cases), end="")
    return 0


def _quoted(text: str) -> str:
    return shlex.quote(text)


def completions() -> Table:
    """What may follow after which words. A key that ends with `=` is an option whose value has choices."""
    table: Table = {}
    for name in commands():
        if name != "completion" and (parser := parser_of(name)) is not None:
            table |= _table_of(parser, f" {name}")
    known = sorted(commands(), key=lambda name: list(SUMMARIES).index(name) if name in SUMMARIES else len(SUMMARIES))
    return {"": known, " completion": ["bash", "zsh", "fish"], **table}


def parser_of(name: str) -> argparse.ArgumentParser | None:
    """The parser of a command; None if the packages that the command needs are not installed."""
    found: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *_arguments: object, **_named: object) -> None:
        found.append(parser)
        raise _Found

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", keep),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(_Found, ModuleNotFoundError),
    ):
        commands()[name].load()([])
    return found[0] if found else None


class _Found(BaseException):
    """A command has made its parser, and must not run."""


def _table_of(parser: argparse.ArgumentParser, words: str) -> Table:
    table: Table = {words: list(_next_words(parser))}
    for action in parser._actions:  # argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                table |= _table_of(child, f"{words} {name}")
        elif action.choices is not None:
            choices = [str(choice) for choice in action.choices]
            table |= {f"{words} {option}=": choices for option in action.option_strings}
    return table


def _next_words(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.option_strings:
            yield from (option for option in action.option_strings if option.startswith("--"))
        elif action.choices is not None:
            yield from map(str, action.choices)
