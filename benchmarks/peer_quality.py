"""What engines' precision takes from the model: the same text read by all (teacher forcing), beside ours in fp32."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_process import PeerProcess, PeerSpec, Place

from tokenloom.evaluation.texts import read_text
from tokenloom.evaluation.windows import WindowPlan, cut_windows
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.text.tokenizer import build_tokenizer

__all__ = ["compare_with_reference", "judge", "text_windows"]

Windows = list[list[int]]


def text_windows(model: Path, num_tokens: int, size: int) -> Windows:
    """The built-in text of `tokenloom eval` as token ids, in windows side by side.

    Args:
        model: whose tokenizer makes the ids.
        num_tokens: how much of it, rounded up to whole windows.
        size: tokens of a window.
    """
    checkpoint = open_checkpoint(model)
    try:
        tokenizer = build_tokenizer(checkpoint.tokenizer_source(), checkpoint.config.vocab_size)
    finally:
        checkpoint.close()
    ids = tokenizer.encode(read_text(None).text)
    plan = WindowPlan(size, size, math.ceil(num_tokens / size))
    return [list(window.token_ids) for window in cut_windows(ids, plan)]


def judge(
    reference: PeerSpec,
    specs: Sequence[PeerSpec],
    settings: dict[str, Any],
    windows: Windows,
    say: Callable[[str], None],
    kept: Path | None = None,
) -> dict[str, Any]:
    """Scores the text with every engine, one after the other.

    Args:
        reference: what the others are compared with.
        specs: the engines.
        settings: what workers are told, see `peers/peer_worker.py`.
        windows: token ids.
        say: told about each engine.
        kept: a folder for what engines answered, which is read instead of asking the same again; None keeps nothing.
    """
    say(f"quality: {reference.label} reads {sum(map(len, windows))} tokens")
    expected = _scores(reference, settings, windows, kept)
    rows = []
    for spec in specs:
        say(f"quality: {spec.label}")
        found = compare_with_reference(expected, _scores(spec, settings, windows, kept))
        rows.append({"label": spec.label, **found})
    return {
        "reference": reference.label,
        "num_windows": len(windows),
        "window_tokens": len(windows[0]),
        "rows": rows,
    }


def _scores(spec: PeerSpec, settings: dict[str, Any], windows: Windows, kept: Path | None = None) -> list[list[Place]]:
    path = None if kept is None else kept / f"{_digest(spec, settings, windows)}.json"
    if path is not None and path.exists():
        told = json.loads(path.read_text(encoding="utf-8"))["scores"]
        return [[Place(*place) for place in places] for places in told]
    peer = PeerProcess(spec, settings)
    try:
        scores = peer.score(windows)
    finally:
        peer.close()
    if path is not None:
        rows = [[(place.position, place.likeliest, place.logprob) for place in places] for places in scores]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"label": spec.label, "scores": rows}) + "\n", encoding="utf-8")
    return scores


def _digest(spec: PeerSpec, settings: dict[str, Any], windows: Windows) -> str:
    """Of all that an answer depends on but the engine's version."""
    question = {"spec": asdict(spec), "settings": settings, "windows": windows}
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def compare_with_reference(expected: list[list[Place]], found: list[list[Place]]) -> dict[str, Any]:
    """Agreement over positions whose likeliest token is known, perplexities over those with a log-probability.

    Returns:
        num_positions, top1_agreement; num_scored, perplexity and perplexity_ratio; None where there is nothing to say.
    """
    equal = num_positions = 0
    ours: list[float] = []
    theirs: list[float] = []
    for known, places in zip(expected, found, strict=True):
        by_position = {place.position: place for place in known}
        for place in places:
            same = by_position[place.position]
            if place.likeliest is not None:
                num_positions += 1
                equal += place.likeliest == same.likeliest
            if place.logprob is not None:
                assert same.logprob is not None, "the reference tells of every position"
                ours.append(same.logprob)
                theirs.append(place.logprob)
    result: dict[str, Any] = {"num_positions": num_positions, "num_scored": len(theirs)}
    result["top1_agreement"] = equal / num_positions if num_positions else None
    result["perplexity"] = math.exp(-sum(theirs) / len(theirs)) if theirs else None
    result["perplexity_ratio"] = math.exp((sum(ours) - sum(theirs)) / len(theirs)) if theirs else None
    return result
