"""Plot of a run: rates and CPU per message relative to the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import REFERENCES
from benchmarks.results import Results, paired_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: Final = (
    ("rate", "messages a second, times {reference} (more is better)"),
    ("client_cpu_us", "CPU per message, times {reference} (less is better)"),
)
BAR: Final = 0.8


def draw(results: Results, path: Path) -> None:
    """Draw the paired ratios of *results*, medians with their ranges, to a PNG or SVG at *path*."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.name})
    from matplotlib import pyplot

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
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


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
