"""The admin server's calls (`admin_calls`), and its decisions a second at 1, 1,000 and 1,000,000 topic patterns.

A decision asks whether an identity may subscribe to one of a thousand topics. The policy remembers the rules that it
found for a topic, so a look-up, which finds them for the first time, is measured by itself: for all topics, and for
those that one rule covers at every size, because a larger policy also has more rules that cover a topic. The sizes are
measured in turn, several times, and the best slot of each counts, so that other load matters little.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Callable, Mapping, Sequence

from tandemfeed.admin_server.policy.rules import Action, Identity, Policy, Rule
from tandemfeed.benchmarks import admin_calls

SIZES = (1, 1_000, 1_000_000)
SLOTS, ROUNDS_PER_SLOT = 25, 10
PATTERNS_PER_RULE = 1_000
FEEDS, VENUES = 50, 20
TOPICS = [f"feed{feed}.venue{venue}.trades" for feed in range(FEEDS) for venue in range(VENUES)]
NOW_NS = 1


def patterns_of(count: int) -> list[str]:
    """Patterns of three words. The first covers every topic; of the others, some cover half of the topics as well."""
    found = ["*.*.trades"]
    for number in range(1, count):
        feed, venue = number % 1_000, number // 1_000
        last = ("trades", "*", "#", "books")[number % 4]
        found.append(f"feed{feed + FEEDS // 2}.venue{venue}.{last}")
    return found


def policy_with(pattern_count: int) -> Policy:
    """A policy of one identity, with rules of up to a thousand patterns each."""
    patterns = patterns_of(pattern_count)
    rules = tuple(
        Rule(("rule", first // PATTERNS_PER_RULE, "topics"), 1, ("reader",), frozenset({Action.SUBSCRIBE}), each)
        for first in range(0, pattern_count, PATTERNS_PER_RULE)
        if (each := tuple(patterns[first : first + PATTERNS_PER_RULE]))
    )
    return Policy({"reader": Identity("reader", frozenset({"client"}))}, {}, rules)


def rate(of_topic: Callable[[str], object], topics: Sequence[str]) -> float:
    """Calls a second in one slot, by processor time."""
    begin_ns = time.process_time_ns()
    for _ in range(ROUNDS_PER_SLOT):
        for topic in topics:
            of_topic(topic)
    return ROUNDS_PER_SLOT * len(topics) * 1e9 / (time.process_time_ns() - begin_ns)


def best_rates(calls: Mapping[int, Callable[[str], object]], topics: Sequence[str]) -> dict[int, float]:
    """The rate at each size in its best slot."""
    best = dict.fromkeys(calls, 0.0)
    for _ in range(SLOTS):
        for size, call in calls.items():
            best[size] = max(best[size], rate(call, topics))
    return best


def decider(policy: Policy) -> Callable[[str], object]:
    """Decides on a topic."""
    return lambda topic: policy.decide("reader", Action.SUBSCRIBE, topic, NOW_NS)


def finder(policy: Policy) -> Callable[[str], tuple[Rule, ...]]:
    """Looks up the rules of a topic."""
    return lambda topic: policy.find_rules("reader", Action.SUBSCRIBE, topic)


def run(_arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    policies, mib = {}, {}
    for size in SIZES:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        policies[size] = policy_with(size)
        mib[size] = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1_024, 1)
    gc.freeze()  # a collection would visit a million nodes in one slot and not in another
    figures: dict[str, object] = {"memory_mib": {f"{size:,}": each for size, each in mib.items()}}
    finders = {size: finder(policy) for size, policy in policies.items()}
    of_one_rule = [topic for topic in TOPICS if len(finders[SIZES[-1]](topic)) == 1]
    for name, calls, topics in (
        ("decisions", {size: decider(policy) for size, policy in policies.items()}, TOPICS),
        ("look_ups", finders, TOPICS),
        ("look_ups_of_one_rule", finders, of_one_rule),
    ):
        best = best_rates(calls, topics)
        figures[f"{name}_per_second"] = {f"{size:,}": round(each) for size, each in best.items()}
        figures[f"{name}_at_a_million_to_one"] = round(best[SIZES[-1]] / best[1], 3)
    gc.unfreeze()
    del policies
    return figures | admin_calls.measure()
