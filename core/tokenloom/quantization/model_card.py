"""The README.md of a quantized checkpoint: how it was made, from what, and what it did to each layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.quantization.layer_rounding import LayerReport
from tokenloom.quantization.plan import QuantizePlan, blocks_before, described

__all__ = ["evaluation_section", "model_card"]


def model_card(
    checkpoint: Checkpoint, plan: QuantizePlan, settings: Mapping[str, Any], reports: Sequence[LayerReport]
) -> str:
    """Markdown.

    Args:
        checkpoint: what was quantized.
        plan: how.
        settings: everything that decided the result, as plain data.
        reports: what became of each layer.
    """
    name = checkpoint.path.name
    parts = [
        f"# {name}, quantized\n",
        f"{plan.method.title}: {_grid(plan)}, in the format {plan.writer.name}.\n",
        *_before(blocks_before(checkpoint)),
        "## Method\n",
        _table(("setting", "value"), ((key, str(value)) for key, value in described(plan).items())),
        "Embeddings, norms and the output head are not quantized.\n",
        "## Data\n",
        _data(plan, settings),
        "## Results\n",
        _results(reports),
        "To judge it beside the model that it was made from:\n",
        f"    tokenloom eval model=FOLDER quant=auto reference.model={name} reference.quant=none\n",
        "## Use\n",
        '    tokenloom generate "The capital of France is" model=FOLDER quant=auto\n',
    ]
    return "\n".join(parts)


def evaluation_section(result: Mapping[str, Any], text: str, text_sha256: str) -> str:
    """What is put behind a card once the model was judged, in Markdown.

    Args:
        result: of `tokenloom.evaluation.Evaluation.run`, compared with the model that it was made from.
        text, text_sha256: name and digest of the text.
    """
    found, before = result["tasks"]["perplexity"], result["reference"]["tasks"]["perplexity"]
    rows = [
        _figure("perplexity of the original", before, "perplexity", "{:.3f}"),
        _figure("perplexity", found, "perplexity", "{:.3f}"),
        _figure("perplexity / that of the original", found, "perplexity_ratio", "{:.4f}"),
        _figure("same likeliest token", found, "top1_agreement", "{:.1%}"),
        _figure("KL divergence, nats", found, "kl_mean", "{:.4f}"),
    ]
    table = _table(("figure", "value", f"{result['confidence']:.0%} interval"), rows)
    windows = f"{found['num_windows']} windows, {found['num_tokens']} tokens"
    return f"\n## Evaluation\n\nOn {windows} of: {text} (SHA-256 {text_sha256}).\n\n{table}"


def _figure(label: str, figures: Mapping[str, Any], key: str, form: str) -> tuple[str, str, str]:
    interval = figures[f"{key}_interval"]
    ends = "" if interval is None else " to ".join(form.format(end) for end in interval)
    return label, form.format(figures[key]), ends


def _before(blocks: Sequence[str]) -> list[str]:
    if not blocks:
        return []
    return [
        f"The weights that it was made from were rounded before, to blocks of {', '.join(blocks)}. They were "
        "dequantized and rounded again; what the first rounding took from the model is in no figure below.\n"
    ]


def _grid(plan: QuantizePlan) -> str:
    scheme = plan.scheme
    shared = "for each output feature" if scheme.group_size == -1 else f"for {scheme.group_size} input features"
    zero = "symmetric" if scheme.is_symmetric else "with zero points"
    activations = ", activations of 8 bits by token" if plan.method.rounds_activations else ""
    return f"weights of {scheme.bits} bits, {zero}, a scale {shared}{activations}"


def _data(plan: QuantizePlan, settings: Mapping[str, Any]) -> str:
    if not plan.method.needs_inputs:
        return "None: weights are rounded by themselves.\n"
    return (
        f"{plan.num_samples} sequences of {plan.sample_tokens} tokens of: {settings['calibration']} "
        f"(SHA-256 {settings['calibration_sha256']}), chosen by seed {plan.seed}.\n"
    )


def _results(reports: Sequence[LayerReport]) -> str:
    known = [report for report in reports if report.error is not None]
    if not known:
        return f"{len(reports)} layers were rounded; without a text their outputs were not compared.\n"
    rows = ((report.name, f"{report.error:.3g}", report.note) for report in known)
    return (
        "Change of each layer's output, as a share of its mean square, on rows of the calibration text:\n\n"
        + _table(("layer", "change", "remark"), rows)
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
