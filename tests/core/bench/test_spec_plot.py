"""The plot of drafters: drawn also where a drafter proposed nothing."""

from __future__ import annotations

from pathlib import Path

from tests.core.bench.test_spec_figures import DRAFTING, PLAIN
from tokenloom.bench.spec_figures import category_figures
from tokenloom.bench.spec_plot import draw_speculation


def test_a_file_is_drawn(tmp_path: Path) -> None:
    drafting, silent = category_figures([DRAFTING], [PLAIN]), category_figures([PLAIN], [PLAIN])
    drafters = {
        "spec_decode=one": {"qa": drafting, "all": drafting},
        "spec_decode=silent": {"qa": silent, "all": silent},
    }
    draw_speculation(drafters, "all", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000
