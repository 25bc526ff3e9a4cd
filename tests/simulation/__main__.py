"""`./run simulate --seeds N [--first S]`: run the simulator over many seeds and tell of the first violation."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.checkers import Violation
from tests.simulation.cluster import Cluster


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds; 1 if one of them violates an invariant."""
    parser = argparse.ArgumentParser(prog="./run simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, metavar="N", help="how many seeds (default 2,000)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed (default 0)")
    parser.add_argument("--keep-going", action="store_true", help="count violations instead of stopping at the first")
    arguments = parser.parse_args(argv)
    began, failed = time.monotonic(), []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except (Violation, AssertionError, KeyError, IndexError) as violation:
            failed.append(seed)
            if not arguments.keep_going:
                print("\n".join(cluster.world.timeline))
                print(f"\nseed {seed}: {type(violation).__name__}: {violation}")
                if not isinstance(violation, Violation):
                    raise
                return 1
            print(f"\nseed {seed}: {type(violation).__name__}: {violation}")
        done = seed - arguments.first + 1
        if sys.stderr.isatty() or done % 200 == 0:
            rate = done / (time.monotonic() - began)
            print(f"\r{done}/{arguments.seeds} seeds, {rate:.0f} a second", end="", file=sys.stderr, flush=True)
    print(f"\n{arguments.seeds} seeds, {len(failed)} violations {failed[:20]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
