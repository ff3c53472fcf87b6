"""Files for plots: what must be there before anything runs, and an empty figure to draw on."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["blank_figure", "check_matplotlib", "check_plotting"]

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plotting(path: Path) -> None:
    """Raises ConfigError if no plot could be drawn to this file, given as plot=."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"plot={path}: its name must end in {' or '.join(_SUFFIXES)}")
    check_matplotlib(f"plot={path}")


def check_matplotlib(setting: str, otherwise: str = "") -> None:
    """Raises ConfigError if matplotlib is missing; `setting` asks for it, `otherwise` is what else can be done."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"{setting} needs matplotlib, which is not installed: pip install 'tokenloom[plot]'{otherwise}"
        )


def blank_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    # Imported here: matplotlib is optional, and slow to load.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
