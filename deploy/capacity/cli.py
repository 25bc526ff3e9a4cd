"""`tandemfeed capacity`: what a load needs."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tandemfeed.deploy.capacity.model import Capacity, Costs, Load, capacity
from tandemfeed.feedcore.wire.output_packet import DATAGRAM_SIZE_DEFAULT

COSTS = Path(__file__).with_name("costs.toml")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        costs = read_costs(arguments.costs, arguments.bench)
        load = Load(
            peak_per_s=arguments.peak,
            daily=arguments.daily,
            source_bytes=arguments.source_bytes,
            output_bytes=arguments.output_bytes,
            backups=arguments.backups,
            packet_messages=arguments.packet_messages_max,
            datagram_size=arguments.datagram_size,
            use=arguments.use,
            ahead_s=3_600 * arguments.job_hours,
        )
    except (ValueError, OSError) as error:
        print(f"tandemfeed capacity: {error}", file=sys.stderr)
        return 2
    found = capacity(load, costs)
    if arguments.json:
        print(json.dumps({"load": asdict(load), "costs": asdict(costs), "capacity": asdict(found)}, indent=1))
    else:
        print("\n".join(_lines(load, costs, found)))
    return 0


def read_costs(file: Path, benchmarks: Sequence[Path]) -> Costs:
    """The costs of a file, with the figures of benchmarks instead where there are any.

    Raises:
        ValueError: a cost is missing, unknown or not positive.
        OSError: a file cannot be read.
    """
    known = {each.name for each in fields(Costs)}
    found: dict[str, Any] = tomllib.loads(file.read_text())
    if wrong := known ^ found.keys():
        raise ValueError(f"{file}: {', '.join(sorted(wrong))}: missing or unknown; expected {', '.join(sorted(known))}")
    for path in benchmarks:
        figures = json.loads(path.read_text())
        measured = {name: value for name, value in figures.items() if name in known}
        if not measured:
            raise ValueError(f"{path} has no figure that is a cost; give --json of `bench adapter` or `bench spark`")
        found |= measured
    return Costs(**found)


def _lines(load: Load, costs: Costs, found: Capacity) -> list[str]:
    link = found.client_link_gbits
    source, output, adapter = map(_gbits, (found.source_bits_per_s, found.output_bits_per_s, found.adapter_bits_per_s))
    of_client = f"{link} Gbit/s link" if link else "more than a link of 400 Gbit/s: divide the feeds among hosts"
    rows = {
        "load": f"{load.peak_per_s:,.0f} messages/s in the peak second, {load.daily:,.0f} a day",
        "packets": f"{found.source_packets_per_s:,.0f}/s of the source, {found.output_packets_per_s:,.0f}/s output",
        "feeds": f"{found.feeds:,}, each with a source stream, a channel and a gateway",
        "adapters": f"{found.adapters:,} processes, {1 + load.backups} for each feed, on {found.adapter_cores:,} cores",
        "gateways": f"{found.gateway_cores:,} cores",
        "source job": f"{found.executor_cores:,} executor cores",
        "multicast": f"{found.groups:,} groups",
        "bandwidth": f"{source} source, {output} output of all adapters, {adapter} at each adapter",
        "a full client": f"{found.client_processes:,} processes of a core each, {of_client}",
        "journals": f"{found.journal_bytes_per_s / 1e6:,.1f} MB/s at each adapter in the peak second, "
        f"{found.journal_bytes_a_day / 1e12:,.2f} TB a day in all",
        "computed from": f"{costs.adapter_datagrams_per_s:,.0f} packets/s of an adapter and "
        f"{costs.rows_per_s_local1:,.0f} rows/s of an executor core, of which {load.use:.0%} may be used",
    }
    return [f"{name:<14} {text}" for name, text in rows.items()]


def _gbits(bits: float) -> str:
    return f"{bits / 1e9:,.2f} Gbit/s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tandemfeed capacity",
        description="Compute from measured costs how many feeds, adapters, gateways and executors a load needs, and "
        "how much bandwidth.",
    )
    parser.add_argument("--peak", type=float, required=True, metavar="N", help="source messages in the busiest second")
    parser.add_argument("--daily", type=float, required=True, metavar="N", help="source messages of a day")
    parser.add_argument(
        "--source-bytes",
        type=int,
        default=64,
        metavar="N",
        help="mean bytes of a source message, with its framing (default %(default)s)",
    )
    parser.add_argument(
        "--output-bytes",
        type=int,
        default=74,
        metavar="N",
        help="mean bytes of an output message, with its framing (default %(default)s)",
    )
    parser.add_argument(
        "--backups", type=int, default=1, metavar="N", help="backup adapters of each feed (default %(default)s)"
    )
    parser.add_argument(
        "--packet-messages-max",
        type=int,
        default=16,
        metavar="N",
        help="messages per source packet, as for source-job (default %(default)s)",
    )
    parser.add_argument(
        "--datagram-size",
        type=int,
        default=DATAGRAM_SIZE_DEFAULT,
        metavar="N",
        help="datagram_size_max of the feeds (default %(default)s)",
    )
    parser.add_argument(
        "--use",
        type=float,
        default=0.5,
        metavar="X",
        help="share of a core or link that may be in use in the peak second (default %(default)s)",
    )
    parser.add_argument(
        "--job-hours",
        type=float,
        default=0.0,
        metavar="H",
        help="the source job may number the day ahead of play in this time (default: it keeps up with the peak)",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        default=COSTS,
        metavar="TOML",
        help="file of costs (default: those measured by this project)",
    )
    parser.add_argument(
        "--bench",
        type=Path,
        action="append",
        default=[],
        metavar="JSON",
        help="figures of `tandemfeed bench adapter` or `bench spark`, which replace costs; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser
