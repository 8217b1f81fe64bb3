"""Plots of a run: rates and CPU per message relative to the reference; cost of growth."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Final

from benchmarks.report import REFERENCES
from benchmarks.results import Results, figures, paired_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS: Final = (
    ("rate", "messages a second, times {reference} (more is better)"),
    ("client_cpu_us", "CPU per message, times {reference} (less is better)"),
)
GROWTH: Final = (
    ("client_cores", "idle: % of a core", 100.0),
    ("rss_now_mib", "memory (RSS), MiB", 1.0),
    ("start_cpu_seconds", "start: CPU seconds", 1.0),
)
BAR: Final = 0.8


def draw(results: Results, path: Path) -> None:
    """Draw the paired ratios of *results*, medians with their ranges, to a PNG or SVG at *path*."""
    pyplot = _pyplot(path)
    workloads = [
        name
        for name in dict.fromkeys(sample.workload for sample in results.samples)
        if any("rate" in sample.figures for sample in results.samples if sample.workload == name)
    ]
    figure, axes = pyplot.subplots(
        1, len(PANELS), figsize=(12, 1.5 + 0.7 * max(1, len(workloads))), sharey=True
    )
    for panel, (figure_name, title) in zip(axes, PANELS, strict=True):
        _draw_panel(panel, results, workloads, figure_name)
        panel.set_xlabel(title.format(reference=REFERENCES[results.kind]))
    axes[0].set_yticks(range(len(workloads)), workloads)
    axes[0].invert_yaxis()
    axes[0].legend(loc="best")
    _save(figure, path)


def _pyplot(path: Path) -> ModuleType:
    """Return matplotlib's pyplot, set up for a file at *path*."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    from matplotlib import pyplot

    return pyplot


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    figure.clear()


def draw_growth(results: Results, path: Path, titles: dict[str, str]) -> None:
    """Draw idle CPU, memory and CPU of the start over sizes to a PNG or SVG at *path*."""
    pyplot = _pyplot(path)
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(1, len(GROWTH), figsize=(15, 5))
    for panel, (figure_name, title, factor) in zip(axes, GROWTH, strict=True):
        for name in dict.fromkeys(sample.workload for sample in results.samples):
            sizes = dict.fromkeys(s.subject for s in results.samples if s.workload == name)
            values = [
                median(figures(results.samples, name, size, figure_name).values()) for size in sizes
            ]
            shown = [value * factor for value in values]
            panel.plot([int(size) for size in sizes], shown, marker="o", label=titles[name])
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.set_xlabel("number")
        panel.set_title(title)
    axes[1].legend(fontsize="small")
    _save(figure, path)


def _draw_panel(panel: Axes, results: Results, workloads: list[str], figure_name: str) -> None:
    reference = REFERENCES[results.kind]
    names = sorted({sample.subject for sample in results.samples} - {reference})
    height = BAR / max(1, len(names))
    for place, subject in enumerate(names):
        panel.plot([], [], color=f"C{place}", label=subject, linewidth=6)  # for the legend
        for row, workload in enumerate(workloads):
            ratio = paired_ratio(results.samples, workload, subject, reference, figure_name)
            if ratio is None:
                continue
            panel.barh(
                row + place * height - (BAR - height) / 2,
                ratio.median,
                height,
                xerr=[[ratio.median - ratio.low], [ratio.high - ratio.median]],
                color=f"C{place}",
            )
    panel.axvline(1.0, color="black", linewidth=0.8)
