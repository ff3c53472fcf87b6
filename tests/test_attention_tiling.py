"""`benchmarks/attention_tiling.py`: a run at small sizes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tiling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("attention_tiling", None)
    import attention_tiling

    return attention_tiling


def test_a_run_finds_both_right_and_writes_its_figures(
    tiling: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    tiling.main(["--lengths", "17", "150", "--heads", "6", "2", "16", "--rounds", "1", "--output", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["provenance"]["packages"]["torch"]
    figures = found["figures"]
    assert [(f["length"], f["name"]) for f in figures] == [
        (17, "naive"),
        (17, "torch_sdpa"),
        (150, "naive"),
        (150, "torch_sdpa"),
    ]
    for figure in figures:
        assert 0 < figure["error"] < 1e-5
    assert [figure["difference"] for figure in figures[::2]] == [0.0, 0.0]
    assert 0 < figures[3]["difference"] < 1e-5
    assert figures[2]["moved_bytes"] > 4 * figures[3]["moved_bytes"]
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(figures)


def test_naive_is_not_compared_with_itself(tiling: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tiling.main(["--tiled", "naive"])
    assert "name another attention plugin" in capsys.readouterr().err
