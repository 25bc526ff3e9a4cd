"""A process that runs random transactions until it is killed, and a check that none is lost or incomplete.

The child reports each operation before it begins, and again when it is acknowledged. Each transaction puts its token
into the queue `tokens`, from which no transaction reads. So the queue shows which transactions happened. Replaying
these transactions, in the order in which their ends were reported, must give the contents of every queue.

By hand: `python -m tests.journal.transactional.crash_child FOLDER SEED` prints its reports until it is killed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tandemfeed.journal.transactional import (
    Message,
    StoreLimits,
    Transaction,
    TransactionalStore,
    TransactionalStoreError,
    subscriber_queue,
)

THREADS = 3
TOKENS = "tokens"
SUBSCRIBERS = {"all": "work.#", "none": "other.#", **{f"only-{thread}": f"work.{thread}" for thread in range(THREADS)}}
# Small, so that checkpoints, windows and swap files are frequent; large bodies make kills hit during writes.
LIMITS = StoreLimits(log_bytes_max=300_000, volatile_memory_bytes_max=2_000, swap_file_bytes_max=10_000)
BODY_BYTES_MAX = 3_000
DEPTH_MAX = 40  # messages that a thread leaves in its own queue

Report = tuple[str, str, object]
"""(what, which transaction, detail):

- ("start", "", None): a child opened the store;
- ("begun", token, {"removed": [[queue, body]], "added": [[queue, body]]}): it is about to commit or prepare this;
- ("acknowledged", token, None): it is committed;
- ("rolled back", token, None): it is rolled back;
- ("prepared", token, None): it is prepared;
- ("deciding", token, commit) and then ("acknowledged" | "rolled back", token, None);
- ("broken", "", text): the store refused an operation that it must accept.
"""


def queue_of(thread: int, letter: str) -> str:
    """A queue that only one thread uses."""
    return f"of-{thread}-{letter}"


def child(folder: Path, pipe: Connection, seed: int) -> None:
    """Run random transactions on the store in the folder until killed, and report each.

    Args:
        folder: the folder of the store; created if needed.
        pipe: receives the reports (see `Report`); the receiver must keep reading.
        seed: determines all random choices; must differ between the children on one folder.
    """
    lock = threading.Lock()

    def report(what: str, token: str = "", detail: object = None) -> None:
        with lock:
            pipe.send((what, token, detail))

    run(folder, report, seed)


def run(folder: Path, report: Callable[..., None], seed: int) -> None:
    """The child's work; ends only if the store breaks."""
    store = TransactionalStore.open(folder, limits=LIMITS)
    _make_queues(store)
    report("start")
    chance = random.Random(seed)
    for doubtful in store.in_doubt():
        if chance.random() < 0.7:
            _decide(store, report, doubtful.global_id, commit=chance.random() < 0.5, by_hand=chance.random() < 0.5)
    threads = [
        threading.Thread(target=_work, args=(store, report, seed, number), daemon=True) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _make_queues(store: TransactionalStore) -> None:
    there = {queue.name for queue in store.queues()}
    for name in (TOKENS, "volatile", *(queue_of(thread, letter) for thread in range(THREADS) for letter in "ab")):
        if name not in there:
            store.create_queue(name)
    for name, pattern in SUBSCRIBERS.items():
        if subscriber_queue(name) not in there:
            store.create_subscriber(name, pattern)


def _work(store: TransactionalStore, report: Callable[..., None], seed: int, thread: int) -> None:
    chance = random.Random(f"{seed}/{thread}")
    try:
        for number in range(sys.maxsize):
            _one(store, report, chance, thread, f"{seed}/{thread}/{number}")
    except (TransactionalStoreError, AssertionError) as error:
        report("broken", "", f"{type(error).__name__}: {error}")


def _one(
    store: TransactionalStore, report: Callable[..., None], chance: random.Random, thread: int, token: str
) -> None:
    removed: list[tuple[str, str]] = []
    added: list[tuple[str, str]] = []
    two_phase = chance.random() < 0.2
    transaction = store.begin(token) if two_phase else store.transaction()
    _take(transaction, chance, thread, removed, added)
    depth = {queue.name: queue.count for queue in store.queues()}
    for place in range(chance.randrange(4)):
        queue = queue_of(thread, chance.choice("ab"))
        if depth[queue] < DEPTH_MAX:
            body = f"{token}/{place} " + "x" * chance.randrange(BODY_BYTES_MAX)
            transaction.put(queue, body.encode())
            added.append((queue, body))
    transaction.put(TOKENS, token.encode())
    transaction.publish(f"work.{thread}", token.encode())
    if depth["volatile"] < 100:
        transaction.put("volatile", bytes(chance.randrange(BODY_BYTES_MAX)), persistent=False)
    elif (volatile := transaction.get("volatile")) is not None:
        transaction.ack(volatile)
    report("begun", token, {"removed": removed, "added": added})
    _finish(store, report, chance, transaction, token, two_phase=two_phase)


def _take(
    transaction: Transaction,
    chance: random.Random,
    thread: int,
    removed: list[tuple[str, str]],
    added: list[tuple[str, str]],
) -> None:
    for _ in range(chance.randrange(5)):
        source = chance.choice([queue_of(thread, "a"), queue_of(thread, "b"), subscriber_queue(f"only-{thread}")])
        message: Message | None = transaction.get(source)
        if message is None:
            continue
        body, fate = message.body.decode(), chance.choice(["ack", "ack", "delete", "move", "keep"])
        if fate == "keep":
            continue
        removed.append((source, body))
        if fate == "ack":
            transaction.ack(message)
        elif fate == "delete":
            transaction.delete(source, message.message_id)
        else:
            target = queue_of(thread, chance.choice("ab"))
            transaction.move(message, target)
            added.append((target, body))


def _finish(
    store: TransactionalStore,
    report: Callable[..., None],
    chance: random.Random,
    transaction: Transaction,
    token: str,
    *,
    two_phase: bool,
) -> None:
    if chance.random() < 0.1:
        transaction.rollback()
        report("rolled back", token)
    elif not two_phase:
        transaction.commit()
        report("acknowledged", token)
    else:
        transaction.prepare()
        report("prepared", token)
        # An undecided transaction keeps its locks. With too many of them, the queues would run empty.
        if chance.random() < 0.8 or len(store.prepared()) > 20:
            _decide(store, report, token, commit=chance.random() < 0.7, by_hand=False)


def _decide(store: TransactionalStore, report: Callable[..., None], token: str, *, commit: bool, by_hand: bool) -> None:
    report("deciding", token, commit)
    (store.decide_by_hand if by_hand else store.decide)(token, commit=commit)
    report("acknowledged" if commit else "rolled back", token)


@dataclass
class Reported:
    """The reports about one transaction."""

    removed: list[tuple[str, str]]
    added: list[tuple[str, str]]
    place: int  # of its last report, which determines the order of replay
    reports: set[str] = field(default_factory=set)
    decisions: set[bool] = field(default_factory=set)


def verify(folder: Path, reported: Iterable[Report]) -> None:
    """Open the store as after a crash and compare it to the reports of its children; leaves it closed and intact.

    Args:
        folder: of the store.
        reported: the reports of all children on this folder, in order.

    Raises:
        AssertionError: an acknowledged or prepared transaction is lost, or a transaction is incomplete, duplicated or
            out of order.
    """
    transactions, started = _by_token(reported)
    if not started:
        return  # killed before the store was created
    try:
        opened = TransactionalStore.open(folder, limits=LIMITS)
    except TransactionalStoreError as error:
        raise AssertionError(f"the store does not open after a kill: {error}") from error
    with opened as store:
        problems = store.problems()
        assert not problems, f"the page store is damaged: {problems[:3]}"
        in_doubt = {each.global_id for each in store.in_doubt()}
        happened = _contents(store, TOKENS)
        assert len(happened) == len(set(happened)), "a transaction happened twice"
        _check_ends(transactions, set(happened), in_doubt)
        _check_queues(store, transactions, set(happened))
        locked = sum(queue.locked_count for queue in store.queues())
        assert locked or all(not transactions[token].removed for token in in_doubt), (
            "prepared transactions have no locks"
        )
        assert store.statistics().volatile_message_count == 0
        assert not list(folder.glob("swap-*")), "swap files of a dead process are left"


def _by_token(reported: Iterable[Report]) -> tuple[dict[str, Reported], bool]:
    transactions: dict[str, Reported] = {}
    started = False
    for place, (what, token, detail) in enumerate(reported):
        assert what != "broken", f"the store broke under load: {detail}"
        if what == "start":
            started = True
        elif what == "begun":
            assert isinstance(detail, dict)
            transactions[token] = Reported(detail["removed"], detail["added"], place)
        else:
            transactions[token].reports.add(what)
            transactions[token].place = place
            if what == "deciding":
                assert isinstance(detail, bool)
                transactions[token].decisions.add(detail)
    return transactions, started


def _check_ends(transactions: dict[str, Reported], happened: set[str], in_doubt: set[str]) -> None:
    assert happened <= transactions.keys(), f"no child began {sorted(happened - transactions.keys())[:3]}"
    for token, each in transactions.items():
        if "acknowledged" in each.reports:
            assert token in happened, f"{token} was acknowledged but is lost"
            assert token not in in_doubt, f"{token} was committed but is in doubt"
        elif "rolled back" in each.reports:
            assert token not in happened, f"{token} was rolled back but happened"
            assert token not in in_doubt, f"{token} was rolled back but is in doubt"
        elif "prepared" in each.reports:
            ended = token in happened or (False in each.decisions and token not in in_doubt)
            assert ended != (token in in_doubt), f"{token} was prepared, so it must be either in doubt or decided"
            assert token not in happened or True in each.decisions, f"{token} happened without a decision"
        else:
            assert not (token in happened and token in in_doubt), f"{token} is both committed and in doubt"


def _check_queues(store: TransactionalStore, transactions: dict[str, Reported], happened: set[str]) -> None:
    """Replay the transactions that happened."""
    expected: dict[str, list[str]] = {}
    for name, pattern in SUBSCRIBERS.items():
        of_pattern = pattern.removeprefix("work.")
        meant = sorted(token for token in happened if of_pattern in ("#", token.split("/")[1]))
        expected[subscriber_queue(name)] = meant
    for token, each in sorted(transactions.items(), key=lambda item: item[1].place):
        if token in happened:
            for queue, body in each.removed:
                there = expected.get(queue, [])
                assert body in there, f"{token} consumed {body[:40]!r} of {queue}, which did not contain it"
                there.remove(body)
            for queue, body in each.added:
                expected.setdefault(queue, []).append(body)
    for queue, wanted in expected.items():
        found = _contents(store, queue)
        if queue.startswith("of-"):
            assert found == wanted, f"{queue}: {_difference(found, wanted)}"
        else:  # several threads publish, in an order that the reports do not show
            assert Counter(found) == Counter(wanted), f"{queue}: {_difference(found, wanted)}"


def _difference(found: list[str], wanted: list[str]) -> str:
    lost, strange = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    return f"lost {[body[:40] for body in lost][:3]}, unexpected {[body[:40] for body in strange][:3]}, or wrong order"


def _contents(store: TransactionalStore, queue: str) -> list[str]:
    """Bodies in order, including locked ones, which transactions cannot see."""
    rows = store._parts.pages.rows(
        "SELECT body FROM entry JOIN message ON message.id = message_id JOIN queue ON queue.id = queue_id"
        " WHERE queue.name = ? ORDER BY position",
        (queue,),
    )
    return [body.decode() for (body,) in rows if isinstance(body, bytes)]


def _print(what: str, token: str = "", detail: object = None) -> None:
    sys.stdout.write(json.dumps((what, token, detail)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(Path(sys.argv[1]), _print, int(sys.argv[2]))
