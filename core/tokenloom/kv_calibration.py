"""Fixed scales of keys and values, from the largest magnitudes that a text makes, written for `attention.kv_scales`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, final

import torch
from safetensors.torch import save_file

from tokenloom.checkpoint.kv_scale_names import KEY_SCALES, VALUE_SCALES
from tokenloom.engine_tap import EngineTap
from tokenloom.errors import ConfigError
from tokenloom.executors.kv_scales import FORM_KEY
from tokenloom.executors.local import LocalExecutor
from tokenloom.interfaces.attention import AttentionLayer, KVForm
from tokenloom.interfaces.executor import Executor
from tokenloom.llm import LLM
from tokenloom.sampling_params import SamplingParams

__all__ = ["KVMagnitudes", "measure_magnitudes", "scale_tensors", "write_scales"]

_LIMITS: Mapping[KVForm, float] = {"int8": 127.0, "fp8_e4m3": 448.0}


@final
class KVMagnitudes(EngineTap):
    """Hears an engine, and keeps the largest magnitude of each layer's keys and values, by head."""

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}
        """fp32 [Hkv] by the number of the layer; so are `values`."""
        self.values: dict[int, torch.Tensor] = {}

    def executor(self, inner: Executor) -> Executor:
        if not isinstance(inner, LocalExecutor):
            raise ConfigError(f"{type(inner).__name__} stores no keys and values to measure; choose executor=local")
        inner.capture_kv(self._hear)
        return inner

    def _hear(self, layer: AttentionLayer, key: torch.Tensor, value: torch.Tensor) -> None:
        for held, values in ((self.keys, key), (self.values, value)):
            if values.shape[0] == 0:
                continue
            largest = values.float().abs().amax(dim=(0, 2)).cpu()  # [Hkv]
            before = held.get(layer.layer_index)
            held[layer.layer_index] = largest if before is None else torch.maximum(before, largest)


def measure_magnitudes(llm: LLM, sequences: Sequence[Sequence[int]], progress: Callable[[str, int, int], None]) -> None:
    """Runs token ids through an engine that a `KVMagnitudes` hears, one sequence after another."""
    for done, token_ids in enumerate(sequences):
        progress("measuring", done, len(sequences))
        llm.generate(list(token_ids), SamplingParams(temperature=0.0, max_tokens=1))
    progress("measuring", len(sequences), len(sequences))


def scale_tensors(
    magnitudes: KVMagnitudes, form: KVForm, granularity: Literal["head", "tensor"]
) -> dict[str, torch.Tensor]:
    """Scales by which the largest magnitudes become the largest codes.

    Args:
        magnitudes: that heard at least one token.
        form: what keys and values are to be rounded to.
        granularity: a scale for each KV head, or one for all.

    Returns:
        fp32 [Hkv] or [1] by the names that checkpoints have.

    Raises:
        ConfigError: some magnitude is no number.
    """
    tensors: dict[str, torch.Tensor] = {}
    for held, name in ((magnitudes.keys, KEY_SCALES[0]), (magnitudes.values, VALUE_SCALES[0])):
        for layer, largest in sorted(held.items()):
            if not bool(largest.isfinite().all()):
                raise ConfigError(
                    f"keys or values of layer {layer} are not finite, so no scale holds them; try model.dtype=float32"
                )
            wanted = largest.amax(dim=0, keepdim=True) if granularity == "tensor" else largest
            # A head that is always zero stays zero by any scale.
            scale = torch.where(wanted > 0, wanted / _LIMITS[form], 1.0)
            tensors[f"model.layers.{layer}.self_attn.{name}"] = scale.contiguous()
    return tensors


def write_scales(tensors: Mapping[str, torch.Tensor], form: KVForm, path: Path, notes: Mapping[str, str]) -> None:
    """Writes scales as safetensors, all or nothing; `notes` say where they come from."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    save_file(dict(tensors), unfinished, metadata={FORM_KEY: form, **notes})
    os.replace(unfinished, path)
