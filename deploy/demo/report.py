"""The demo's report: one set of figures, printed, as JSON, and as an HTML page with a plot."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from tandemfeed.client_lib.recording.record import DeliveryRecord, TakeoverFigures
from tandemfeed.deploy.drills.ledger import MS, longest_source_pause_ms
from tandemfeed.deploy.hiccups.record import Hiccups

WINDOW_MS = 1_000.0
SHOWN_MAX = 12
PAUSES = {"source_stall_ms": "source", "hiccup_ms": "machine"}  # what a stall is compared with
WRONG_TEXT = "different from the recording"
CLEAN_TEXT = "no message lost, repeated, reordered or changed"
FAILED_TEXT = "MESSAGES LOST, REPEATED, REORDERED OR CHANGED"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
.verdict { padding: .6rem 1rem; border-left: 6px solid; background: #f4f6f6 }
th { text-align: left; font-weight: normal; padding-right: 2rem } td { text-align: right; font-weight: bold }
svg { max-width: 100%; height: auto }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run.

    Attributes:
        sent: source messages that the source sent, per source stream.
        content_wrong: delivered messages whose fields differ from the recording; None: not compared.
        hiccups: of the machine, during the run.
        faults: the faults injected, in order, in words.
    """

    title: str
    sent: dict[int, int]
    record: DeliveryRecord
    content_wrong: int | None
    rate: float
    hiccups: Hiccups
    faults: tuple[str, ...] = field(default=())

    def figures(self) -> dict[str, Any]:
        """The figures, by their names in the JSON report."""
        judged = self.record.figures(self.sent, window_ms=WINDOW_MS)
        latency = judged.latency_us
        return {
            "sent": sum(self.sent.values()),
            "delivered": judged.delivered,
            "lost": judged.missing,
            "duplicated": judged.duplicated,
            "out_of_order": judged.out_of_order,
            "content_wrong": self.content_wrong,
            "takeovers": [self._takeover(each) for each in judged.takeovers],
            "longest_stall_ms": round(judged.longest_stall_ms, 3),
            "source_stall_ms": round(self._source_stall_ms(*self._whole_ns()), 3),
            "hiccup_ms": round(self.hiccups.longest_ms(*self._whole_ns()), 3),
            "hiccups_ms": self.hiccups.figures(),
            "latency_us": {
                "p50": round(latency.p50, 1) if latency else None,
                "p99": round(latency.p99, 1) if latency else None,
                "max": round(latency.max, 1) if latency else None,
            },
            "rate": self.rate,
            "per_stream": {
                str(stream): {"sent": self.sent.get(stream, 0), "delivered": each.delivered, "lost": each.missing}
                for stream, each in sorted(judged.streams.items())
            },
            "faults": list(self.faults),
        }

    def _takeover(self, takeover: TakeoverFigures) -> dict[str, Any]:
        """A takeover's longest stall, beside the longest pauses of the source and of the machine in the same window."""
        window_ns = (takeover.at_ns - int(WINDOW_MS * MS), takeover.at_ns + int(WINDOW_MS * MS))
        return {
            "stall_ms": round(takeover.stall_ms, 3),
            "source_stall_ms": round(self._source_stall_ms(*window_ns), 3),
            "hiccup_ms": round(self.hiccups.longest_ms(*window_ns), 3),
            "epoch": takeover.epoch,
            "adapter_id": takeover.adapter_id,
        }

    def _source_stall_ms(self, from_ns: int, until_ns: int) -> float:
        return longest_source_pause_ms(self.record, from_ns, until_ns)

    def _whole_ns(self) -> tuple[int, int]:
        """From the first delivery to the last."""
        times = [channel.rows["received_monotonic_ns"] for channel in self.record.channels.values()]
        ends = [(int(each[0]), int(each[-1])) for each in times if len(each)]
        return min((first for first, _ in ends), default=0), max((last for _, last in ends), default=0)


def is_clean(figures: dict[str, Any]) -> bool:
    """True if nothing was lost, repeated, reordered or changed."""
    return not any(figures[name] for name in ("lost", "duplicated", "out_of_order", "content_wrong"))


def colored(count: int) -> str:
    """A count that should be 0: green if it is, red if not."""
    return f"[green]{count:,}[/]" if count == 0 else f"[bold red]{count:,}[/]"


def print_report(title: str, figures: dict[str, Any], console: Console | None = None) -> None:
    """Print the figures as a panel."""
    console = console or Console()
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for _ in PAUSES:
        table.add_column(justify="right")
    for name in ("sent", "delivered"):
        table.add_row(f"{figures[name]:,}", name)
    for name in ("lost", "duplicated", "out_of_order"):
        table.add_row(colored(figures[name]), name.replace("_", " "))
    if figures["content_wrong"] is not None:
        table.add_row(colored(figures["content_wrong"]), WRONG_TEXT)
    table.add_row("", "", *(f"[dim]{heading}[/]" for heading in PAUSES.values()))
    for stall_ms, what, pauses in _stalls(figures):
        table.add_row(f"{stall_ms:.1f} ms", what, *(f"{pause_ms:.1f} ms" for pause_ms in pauses))
    latency = figures["latency_us"]
    if latency["p50"] is not None:
        table.add_row(f"{latency['p50'] / 1000:.2f} ms", "end-to-end latency, median")
        table.add_row(f"{latency['p99'] / 1000:.2f} ms", "end-to-end latency, 99th percentile")
        table.add_row(f"{latency['max'] / 1000:.2f} ms", "end-to-end latency, maximum")
    verdict = CLEAN_TEXT if is_clean(figures) else FAILED_TEXT
    console.print(Panel(table, title=title, subtitle=verdict, border_style="green" if is_clean(figures) else "red"))


def _stalls(figures: dict[str, Any]) -> list[tuple[float, str, list[float]]]:
    """(longest stall, which, longest pauses of the source and the machine in the same time): a row each."""
    rows = [
        (each["stall_ms"], f"longest stall around takeover {number}", each)
        for number, each in enumerate(figures["takeovers"], 1)
    ]
    rows.append((figures["longest_stall_ms"], "longest stall in the whole run", figures))
    return [(stall_ms, what, [each[name] for name in PAUSES]) for stall_ms, what, each in rows]


def render_html(report: Report, figures: dict[str, Any]) -> str:
    """The report as a self-contained HTML page."""
    rows = [
        (name.replace("_", " "), figures[name]) for name in ("sent", "delivered", "lost", "duplicated", "out_of_order")
    ]
    if figures["content_wrong"] is not None:
        rows.append((WRONG_TEXT, figures["content_wrong"]))
    for stall_ms, what, pauses in _stalls(figures):
        beside = ", ".join(f"{name} {pause:.1f}" for name, pause in zip(PAUSES.values(), pauses, strict=True))
        rows.append((f"{what}, ms ({beside})", f"{stall_ms:.1f}"))
    rows += [(f"end-to-end latency {name}, µs", value) for name, value in figures["latency_us"].items()]
    cells = "".join(f"<tr><th>{html.escape(str(a))}</th><td>{html.escape(str(b))}</td></tr>" for a, b in rows)
    faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in report.faults)
    clean = is_clean(figures)
    verdict = CLEAN_TEXT if clean else FAILED_TEXT
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(report.title)}</title>
<style>
{STYLE}
.verdict {{ border-color: {"#2a8" if clean else "#c33"} }}
</style></head><body>
<h1>{html.escape(report.title)}</h1>
<p class="verdict">{verdict}</p>
<table>{cells}</table>
<h2>Faults injected</h2><ol>{faults}</ol>
<h2>Time between deliveries, around each takeover</h2>
{plot_svg(report)}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class GapPlot:
    """One plot of the time between deliveries around a moment.

    Attributes:
        at_ms, gap_ms: of each delivery: when it came, and the time since the one before.
        machine: (when, longest hiccup of the machine in ms) of short windows.
        limits_ms: the range to show.
    """

    title: str
    at_ms: NDArray[Any]
    gap_ms: NDArray[Any]
    machine: tuple[list[float], list[float]]
    limits_ms: tuple[float, float]


def plot_svg(report: Report) -> str:
    """The time between deliveries around each takeover, as inline SVG."""
    panels = [
        GapPlot(
            f"epoch {takeover.epoch}: first packet at 0 ms",
            *report.record.inter_arrival(takeover, WINDOW_MS),
            report.hiccups.around(takeover.at_ns, WINDOW_MS),
            (-WINDOW_MS, WINDOW_MS),
        )
        for takeover in report.record.takeovers[:SHOWN_MAX]
    ]
    return plot_panels(panels) if panels else "<p>No takeover happened.</p>"


def plot_panels(panels: Sequence[GapPlot]) -> str:
    """The plots, one below the other, as inline SVG; empty if there are none."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    if not panels:
        return ""
    figure, axes = plt.subplots(len(panels), 1, figsize=(10, 2.4 * len(panels)), squeeze=False, constrained_layout=True)
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        axis.vlines(panel.at_ms, 0, panel.gap_ms, linewidth=0.8, color="#357", label="ms since last delivery")
        axis.step(*panel.machine, where="mid", linewidth=0.8, color="#e80", label="machine's longest pause")
        axis.axvline(0, color="#c33", linewidth=1)
        axis.set_xlim(*panel.limits_ms)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("ms")
        axis.set_title(panel.title, loc="left", fontsize=10)
    axes[0, 0].legend(loc="upper right", fontsize=8)
    axes[-1, 0].set_xlabel("ms")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]
