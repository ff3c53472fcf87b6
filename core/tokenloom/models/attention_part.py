"""The attention part of a decoder layer: projections, query and key norms, rotary embedding, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import ForwardContext
from tokenloom.models.layers import LayerFactory, Linear
from tokenloom.models.projected_heads import ProjectedHeads
from tokenloom.models.rotary_cache import Rotation

__all__ = ["AttentionPart"]


@final
class AttentionPart:
    """Grouped-query attention of one layer, without the norms around it.

    Args:
        config: of the model.
        factory: makes the layers.
        index: the decoder layer's number.
        group_id: the KV group that it belongs to.
        name: full name in the checkpoint; what the projections' names begin with.
    """

    def __init__(self, config: ModelConfig, factory: LayerFactory, index: int, group_id: int, name: str) -> None:
        self.facts = AttentionLayer(
            layer_index=index,
            group_id=group_id,
            softmax_scale=config.head_dim**-0.5 if config.softmax_scale is None else config.softmax_scale,
            window=config.windows[index],
            soft_cap=config.attn_soft_cap,
        )
        self._qkv = _qkv_projection(config, factory, name)
        qk_norm = (
            factory.head_norms(name, config.head_dim, config.num_heads, config.rms_norm_eps, offset=config.norm_offset)
            if config.has_qk_norm
            else None
        )
        self._heads = ProjectedHeads(config, factory.ops, qk_norm)
        self._output = factory.linear(
            f"{name}.o_proj",
            config.num_heads * config.head_dim,
            {"o_proj": config.hidden_size},
            has_bias=config.output_bias,
            axis="input",
        )

    def __call__(
        self, x: torch.Tensor, rotation: Rotation | None, kv: Sequence[torch.Tensor], context: ForwardContext
    ) -> torch.Tensor:
        """Attends, after writing the K and V of this step's tokens.

        Args:
            x: [T, H], normed.
            rotation: of this step's positions; None in a layer without rotary embedding.
            kv: this layer's cache tensors; mutated.
            context: of this forward pass.

        Returns:
            [T, H].
        """
        query, key, value = self._heads(self._qkv.apply(x), rotation)
        self._write(kv, key, value, context)
        metadata = context.metadata[self.facts.group_id]
        attended = context.attention.forward(query, kv, self.facts, metadata)  # [T, Hq, D]
        return self._output.apply(attended.flatten(1))

    def _write(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, context: ForwardContext
    ) -> None:
        metadata, scales = context.metadata[self.facts.group_id], context.kv_scales.get(self.facts.layer_index)
        if context.kv_sink is not None:
            context.kv_sink(self.facts, key, value)
        if scales is None:
            context.attention.write_kv(kv, key, value, metadata)
        else:
            context.attention.write_scaled_kv(kv, key, value, scales, metadata)


def _qkv_projection(config: ModelConfig, factory: LayerFactory, name: str) -> Linear:
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    split = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    shards = {"qkv_proj": q_size + 2 * kv_size} if config.is_qkv_fused else split
    return factory.linear(f"{name}.qkv_proj", config.hidden_size, shards, has_bias=config.qkv_bias, axis="output")
