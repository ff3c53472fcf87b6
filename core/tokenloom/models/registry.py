"""From an opened checkpoint to a loaded model: which class runs which architecture, and how it is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from tokenloom.errors import ModelError, did_you_mean
from tokenloom.interfaces.quant import Quantizer
from tokenloom.loader.checkpoint_base import Checkpoint
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.layers import LayerFactory
from tokenloom.models.llama import LlamaForCausalLM
from tokenloom.models.skip_list import SkipList, checkpoint_skip_entries
from tokenloom.models.weight_loading import LoadProgress, ignore_progress
from tokenloom.ops.table import build_op_table
from tokenloom.parallel import ParallelContext

__all__ = ["ARCHITECTURES", "ModelFactory", "build_model"]


class ModelFactory(Protocol):
    """A model class: makes an empty model, or one with only the decoder layers `layers`."""

    def __call__(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM: ...


ARCHITECTURES: Mapping[str, ModelFactory] = {"llama": LlamaForCausalLM, "LlamaForCausalLM": LlamaForCausalLM}
"""Names that `ModelConfig.architecture` may have: GGUF's and Hugging Face's."""


def build_model(
    checkpoint: Checkpoint,
    *,
    quantizer: Quantizer,
    dtype: torch.dtype,
    device: torch.device,
    parallel: ParallelContext,
    progress: LoadProgress = ignore_progress,
    skip: tuple[str, ...] = (),
    layers: range | None = None,
    deterministic: bool = False,
) -> CausalLM:
    """Builds the model and loads its weights.

    Args:
        checkpoint: may be closed afterwards.
        quantizer: stores the layers that it covers and that no skip list names.
        dtype: of activations and of weights that are not quantized.
        device: where the model runs.
        parallel: rank and size.
        progress: is told how far loading is.
        skip: layers not to quantize, in addition to those that the checkpoint's quantization_config names.
        layers: only these decoder layers; embedding, final norm and head are always there.
        deterministic: results of a row must not depend on the other rows, bit for bit; slower.

    Raises:
        ModelError: unknown architecture; a tensor is missing, unknown or of the wrong shape.
        ConfigError: an entry of `skip` names no layer.
    """
    config = checkpoint.config
    model_class = ARCHITECTURES.get(config.architecture)
    if model_class is None:
        raise ModelError(
            f"{checkpoint.path} is of architecture {config.architecture!r}; supported are "
            f"{', '.join(sorted(ARCHITECTURES))}.{did_you_mean(config.architecture, ARCHITECTURES)}"
        )
    skip_list = SkipList(checkpoint_skip_entries(checkpoint.quantization), skip)
    ops = build_op_table(device, deterministic=deterministic)
    factory = LayerFactory(quantizer, skip_list, dtype, device, parallel, ops)
    model = model_class(config, factory, layers)
    skip_list.check_used()
    model.load_weights(checkpoint, progress)
    return model
