"""The launches of one step, made for the first layer of its kind: for the others only their tensors are filled in.

What a launch is made of follows from the step, the layer's form and the strides. Looking all of it up again in every
layer costs the host more than a GPU takes for a short decode.
"""

from __future__ import annotations

from typing import Any, final

import torch

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer
from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom_attention.triton_paged.launches import attention_launches, partial_results, store_launch
from tokenloom_attention.triton_paged.plan import StepPlan

__all__ = ["StepLaunches"]

_OF_A_LAYER = ("out", "query", "cache", "scales", "sinks", "partial_out", "partial_lse")
_OF_NEW_TOKENS = ("cache", "scales", "key", "value")


@final
class StepLaunches:
    """What a step launches in each of its layers. It keeps no layer's tensors."""

    def __init__(self, batch: AttentionBatch, tree_words: torch.Tensor | None, plan: StepPlan) -> None:
        self._batch, self._tree_words, self._plan = batch, tree_words, plan
        self._attend: dict[tuple[Any, ...], list[KernelLaunch]] = {}
        self._store: dict[tuple[Any, ...], KernelLaunch] = {}

    def attend(
        self,
        out: torch.Tensor,
        query: torch.Tensor,
        cache: torch.Tensor,
        scales: torch.Tensor | None,
        layer: AttentionLayer,
    ) -> None:
        """Fills `out` [T, Hq, D]; the rest as in `tokenloom_attention.triton_paged.launches.paged_attention`."""
        form = (layer.softmax_scale, layer.soft_cap, layer.window, layer.sinks is None)
        made = self._attend.get((query.stride(), form))
        if made is None:
            launches = attention_launches(out, query, cache, scales, self._batch, self._tree_words, layer, self._plan)
            made = self._attend[query.stride(), form] = [launch.without(_OF_A_LAYER) for launch in launches]
        partial = partial_results(self._batch.seq_lens.shape[0], query, self._plan)
        partial_out, partial_lse = (None, None) if partial is None else partial
        results = {"out": out, "partial_out": partial_out, "partial_lse": partial_lse}
        made[0].run({**results, "query": query, "cache": cache, "scales": scales, "sinks": layer.sinks})
        if partial is not None:
            made[1].run(results)

    def store(self, cache: torch.Tensor, scales: torch.Tensor | None, key: torch.Tensor, value: torch.Tensor) -> None:
        """As `tokenloom_attention.triton_paged.launches.store_tokens`, at the step's slots."""
        strides = (key.stride(), value.stride())
        made = self._store.get(strides)
        if made is None:
            launch = store_launch(cache, scales, key, value, self._batch.slot_mapping)
            made = self._store[strides] = launch.without(_OF_NEW_TOKENS)
        made.run({"cache": cache, "scales": scales, "key": key, "value": value})
