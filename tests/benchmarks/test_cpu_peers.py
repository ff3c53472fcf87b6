"""`cpu_peers.py` with engines that are scripts: starts are timed and compared, text is judged, tables hold both."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

WORKERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"

# Its next token is the last one plus one; it says that text goes on like that with a probability of its own.
FAKE = f"""
import math, sys
sys.path.insert(0, {str(WORKERS)!r})
from peer_worker import Peer, Score, serve

class Fake(Peer):
    name = "fake"
    version = "1.0"
    def __init__(self, settings):
        words = dict(word.split("=") for word in settings.extra)
        self.off, self.probability, self.every = int(words["off"]), float(words["p"]), settings.score_every
    def run(self, items):
        return [[item["prompt"][-1] + self.off + n for n in range(item["max_tokens"])] for item in items]
    def score(self, windows):
        if self.probability == 0:
            return super().score(windows)
        return [[self.place(ids, at) for at in range(1, len(ids))] for ids in windows]
    def place(self, ids, at):
        likeliest = None if self.off and at % self.every else ids[at] + (at <= self.off)
        return Score(at, likeliest, math.log(self.probability))
    def reset(self):
        return True

serve(Fake)
"""

SETTINGS = {
    "gguf": "",
    "folder": "",
    "max_model_len": 32,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "prefix_caching": True,
    "score_every": 2,
}
WINDOWS = [[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import peer_process

    monkeypatch.setattr(peer_process, "_WORKERS", tmp_path)
    (tmp_path / "fake_peer.py").write_text(FAKE)
    return lambda label, *extra: peer_process.PeerSpec(label, "fake", sys.executable, extra)


def test_starts_are_repeated_in_turn_and_compared_with_the_first(spec: Any) -> None:
    from peer_start import measure_starts
    from peer_tables import start_table

    said: list[str] = []
    specs = [spec("ours", "off=0", "p=1"), spec("theirs", "off=1", "p=1")]
    found = measure_starts(specs, SETTINGS, {"prompt": [3, 4], "max_tokens": 9}, 2, said.append)
    assert [line.split()[2] for line in said] == ["ours:", "theirs:"] * 3
    ours, theirs = found["rows"]
    assert (ours["is_first_token_equal"], theirs["is_first_token_equal"]) == (True, False)
    for row in (ours, theirs):
        assert len(row["first_token_s"]) == len(row["load_s"]) == 2
        assert all(first > load > 0 for first, load in zip(row["first_token_s"], row["load_s"]))
    assert ours["time_ratio"] == {"min": 1.0, "median": 1.0, "max": 1.0}
    assert "| theirs | fake 1.0 |" in start_table(json.loads(json.dumps(found)))


def test_text_is_judged_beside_the_reference_at_the_places_that_an_engine_tells_of(spec: Any) -> None:
    from peer_quality import judge

    specs = [spec("same", "off=0", "p=0.5"), spec("worse", "off=2", "p=0.25"), spec("mute", "off=0", "p=0")]
    found = judge(spec("fp32", "off=0", "p=0.5"), specs, SETTINGS, WINDOWS, lambda _: None)
    same, worse, mute = found["rows"]
    assert (same["num_positions"], same["top1_agreement"]) == (8, 1.0)
    assert math.isclose(same["perplexity_ratio"], 1.0)
    # Asked at positions 2 and 4 of each window, wrong at the first of them, half as probable everywhere.
    assert (worse["num_positions"], worse["num_scored"], worse["top1_agreement"]) == (4, 8, 0.5)
    assert math.isclose(worse["perplexity_ratio"], 2.0)
    assert (mute["num_positions"], mute["top1_agreement"], mute["perplexity_ratio"]) == (0, None, None)


def test_what_an_engine_said_is_kept_and_not_asked_again(
    spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peer_quality

    def judged(*specs: Any, windows: list[list[int]] = WINDOWS) -> Any:
        reference = spec("fp32", "off=0", "p=0.5")
        return peer_quality.judge(reference, specs, SETTINGS, windows, lambda _: None, tmp_path / "kept")

    worse = spec("worse", "off=2", "p=0.25")
    first = judged(worse)
    assert len(list((tmp_path / "kept").iterdir())) == 2

    class AskedError(Exception):
        """An engine was started."""

    def start(*_: object) -> None:
        raise AskedError

    monkeypatch.setattr(peer_quality, "PeerProcess", start)
    assert judged(worse) == first
    with pytest.raises(AskedError):
        judged(worse, windows=WINDOWS[:1])
    with pytest.raises(AskedError):
        judged(spec("worse", "off=2", "p=0.125"))


def test_quality_stands_beside_speed() -> None:
    from peer_tables import quality_table, workload_table

    ratio = {"min": 1.0, "median": 2.0, "max": 3.0}
    row = {"label": "a", "engine": "a 1", "load_s": 1.0, "wall_s": [2.0], "output_tok_s": 3.0}
    run = {"workload": "w", "num_requests": 1, "num_output_tokens": 6}
    run["rows"] = [{**row, "equal_leading_tokens": 0.5, "speed_ratio": ratio}]
    judged = {"label": "a", "top1_agreement": 0.987, "perplexity_ratio": 1.01, "num_positions": 7, "num_scored": 5}
    quality = {"reference": "fp32", "num_windows": 1, "window_tokens": 8, "rows": [judged]}
    assert workload_table(run, quality).endswith("| 50.0% | 2.00 (1.00 .. 3.00) | 98.70% | 1.0100 |")
    assert workload_table(run, None).endswith("| 50.0% | 2.00 (1.00 .. 3.00) | - | - |")
    assert quality_table(quality).endswith("| a | 98.70% | 7 | 1.0100 | 5 |")
