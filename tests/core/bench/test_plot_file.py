"""Files for plots: what could not be drawn is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.bench import plot_file
from tokenloom.bench.plot_file import blank_figure, check_matplotlib, check_plotting
from tokenloom.errors import ConfigError


def test_other_files_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        check_plotting(Path("plot.txt"))
    for name in ("plot.png", "plot.svg", "plot.pdf"):
        check_plotting(Path(name))


def test_a_missing_library_is_refused_with_what_else_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_file, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"plot=plot.png needs matplotlib.*tokenloom\[plot\]'$"):
        check_plotting(Path("plot.png"))
    with pytest.raises(ConfigError, match=r"tokenloom\[plot\]', or say plot=false$"):
        check_matplotlib("plot=true", ", or say plot=false")


def test_a_blank_figure_is_drawn(tmp_path: Path) -> None:
    blank_figure(2, 1).savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 100
