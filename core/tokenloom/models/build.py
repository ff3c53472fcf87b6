"""From an opened checkpoint to a loaded model."""

from __future__ import annotations

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.interfaces.quant import Quantizer
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.layers import LayerFactory
from tokenloom.models.registry import architecture_named
from tokenloom.models.skip_list import SkipList, checkpoint_skip_entries
from tokenloom.models.weight_loading import LoadProgress, ignore_progress
from tokenloom.ops.table import OpsName, build_op_table
from tokenloom.parallel import ParallelContext

__all__ = ["build_model"]


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
    max_model_len: int | None = None,
    ops: OpsName = "torch",
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
        max_model_len: the longest sequence that will run, tokens; None stands for the model's own limit.
        ops: implementation of the fused operations; native is for bfloat16 on a CPU.
        deterministic: results of a row must not depend on the other rows, bit for bit; slower.

    Raises:
        NativeBuildError: native operations cannot be built on this machine.
        ModelError: unknown architecture; a tensor is missing, unknown or of the wrong shape.
        ConfigError: an entry of `skip` names no layer.
    """
    config = checkpoint.config
    skip_list = SkipList(checkpoint_skip_entries(checkpoint.quantization), skip)
    table = build_op_table(device, ops, deterministic=deterministic)
    factory = LayerFactory(quantizer, skip_list, dtype, device, parallel, table, max_model_len)
    model = architecture_named(config.architecture).make_model(config, factory, layers)
    skip_list.check_used()
    model.load_weights(checkpoint, progress)
    return model
