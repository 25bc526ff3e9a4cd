"""Clients that are dropped, forked, stopped, closed in odd places, or left to the end of their process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.client_lib.reader_process import ReaderProcess
from tests.client_lib.toy_cluster import TOPIC, ToyCluster, heartbeat, packet

ENDS_WITHIN_S = 20.0
COUNT = 1_000


def send_messages(cluster: ToyCluster, count: int = COUNT) -> None:
    """Journal and send so many messages, then what the adapters say when idle."""
    for first in range(1, count, 10):
        for adapter in cluster.adapters:
            adapter.send(packet(first, first, 10))
    for adapter in cluster.adapters:
        adapter.send(heartbeat(count + 1))


def beat_until_it_says(cluster: ToyCluster, reader: ReaderProcess, what: object, count: int = COUNT) -> None:
    give_up_at_s = time.monotonic() + 60
    while what not in reader.said:
        assert time.monotonic() < give_up_at_s, reader.said
        for adapter in cluster.adapters:
            adapter.send(heartbeat(count + 1))
        reader.listen(0.01)


# ---- dropped ----

DROPPED = {
    "a subscription": """
subscription = feed.subscribe([TOPIC], feed="equities")
subscription.poll(0.1)
del subscription, feed
""",
    "two, which share sockets": """
first, second = (feed.subscribe([TOPIC], feed="equities") for _ in range(2))
first.poll(0.1)
del first, second, feed
""",
    "one by unicast": """
subscription = feed.subscribe([TOPIC], feed="equities", transport="unicast")
subscription.poll(0.1)
del subscription, feed
""",
    "one that reads ahead": """
subscription = feed.subscribe([TOPIC], feed="equities", on_lag="drop")
subscription.poll(0.1)
del subscription, feed
""",
    "one with a cursor": """
from pathlib import Path
subscription = feed.subscribe([TOPIC], feed="equities", cursor=Path("CURSOR"))
subscription.poll(0.1)
del subscription, feed
""",
    "one that a coroutine read": """
import asyncio
async def read():
    subscription = feed.subscribe([TOPIC], feed="equities")
    try:
        async with asyncio.timeout(0.5):
            async for message in subscription:
                pass
    except TimeoutError:
        pass
asyncio.run(read())
del feed
""",
    "one within a cycle, with an exception that keeps its frames": """
def read():
    subscription = feed.subscribe([TOPIC], feed="equities")
    me = [subscription]
    me.append(me)
    raise ValueError
try:
    read()
except ValueError as failed:
    kept = [failed]
    kept.append(kept)
del kept, feed
""",
}
COLLECT = """
import gc, threading, time
def names():
    return sorted(each.name for each in threading.enumerate() if each.name not in ("MainThread", "tandemfeed-closer"))
def sockets():
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            pass
    return [each for each in found if "eventfd" in each or "socket" in each]
gc.collect()
say("collected")
give_up_at = time.monotonic() + 15
while (any(each.startswith("tandemfeed") for each in names())) and time.monotonic() < give_up_at:
    time.sleep(0.05)
say("left", [each for each in names() if each.startswith("tandemfeed")])
"""


@pytest.mark.parametrize("code", DROPPED.values(), ids=DROPPED)
def test_what_was_dropped_is_closed_by_itself_and_stops_no_thread(
    cluster: ToyCluster, code: str, tmp_path: Path
) -> None:
    for adapter in cluster.adapters:
        adapter.serve_unicast()
    with ReaderProcess(cluster, code.replace("CURSOR", f"{tmp_path}/cursor.json") + COLLECT) as reader:
        assert reader.wait(ENDS_WITHIN_S) == 0
        assert reader.said == [["collected"], ["left", []]]


def test_a_dropped_client_does_not_stop_the_thread_of_another_one_that_collects_it(cluster: ToyCluster) -> None:
    code = """
import gc, threading
gc.disable()
def drop():
    subscription = connect_again().subscribe([TOPIC], feed="equities")
    subscription.poll(0.1)
    me = [subscription]
    me.append(me)
drop()
def read():
    with feed, feed.subscribe([TOPIC], feed="equities", start="first") as subscription:
        for number, message in enumerate(subscription, 1):
            if number == 500:
                gc.collect()
            if number == 1000:
                say("read")
                break
reader = threading.Thread(target=read)
reader.start()
reader.join()
"""
    with ReaderProcess(cluster, code) as reader:
        send_messages(cluster)
        beat_until_it_says(cluster, reader, ["read"])
        assert reader.wait(ENDS_WITHIN_S) == 0


def test_a_subscription_outlives_its_client_object(cluster: ToyCluster) -> None:
    code = """
import gc
subscription = feed.subscribe([TOPIC], feed="equities", start="first")
del feed
gc.collect()
for number, message in enumerate(subscription, 1):
    if number == 1000:
        break
say("read")
subscription.close()
"""
    with ReaderProcess(cluster, code) as reader:
        send_messages(cluster)
        beat_until_it_says(cluster, reader, ["read"])
        assert reader.wait(ENDS_WITHIN_S) == 0


# ---- the end of the process ----

UNCLOSED = {
    "open": "",
    "read in a thread": """
import threading
threading.Thread(target=lambda: list(subscription), daemon=True).start()
""",
    "read ahead": """
ahead = feed.subscribe([TOPIC], feed="equities", on_lag="drop")
ahead.poll(0.1)
""",
    "read by a coroutine in a thread": """
import asyncio, threading
async def read():
    async for message in subscription:
        pass
threading.Thread(target=lambda: asyncio.run(read()), daemon=True).start()
""",
    "opened by a thread that has ended": """
import threading
kept = []
opener = threading.Thread(target=lambda: kept.append(connect_again().subscribe([TOPIC], feed="equities")))
opener.start()
opener.join()
kept[0].poll(0.1)
""",
    "with an error": "raise SystemExit(3)",
}


@pytest.mark.parametrize("code", UNCLOSED.values(), ids=UNCLOSED)
def test_a_process_ends_although_its_client_was_not_closed(cluster: ToyCluster, code: str) -> None:
    opening = 'subscription = feed.subscribe([TOPIC], feed="equities")\nsubscription.poll(0.1)\n'
    with ReaderProcess(cluster, opening + code + '\nsay("ends")\n') as reader:
        assert reader.wait(ENDS_WITHIN_S) == (3 if "SystemExit" in code else 0)


@pytest.mark.parametrize(
    "reading",
    ["subscription.run(lambda message: None)", "list(subscription)", "subscription.poll()", "subscription.read(10**9)"],
)
def test_an_interrupt_ends_a_reading_and_the_process(cluster: ToyCluster, reading: str) -> None:
    code = f"""
say("reads")
try:
    with feed, feed.subscribe([TOPIC], feed="equities", start="first") as subscription:
        {reading}
except KeyboardInterrupt:
    say("interrupted")
"""
    with ReaderProcess(cluster, code) as reader:
        send_messages(cluster)
        beat_until_it_says(cluster, reader, ["reads"])
        time.sleep(0.5)
        reader.signal(signal.SIGINT)
        assert reader.wait(ENDS_WITHIN_S) == 0
        assert reader.said[-1] == ["interrupted"]


# ---- forked ----

USES = {
    "poll": "subscription.poll(0)",
    "iterate": "next(iter(subscription))",
    "batches": "next(iter(subscription.batches()))",
    "run": "subscription.run(print)",
    "read": "subscription.read(1, 0)",
    "coroutine": "asyncio.run(anext(aiter(subscription)))",
    "statistics": "subscription.statistics()",
    "modify": 'subscription.modify(add=["equities.#"])',
    "store the cursor": "subscription.store_cursor()",
    "subscribe": 'feed.subscribe([TOPIC], feed="equities")',
    "open": "feed.open()",
    "contribute": 'feed.contribute("equities.orders")',
    "connect": "connect_again()",
    "read ahead": "ahead.poll(0)",
}
FORK = """
import asyncio
from pathlib import Path
subscription = feed.subscribe([TOPIC], feed="equities", start="first", cursor=Path("CURSOR"))
ahead = connect_again().subscribe([TOPIC], feed="equities", on_lag="drop")
messages = iter(subscription)
first = [next(messages).origin.message_seq for _ in range(7)]
with feed:
    pid = os.fork()
    if not pid:
        for use, code in USES.items():
            try:
                eval(code)
            except ForkedProcess as refused:
                say(use, str(refused))
            except BaseException as other:
                say(use, repr(other))
        subscription.stop()
        subscription.close()
        feed.close()
        sys.exit(0)
    say("child", pid, os.waitpid(pid, 0)[1])
    rest = []
    for message in messages:
        rest.append(message.origin.message_seq)
        if len(rest) == 993:
            subscription.stop()
    say("read", first + rest)
"""


def test_a_forked_process_cannot_use_its_parents_client_and_takes_nothing_from_it(
    cluster: ToyCluster, tmp_path: Path
) -> None:
    code = FORK.replace("CURSOR", f"{tmp_path}/cursor.json").replace("USES", repr(USES))
    with ReaderProcess(cluster, code) as reader:
        send_messages(cluster)
        beat_until_it_says(cluster, reader, ["read", list(range(1, COUNT + 1))])
        assert reader.wait(ENDS_WITHIN_S) == 0
        *refused, child, _ = reader.said
        assert (child[0], child[2]) == ("child", 0)
        assert [use for use, _ in refused] == list(USES)
        for _, text in refused:
            assert f"{child[1]}) was forked" in text
            assert '"spawn"' in text
    stored = json.loads((tmp_path / "cursor.json").read_text())["topics"][TOPIC]
    assert stored["next_message_seq"] == COUNT + 1


def test_a_process_that_was_forked_before_a_client_was_opened_can_have_its_own(cluster: ToyCluster) -> None:
    code = """
import multiprocessing
def read(number):
    with connect_again() as own, own.subscribe([TOPIC], feed="equities", start="first") as subscription:
        for count, message in enumerate(subscription, 1):
            if count == 1000:
                return number
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        say("read", pool.map(read, [1, 2]))
"""
    with ReaderProcess(cluster, code) as reader:
        send_messages(cluster)
        beat_until_it_says(cluster, reader, ["read", [1, 2]])
        assert reader.wait(ENDS_WITHIN_S) == 0
