"""Perplexity and distances from a reference: those that the formulas of Llama in fp64 give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.models.llama_formulas import reference_logits
from tests.tiny_model import write_tiny_llama
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, RequestError
from tokenloom.evaluation.evaluate import Evaluation, EvaluationPlan
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.texts import EvaluationText
from tokenloom.evaluation.windows import Window, WindowPlan, cut_windows

TEXT = "".join(chr(32 + (i * i * 7 + i // 3) % 90) for i in range(300))
SMALL = ("cache.num_blocks=40", "scheduler.max_num_batched_tokens=48", "engine.num_threads=1", "model.dtype=float32")
"""Prompts of a window are computed in chunks."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and one that answers otherwise at some positions: the same weights with noise."""
    folder = tmp_path_factory.mktemp("models")
    first = write_tiny_llama(folder / "a", with_tokenizer=True)
    second = write_tiny_llama(folder / "b", with_tokenizer=True)
    weights, generator = load_file(second / "model.safetensors"), torch.Generator().manual_seed(1)
    noisy = {name: w * (1 + 0.1 * torch.randn(w.shape, generator=generator)) for name, w in weights.items()}
    save_file(noisy, second / "model.safetensors")
    return first, second


def plan_of(plan: WindowPlan, text: str = TEXT) -> EvaluationPlan:
    return EvaluationPlan(EvaluationText("text", text), plan, None, " ", None, None, Bootstrap())


def evaluate(model: Path, cut: WindowPlan, reference: Path | None = None, *words: str) -> dict[str, Any]:
    """The figures of a model's perplexity."""
    with Evaluation(plan_of(cut), lambda *_: None) as evaluation:
        if reference is not None:
            evaluation.run_reference(compose_config([f"model={reference}", *SMALL]))
        result = evaluation.run(compose_config([f"model={model}", *SMALL, *words]))
    figures: dict[str, Any] = result["tasks"]["perplexity"]
    return figures


def positions(model: Path, windows: Sequence[Window]) -> Iterator[tuple[torch.Tensor, int]]:
    """(log-probabilities [V] in fp64, the token that follows) of every position that counts."""
    for window in windows:
        logprobs = reference_logits(model, window.token_ids).log_softmax(-1)
        for index in range(window.first_scored, len(window.token_ids)):
            yield logprobs[index - 1], window.token_ids[index]


@pytest.mark.parametrize("cut", [WindowPlan(70, 70, None), WindowPlan(64, 24, 5)], ids=["apart", "overlapping"])
def test_perplexity_is_that_of_the_formulas(models: tuple[Path, Path], cut: WindowPlan) -> None:
    figures = evaluate(models[0], cut)
    windows = cut_windows(list(TEXT.encode()), cut)
    losses = [-float(logprobs[token]) for logprobs, token in positions(models[0], windows)]
    assert figures["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert (figures["num_tokens"], figures["num_windows"]) == (len(losses), len(windows))
    assert math.fsum(figures["window_losses"]) == pytest.approx(sum(losses), rel=1e-4)
    low, high = figures["perplexity_interval"]
    assert low < figures["perplexity"] < high
    assert "kl_mean" not in figures


@pytest.mark.parametrize("cut", [WindowPlan(70, 70, None), WindowPlan(64, 24, 5)], ids=["apart", "overlapping"])
def test_distances_from_a_reference_are_those_of_the_formulas(
    models: tuple[Path, Path], cut: WindowPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.evaluation.divergence._MAX_LOGITS", 256 * 13)  # blocks that divide no window
    figures = evaluate(models[0], cut, models[1])
    windows = cut_windows(list(TEXT.encode()), cut)
    pairs = list(zip(positions(models[0], windows), positions(models[1], windows), strict=True))
    kl = [float((wanted.exp() * (wanted - found)).sum()) for (found, _), (wanted, _) in pairs]
    excess = [float(wanted[token] - found[token]) for (found, token), (wanted, _) in pairs]
    agreeing = sum(int(found.argmax()) == int(wanted.argmax()) for (found, _), (wanted, _) in pairs)
    assert 0 < agreeing < len(pairs)
    assert figures["top1_agreement"] == pytest.approx(agreeing / len(pairs))
    assert figures["kl_mean"] == pytest.approx(sum(kl) / len(kl), rel=1e-4)
    assert figures["kl_max"] == pytest.approx(max(kl), rel=1e-4)
    assert figures["kl_p50"] == pytest.approx(float(torch.tensor(kl).quantile(0.5)), rel=1e-3)
    assert figures["perplexity_ratio"] == pytest.approx(math.exp(sum(excess) / len(excess)), rel=1e-4)
    for name in ("kl_mean", "top1_agreement", "perplexity_ratio"):
        low, high = figures[f"{name}_interval"]
        assert low <= figures[name] <= high


def test_a_model_is_no_distance_from_itself(models: tuple[Path, Path]) -> None:
    figures = evaluate(models[0], WindowPlan(70, 70, 2), models[0])
    assert (figures["top1_agreement"], figures["perplexity_ratio"]) == (1.0, 1.0)
    assert figures["kl_max"] == 0.0


def test_rounded_weights_are_a_small_distance_from_the_original(models: tuple[Path, Path]) -> None:
    figures = evaluate(models[0], WindowPlan(70, 70, None), models[0], "quant=int8")
    assert 0.0 < figures["kl_mean"] < 0.1
    assert figures["top1_agreement"] > 0.8


def test_other_plugins_around_the_model_change_nothing(models: tuple[Path, Path]) -> None:
    words = ("attention=torch_sdpa", "cache=contiguous", "spec_decode=ngram", "scheduler.max_num_batched_tokens=33")
    cut = WindowPlan(70, 70, 2)
    assert evaluate(models[0], cut, None, *words)["perplexity"] == pytest.approx(
        evaluate(models[0], cut)["perplexity"], rel=1e-5
    )


def test_what_a_reference_kept_is_removed(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Evaluation(plan_of(WindowPlan(70, 70, 2)), lambda *_: None) as evaluation:
        evaluation.run_reference(compose_config([f"model={models[0]}", *SMALL]))
        assert len(list(tmp_path.rglob("*.pt"))) == 2
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told(models: tuple[Path, Path]) -> None:
    told: list[tuple[str, int, int]] = []
    with Evaluation(plan_of(WindowPlan(100, 100, 2)), lambda *news: told.append(news)) as evaluation:
        config = compose_config([f"model={models[0]}", *SMALL])
        evaluation.run_reference(config)
        evaluation.run(config, "mine")
    assert told == [(name, i, 2) for name in ("reference", "mine perplexity") for i in (1, 2)]


def test_models_of_other_tokens_are_not_compared(models: tuple[Path, Path], tmp_path: Path) -> None:
    wider = write_tiny_llama(tmp_path / "wider", vocab_size=320, with_tokenizer=True)
    with pytest.raises(ConfigError, match="the model has 256 tokens, the reference 320"):
        evaluate(models[0], WindowPlan(70, 70, 1), wider)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (WindowPlan(512, 512, 1), "window=512 needs prompts of 512 tokens, but the context holds 511"),
        (WindowPlan(301, 301, 1), "window=301: the text has only 300 tokens"),
    ],
)
def test_windows_that_do_not_fit_are_refused(models: tuple[Path, Path], cut: WindowPlan, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(models[0], cut)


def test_logits_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    broken = write_tiny_llama(tmp_path, with_tokenizer=True)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = math.nan
    save_file(weights, broken / "model.safetensors")
    with pytest.raises(RequestError, match="logits are not finite"):
        evaluate(broken, WindowPlan(70, 70, 1))
