"""Pictures for people, as PNG. Matplotlib is imported when the first one is drawn.

Not here: where the numbers come from.
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
"""A shorter gap is drawn as one of this length: there is no 0 on a logarithmic axis."""


def require_plots() -> None:
    """Before anything is computed for them. Raises UsageError."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"no plots: {error}: pip install -e '.[plots]'") from error


@contextmanager
def drawing(file: Path, title: str) -> Iterator["Axes"]:
    """Axes to draw on; the file is written at the end of this."""
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
    """How long each rebalance took, as bars in their order; tasks that moved by it, as dots.

    Generations are not the axis: who makes a group anew counts anew.
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
    """How often tasks stood still for how long: handed over, after an owner that fell silent, and
    while no worker ran.

    Raises nothing where there are none: an empty picture says so too.
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
