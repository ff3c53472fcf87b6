"""The plot of variants: panels for what all of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenloom.evaluation.comparison_plot import draw_variants


def result(perplexity: float, interval: list[float] | None, **speed: float) -> dict[str, Any]:
    tasks = {"perplexity": {"perplexity": perplexity, "perplexity_interval": interval}}
    found: dict[str, Any] = {"memory": {"weight_bytes": 1_000_000}, "tasks": tasks}
    return {**found, "speed": speed} if speed else found


def test_a_panel_is_drawn_for_what_all_variants_have(tmp_path: Path) -> None:
    fast = result(8.0, [7.0, 9.0], prefill_tok_s=100.0, decode_tok_s=10.0)
    draw_variants({"quant=none": fast, "quant=int8" * 9: result(8.1, None)}, tmp_path / "two.svg")
    drawn = (tmp_path / "two.svg").read_text()
    assert "perplexity" in drawn
    assert "decode" not in drawn
    draw_variants({"quant=none": fast}, tmp_path / "one.svg")
    assert "decode" in (tmp_path / "one.svg").read_text()
