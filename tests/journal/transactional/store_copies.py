"""A simulated crash: copies of the files at one moment, as a killed process leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tandemfeed.journal.transactional import TransactionalStore


def crashed_copy(store: TransactionalStore, folder: Path) -> Path:
    """A copy of the files of an open store, to be opened as after a crash.

    Files are copied one by one, while a crash affects all at the same moment. So no group or checkpoint may be in
    progress.
    """
    with store._parts.pages._write_lock:
        shutil.copytree(store.folder, folder, ignore=shutil.ignore_patterns("store.reserve"))
    return folder


def bodies(store: TransactionalStore, queue: str) -> list[bytes]:
    """The available messages of a queue, in order, without consuming them."""
    transaction = store.transaction()
    found = []
    while (message := transaction.get(queue)) is not None:
        found.append(message.body)
    transaction.rollback()
    return found


def put_all(store: TransactionalStore, queue: str, *put: bytes, persistent: bool = True) -> None:
    """Put messages in one transaction."""
    with store.transaction() as transaction:
        for body in put:
            transaction.put(queue, body, persistent=persistent)
