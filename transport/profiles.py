"""Where the options of a connection come from: the command line, else the environment, else a profile.

A profile is a table of `profiles.toml`, which names the server, the CA, the identity and the file of its secret:

    default = "production"
    [profile.production]
    admin = "admin-1:7400,admin-2:7400"
    ca = "ca.pem"                     # relative to this file
    identity = "operator"
    secret_file = "~/.operator.secret"

A profile never contains a secret itself. Every error says where the wrong value comes from.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "TANDEMFEED_"
FILE_VARIABLE, PROFILE_VARIABLE = "TANDEMFEED_PROFILES", "TANDEMFEED_PROFILE"
# One way to log in: options of a nearer place replace all of a farther one.
SETTINGS = (
    "admin",
    "ca",
    "identity",
    "secret_file",
    "certificate_file",
    "key_file",
    "token_file",
    "interface",
    "datagrams",
)
CREDENTIALS = frozenset({"secret_file", "certificate_file", "key_file", "token_file"})


class BadProfile(ValueError):
    """The profile file cannot be used; the text says why, and what to do."""


class Profile(NamedTuple):
    """The chosen profile. Attributes: origin: how errors name it; folder: what its relative paths start from."""

    origin: str
    folder: Path
    values: Mapping[str, Any]


def add_profile_argument(group: argparse._ArgumentGroup) -> None:
    """Add `--profile` to the options of a connection, which `complete` then completes."""
    group.add_argument("--profile", metavar="NAME", help="take what is not given from this profile in profiles.toml")


def complete(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, options: list[argparse.Action], needed: set[str]
) -> dict[str, str]:
    """Give the options that are not on the command line their values, and return where each value comes from.

    Ends the process with a clear message if a needed option has no value, or a value cannot be used.

    Args:
        parser: reports errors.
        arguments: the parsed command line; gets the values.
        options: the connection's options, which must not have defaults.
    """
    try:
        profile = chosen_profile(arguments.profile)
    except BadProfile as bad:
        parser.error(str(bad))
    given = {option.dest: option.option_strings[0] for option in options if getattr(arguments, option.dest)}
    environment = {option.dest: f"{PREFIX}{option.dest.upper()}" for option in options}
    places: list[dict[str, tuple[str, str]]] = [
        {name: (os.environ[variable], variable) for name, variable in environment.items() if os.environ.get(variable)},
        {name: (_text(value, name, profile), profile.origin) for name, value in profile.values.items()},
    ]
    origins = dict(given)
    for place in places:
        if CREDENTIALS & origins.keys():
            place = {name: found for name, found in place.items() if name not in CREDENTIALS}
        for option in options:
            if option.dest in place and option.dest not in origins:
                text, origins[option.dest] = place[option.dest]
                setattr(arguments, option.dest, _value(parser, option, text, origins[option.dest]))
    for option in options:
        if option.dest in needed and option.dest not in origins:
            parser.error(
                f"{option.option_strings[0]} is missing: give it, set {environment[option.dest]}, or set {option.dest} "
                f"in a profile ({profile.origin})"
            )
    return origins


def settings(name: str | None, *, has_credential: bool) -> dict[str, str]:
    """The settings of a connection in a program: from the environment, else from a profile; paths are complete.

    Args:
        name: the profile; None: the one that TANDEMFEED_PROFILE or the file's `default` names.
        has_credential: the program gives one, so those found here are left out.

    Raises:
        BadProfile.
    """
    profile = chosen_profile(name)
    found = {each: os.environ[variable] for each in SETTINGS if os.environ.get(variable := f"{PREFIX}{each.upper()}")}
    is_complete = has_credential or bool(CREDENTIALS & found.keys())
    for each, value in profile.values.items():
        if each not in found and not (is_complete and each in CREDENTIALS):
            found[each] = _text(value, each, profile)
    return {each: text for each, text in found.items() if not (has_credential and each in CREDENTIALS)}


def chosen_profile(name: str | None) -> Profile:
    """The profile that `--profile`, TANDEMFEED_PROFILE or the file's `default` names; an empty one if none does. It may
    have every setting, whichever of them the command that asks has options for.

    Raises:
        BadProfile.
    """
    path, is_asked = profiles_path()
    name = name or os.environ.get(PROFILE_VARIABLE)
    if not path.is_file():
        if name or is_asked:
            raise BadProfile(f"there is no file {path}; write it, or set {FILE_VARIABLE}")
        return Profile(str(path), path.parent, {})
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as unreadable:
        raise BadProfile(f"{path}: {unreadable}") from unreadable
    profiles = document.get("profile", {})
    if unknown := document.keys() - {"profile", "default"}:
        raise BadProfile(f"{path}: {sorted(unknown)[0]!r} is unknown; it may have default and [profile.NAME]")
    name = name or document.get("default")
    if name is None:
        return Profile(str(path), path.parent, {})
    if not isinstance(profiles, dict) or not isinstance(profiles.get(name), dict):
        listed = ", ".join(profiles) if isinstance(profiles, dict) and profiles else "none"
        raise BadProfile(f"{path} has no profile {name!r}; it has {listed}")
    values = profiles[name]
    if unknown := values.keys() - {*SETTINGS}:
        allowed = ", ".join(SETTINGS)
        raise BadProfile(f"{path}: profile.{name}.{sorted(unknown)[0]} is unknown; a profile may have {allowed}")
    return Profile(f"profile {name} in {path}", path.parent, values)


def profiles_path() -> tuple[Path, bool]:
    """(the profile file, whether the environment names it)."""
    if asked := os.environ.get(FILE_VARIABLE):
        return Path(asked).expanduser(), True
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "tandemfeed" / "profiles.toml", False


def _text(value: object, name: str, profile: Profile) -> str:
    text = str(value)
    is_path = name == "ca" or name.endswith("_file")
    return str(profile.folder / Path(text).expanduser()) if is_path else text


def _value(parser: argparse.ArgumentParser, option: argparse.Action, text: str, origin: str) -> Any:
    try:
        return option.type(text) if callable(option.type) else text
    except (argparse.ArgumentTypeError, ValueError) as wrong:
        parser.error(f"{option.dest} from {origin}: {wrong}")
