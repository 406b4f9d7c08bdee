"""Plots as PNG files. Matplotlib is imported for the first plot.

Not here: the source of the numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamsx.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES: Final = (10.0, 5.0)
DOTS_PER_INCH: Final = 120
BINS: Final = 40
LEAST_MS: Final = 1.0
"""Shortest gap that is drawn: shorter ones are drawn with this length, since a logarithmic axis has
no 0."""


def require_plots() -> None:
    """Check for matplotlib, before any numbers are computed.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"no plots: {error}: pip install -e '.[plots]'") from error


@contextmanager
def drawing(file: Path, title: str) -> Iterator["Axes"]:
    """Give axes to draw on; write the file at the end of the `with` block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left")
    axes.grid(visible=True, alpha=0.3)
    yield axes
    figure.savefig(file)


def settle_times(
    file: Path, generations: Sequence[int], ms: Sequence[float | None], moved: Sequence[int]
) -> None:
    """Plot rebalances in their order: the duration of each as a bar, the tasks moved as a dot.

    Generations are labels and not positions on the axis, because a recreated group counts its
    generations from the start again.
    """
    from matplotlib.ticker import MaxNLocator

    with drawing(file, "Rebalances: time to settle, and tasks that moved") as axes:
        places = range(len(generations))
        axes.bar(places, [each or 0.0 for each in ms], color="tab:blue", label="time to settle")
        axes.set(xlabel="generation", ylabel="ms")
        axes.xaxis.set_major_formatter(
            lambda at, _: str(generations[round(at)]) if 0 <= round(at) < len(places) else ""
        )
        counts = axes.twinx()
        counts.plot(places, moved, "o", color="tab:orange", label="tasks moved")
        counts.set(ylabel="tasks moved", ylim=(0, max(moved, default=0) + 1))
        counts.yaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [*axes.get_legend_handles_labels()[0], *counts.get_legend_handles_labels()[0]]
        axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)


def gap_lengths(
    file: Path, told: Sequence[float], silent: Sequence[float], nobody: Sequence[float]
) -> None:
    """Plot a histogram of the pauses of tasks.

    The three series are handed over, owner fell silent, and no worker ran. Without any gaps the
    plot is empty; this is no error.
    """
    from matplotlib.ticker import MaxNLocator

    series = (
        ("handed over", "tab:blue", told), ("owner fell silent", "tab:red", silent),
        ("no worker ran", "tab:gray", nobody),
    )  # fmt: skip
    there = [
        (name, color, [max(ms, LEAST_MS) for ms in each]) for name, color, each in series if each
    ]
    with drawing(file, "Gaps: how long a task that moved, or paused, stood still") as axes:
        axes.set(xlabel="ms", ylabel="gaps", xscale="log")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if there:
            names, colors, shown = zip(*there, strict=True)
            least = min(map(min, shown))
            ratio = max(max(map(max, shown)) / least, 10)
            bins = [least * ratio ** (n / BINS) for n in range(BINS + 1)]
            axes.hist(shown, bins=bins, stacked=True, label=names, color=colors)
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
