"""`tandemfeed admin hash-secret`: the verifier of a secret."""

from __future__ import annotations

import argparse
import getpass
import json
import sys

from tandemfeed.admin_server.command.registry import CommandAdder
from tandemfeed.admin_server.identity.verifiers import credentials_row, verifier_of


def add_commands(adder: CommandAdder) -> None:
    """Add `hash-secret`."""
    adder.local("hash-secret", "read a secret and print the salted verifier to store", _hash_secret)


def _hash_secret(_arguments: argparse.Namespace) -> int:
    secret = getpass.getpass("secret: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not secret:
        print("admin: the secret is empty; enter one", file=sys.stderr)
        return 2
    print(json.dumps(credentials_row(verifier_of(secret))))
    return 0
