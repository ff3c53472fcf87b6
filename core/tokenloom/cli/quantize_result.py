"""What `tokenloom quantize` says of a model beside rounding it: what was rounded before, and how good the result is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.cli.eval_settings import EvalSettings, evaluation_plan
from tokenloom.compose import compose_config
from tokenloom.evaluation.evaluate import Evaluation
from tokenloom.quantization.model_card import evaluation_section
from tokenloom.quantization.plan import blocks_before

__all__ = ["judge", "told_before"]


def told_before(checkpoint: Checkpoint) -> None:
    """Says it on stderr if weights were rounded before: rounding twice loses more than rounding once."""
    blocks = blocks_before(checkpoint)
    if blocks:
        click.echo(
            f"tokenloom: the weights of {checkpoint.path.name} are rounded already, to blocks of {', '.join(blocks)}; "
            "they are dequantized and rounded again. Better take the model from before, if there is one",
            err=True,
        )


def judge(
    original: Sequence[str], folder: Path, num_windows: int, longest: int, progress: Callable[[str, int, int], None]
) -> None:
    """Compares a quantized folder with what it was made from, as `tokenloom eval` does, and puts that into its card.

    Args:
        original: overrides that name the original.
        folder: with its model card.
        num_windows: of the built-in text.
        longest: most tokens that the model takes.
        progress: told (what runs, done, in all).

    Raises:
        ConfigError: the text has fewer tokens than a window.
    """
    settings = EvalSettings(num_windows=num_windows)
    settings = settings.model_copy(update={"window": min(settings.window, longest - 1)})
    plan = evaluation_plan(settings, ("perplexity",))
    assert plan.text is not None, "perplexity is of a text"
    with Evaluation(plan, progress) as evaluation:
        reference = evaluation.run_reference(compose_config(original))
        made = evaluation.run(compose_config([f"model={folder}", "quant=auto"]), "quantized")
    section = evaluation_section({**made, "reference": reference}, plan.text.name, plan.text.digest)
    with (folder / "README.md").open("a", encoding="utf-8") as card:
        card.write(section)
