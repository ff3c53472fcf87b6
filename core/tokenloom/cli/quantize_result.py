"""What `tokenloom quantize` says of a model beside rounding it: what was rounded before, and how good the result is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.compose import compose_config
from tokenloom.evaluation.evaluate import Evaluation, EvaluationPlan
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.texts import read_text
from tokenloom.evaluation.windows import WindowPlan
from tokenloom.quantization.model_card import evaluation_section
from tokenloom.quantization.plan import blocks_before

__all__ = ["judge", "told_before"]

_WINDOW = 2048
_BOOTSTRAP = Bootstrap(1000, 0)  # as `tokenloom eval` draws


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
    text, size = read_text(None), min(_WINDOW, longest - 1)
    plan = EvaluationPlan(
        text, WindowPlan(size, size, num_windows), None, delimiter=" ", retrieval=None, speed=None, bootstrap=_BOOTSTRAP
    )
    with Evaluation(plan, progress) as evaluation:
        reference = evaluation.run_reference(compose_config(original))
        made = evaluation.run(compose_config([f"model={folder}", "quant=auto"]), "quantized")
    section = evaluation_section({**made, "reference": reference}, text.name, text.digest)
    with (folder / "README.md").open("a", encoding="utf-8") as card:
        card.write(section)
