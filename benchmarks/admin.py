"""The admin server's decisions: how many a second, when the policy has 1, 1,000 and 1,000,000 topic patterns.

A decision asks whether an identity may subscribe to one of a thousand topics, about half of which are granted. The
sizes are measured in turn, several times, and the best slot of each counts, so that other load matters little.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time

from tandemfeed.admin_server.policy.rules import Action, Identity, Policy, Rule

SIZES = (1, 1_000, 1_000_000)
SLOTS, DECISIONS_PER_SLOT = 25, 10
PATTERNS_PER_RULE = 1_000
FEEDS, VENUES = 50, 20
TOPICS = [f"feed{feed}.venue{venue}.trades" for feed in range(FEEDS) for venue in range(VENUES)]
NOW_NS = 1


def patterns_of(count: int) -> list[str]:
    """Patterns of three words with and without `*` and `#`; the first covers half of the topics' feeds or more."""
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


def decisions_per_second(policy: Policy) -> float:
    """The rate of one slot, by processor time."""
    begin_ns = time.process_time_ns()
    for _ in range(DECISIONS_PER_SLOT):
        for topic in TOPICS:
            policy.decide("reader", Action.SUBSCRIBE, topic, NOW_NS)
    return DECISIONS_PER_SLOT * len(TOPICS) * 1e9 / (time.process_time_ns() - begin_ns)


def run(_arguments: argparse.Namespace) -> dict[str, object]:
    """Measure everything."""
    policies, mib = {}, {}
    for size in SIZES:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        policies[size] = policy_with(size)
        mib[size] = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1_024, 1)
    gc.freeze()  # a collection would visit a million nodes in one slot and not in another
    best = dict.fromkeys(SIZES, 0.0)
    for _ in range(SLOTS):
        for size, policy in policies.items():
            best[size] = max(best[size], decisions_per_second(policy))
    return {
        "decisions_per_second": {f"{size:,}": round(rate) for size, rate in best.items()},
        "rate_at_a_million_to_rate_at_one": round(best[SIZES[-1]] / best[1], 3),
        "memory_mib": {f"{size:,}": each for size, each in mib.items()},
    }
