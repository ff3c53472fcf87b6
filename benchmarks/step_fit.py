"""How close step times are to linear in the bytes that steps read: a fit, and a plot of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.bench.plot_file import blank_figure

__all__ = ["StepFit", "draw", "fit_steps"]


@dataclass(frozen=True, slots=True)
class StepFit:
    """step = fixed_s + bytes / bytes_per_s + rows * row_s, by least squares of relative errors.

    Attributes:
        fixed_s: seconds of a step that reads nothing.
        bytes_per_s: what reading goes at.
        row_s: seconds that a row adds beside its bytes: its share of products, and its Python.
        r_squared: the share of the variance of log step times that the fit explains.
        worst: the largest relative error.
    """

    fixed_s: float
    bytes_per_s: float
    row_s: float
    r_squared: float
    worst: float

    def step_s(self, num_bytes: float, rows: int) -> float:
        """The time that the fit gives."""
        return self.fixed_s + num_bytes / self.bytes_per_s + rows * self.row_s

    def __str__(self) -> str:
        return (
            f"step = {1e3 * self.fixed_s:.2f} ms + bytes / {self.bytes_per_s / 1e9:.1f} GB/s + rows * "
            f"{1e6 * self.row_s:.0f} us; R2 {self.r_squared:.4f}, off by {self.worst:.0%} at most"
        )


def num_read_bytes(entry: dict[str, Any]) -> int:
    """What the operations of a measured step read."""
    return sum(operation["num_bytes"] for operation in entry["operations"])


def fit_steps(found: Sequence[dict[str, Any]]) -> StepFit:
    """Fits measured steps, as `step_floor.py` has them; needs more than three."""
    measured = np.array([entry["step_s"] for entry in found])
    columns = [(1.0, float(num_read_bytes(entry)), float(entry["rows"])) for entry in found]
    # Divided by the measured time, so that a short step counts as much as a long one.
    scaled = np.array(columns) / measured[:, None]
    # Columns of like size, or the smallest would be taken for rounding.
    sizes = scaled.max(axis=0)
    factors = np.linalg.lstsq(scaled / sizes, np.ones(len(measured)), rcond=None)[0] / sizes
    fitted = np.array(columns) @ factors
    residual = np.log(np.maximum(fitted, 1e-12)) - np.log(measured)
    spread = np.log(measured) - np.log(measured).mean()
    return StepFit(
        fixed_s=float(factors[0]),
        bytes_per_s=float(1 / factors[1]),
        row_s=float(factors[2]),
        r_squared=float(1 - (residual**2).sum() / (spread**2).sum()),
        worst=float(np.abs(fitted / measured - 1).max()),
    )


def draw(found: Sequence[dict[str, Any]], fit: StepFit | None, path: Path) -> None:
    """Step times over the bytes that must be read, a line for each number of rows; the fit is dashed."""
    page = blank_figure(6.4, 4.8)
    panel = page.subplots()
    for number, rows in enumerate(dict.fromkeys(entry["rows"] for entry in found)):
        own = [entry for entry in found if entry["rows"] == rows]
        sizes = [num_read_bytes(entry) for entry in own]
        megabytes, color = [size / 1e6 for size in sizes], f"C{number}"
        times = [1e3 * entry["step_s"] for entry in own]
        panel.plot(megabytes, times, marker="o", color=color, label=f"{rows} row{'s' if rows > 1 else ''}")
        if fit is not None:
            panel.plot(megabytes, [1e3 * fit.step_s(size, rows) for size in sizes], linestyle="--", color=color)
    panel.set(xlabel="MB read by a step", ylabel="ms of a step (dashed: fit)", xscale="log", yscale="log")
    if fit is not None:
        panel.set_title(str(fit), fontsize="x-small")
    panel.legend(fontsize="x-small")
    page.savefig(path)
