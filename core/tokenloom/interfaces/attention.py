"""Contract `attention` 1.1: how keys and values lie in memory, and attention over them.

The core allocates the cache tensors, owns block ids and decides who sees what; the backend decides the layout inside a
block and computes. One call of `prepare` per forward pass and KV group serves every layer of that group.

Words: T new tokens in the step, B requests in the step, Hq query heads, Hkv KV heads, D head_dim, BS block_size.
Query head h reads KV head h // (Hq // Hkv).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig

__all__ = [
    "CONTRACT_VERSION",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionConfig",
    "AttentionContext",
    "AttentionLayer",
    "AttentionMetadata",
    "KVCacheSpec",
    "KVForm",
    "KVScaleSource",
    "KVScales",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["attention"]


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What a backend knows when it is built. One backend object serves all layers that share these facts.

    Attributes:
        num_heads: Hq on this rank.
        num_kv_heads: Hkv on this rank; divides num_heads.
        head_dim: D, the true one (the softmax scale comes from it, not from a padded size).
        block_size: tokens per KV block.
        dtype: dtype of queries and outputs.
        device: where all tensors live.
        max_num_seqs: most requests in one step.
        max_num_batched_tokens: most new tokens in one step.
        max_model_len: longest sequence, in tokens.
        deterministic: results of a request must not depend on the rest of the batch, bit for bit.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The memory that one layer needs, stated by the backend.

    Attributes:
        shapes: one shape per tensor, for a given number of blocks; the core allocates them zeroed on the device.
        dtypes: dtype of each tensor.
        page_bytes: bytes that one block takes in this layer, over all tensors, exactly.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    page_bytes: int


KVForm = Literal["int8", "fp8_e4m3"]
"""What keys and values are rounded to: int8 from -127 to 127, or float8_e4m3fn up to 448."""


@dataclass(frozen=True, slots=True)
class KVScaleSource:
    """Where fixed scales of keys and values come from.

    Attributes:
        place: "checkpoint", or a file that `tokenloom calibrate-kv` wrote.
        form: what they are for.
    """

    place: str
    form: KVForm


@dataclass(frozen=True, slots=True)
class KVScales:
    """Fixed scales of one layer: what is stored is x / scale, rounded, and what is read is that times the scale.

    Attributes:
        key, value: fp32 [Hkv], contiguous, on the device, finite and positive.
    """

    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The facts of one layer.

    Attributes:
        layer_index: index among the layers of its model.
        group_id: KV group whose metadata this layer uses.
        softmax_scale: multiplies q.k before soft cap and mask; 1/sqrt(true head_dim) unless the model says otherwise.
        window: position i sees j with i - window < j <= i; None sees all j <= i.
        soft_cap: scores become soft_cap * tanh(score / soft_cap) before the mask; None leaves them.
        sinks: fp32 [Hq], contiguous, on the device, finite, or None: a logit for each query head that joins the
            denominator of the softmax and nothing else, p_i = exp(s_i) / (sum_j exp(s_j) + exp(sink)). It is neither
            scaled nor capped, and no mask hides it; a row that sees no token is zero. Since 1.1: only backends that
            claim the flag `sinks` are given any. Source: OpenAI, gpt-oss model card (2025), on its attention layers.
    """

    layer_index: int
    group_id: int
    softmax_scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's work for one KV group. Prefill, chunks, decode (1) and verification (1 + k) differ only in counts.

    Request b owns the query rows cu_seqlens_q[b]:cu_seqlens_q[b+1]. The first of them has slot index
    num_computed = seq_lens[b] - query_len(b) in its sequence. Slot index and position are equal but for trees, where
    siblings share a position. A request with seq_lens[b] == 0 and one row is padding: its row of the result is zero.

    Attributes:
        cu_seqlens_q: int32 [B + 1], device; cu_seqlens_q[0] == 0, cu_seqlens_q[B] == T.
        seq_lens: int32 [B], device; cached tokens including this step's new ones.
        positions: int64 [T], device; rotary position of each new token.
        block_table: int32 [B, max_blocks], device; block ids in order; entries past the sequence are 0 (the null
            block) and must not be read into a result. A block that left the window is 0 as well.
        slot_mapping: int64 [T], device; block_id * BS + offset where the new token's K and V are stored. A negative
            slot means "do not store".
        tree_mask: bool [T, max_seqlen_q], device, or None. Row t, column j: does new token t see the j-th new token
            of its own request; columns past the request's query length are False, and rows of a request without a
            tree are lower triangular. None means causal among the new tokens. All new tokens see the whole cached
            prefix (within the window, measured by position).
        query_lens_cpu, seq_lens_cpu: host copies, for choosing shapes without a device sync.
        window: window of all layers of this group, as in `AttentionLayer.window`.
    """

    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    tree_mask: torch.Tensor | None
    query_lens_cpu: Sequence[int]
    seq_lens_cpu: Sequence[int]
    window: int | None = None

    @property
    def num_tokens(self) -> int:
        """T, the number of new tokens."""
        return int(self.positions.shape[0])


class AttentionMetadata(ABC):  # noqa: B024  (a marker: each backend fills its own)
    """What `prepare` computes once per step; opaque to the core."""

    __slots__ = ()


class AttentionConfig(PluginConfig):
    """Base of attention Configs. `build` takes an `AttentionContext` and returns an `AttentionBackend`."""

    @abstractmethod
    def build(self, context: AttentionContext) -> AttentionBackend: ...

    def fixed_kv_scales(self) -> KVScaleSource | None:
        """Where scales come from that were found before; None, as for most, if there are none or the backend finds them
        as it stores. Since 1.1. The core reads them, refuses what is missing, and calls `write_scaled_kv`."""
        return None


class AttentionBackend(ABC):
    """Layout of the KV cache and attention over it."""

    @abstractmethod
    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """States the tensors of one layer for `num_blocks` blocks (the null block 0 included).

        Memory is linear in num_blocks; page_bytes does not depend on it.
        """

    @abstractmethod
    def prepare(self, batch: AttentionBatch) -> AttentionMetadata:
        """Turns a batch into whatever `write_kv` and `forward` need; called once per forward pass and KV group.

        The batch's tensors are views of persistent buffers: valid until the next `prepare` for the same KV group.
        """

    @abstractmethod
    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores the new tokens' keys and values at their slots.

        Args:
            kv: this layer's cache tensors, as stated by `kv_cache_spec`; mutated.
            key, value: [T, Hkv, D], `dtype` of the context, rotary embedding applied to key. Only the last dimension
                is sure to be contiguous.
            metadata: this step's, from `prepare`.
        """

    def write_scaled_kv(
        self,
        kv: Sequence[torch.Tensor],
        key: torch.Tensor,
        value: torch.Tensor,
        scales: KVScales,
        metadata: AttentionMetadata,
    ) -> None:
        """As `write_kv`, with fixed scales; magnitudes beyond the largest that they can stand for become it.

        Since 1.1: only called where `AttentionConfig.fixed_kv_scales` names a source.
        """
        given = f"keys {tuple(key.shape)}, values {tuple(value.shape)}, {len(kv)} tensors, {type(metadata).__name__}"
        raise AssertionError(f"{type(self).__name__} has no use for fixed scales of keys and values: {scales}, {given}")

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        kv: Sequence[torch.Tensor],
        layer: AttentionLayer,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Attention of the new tokens over everything cached, their own K and V (already written) included.

        Reads K and V as stored: a quantized cache is dequantized here, for old and new tokens alike. Memory that was
        never written (beyond a sequence, or in the null block) may hold NaN and must not reach the result.

        Args:
            query: [T, Hq, D]; only the last dimension is sure to be contiguous. Not changed.
            kv: this layer's cache tensors; not changed.
            layer: scale, window, soft cap and sinks.
            metadata: this step's, from `prepare`.

        Returns:
            [T, Hq, D], dtype of query.
        """

    @abstractmethod
    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies stored tokens between slots of one layer, exactly (no requantization).

        Used to compact the accepted path of a tree and for copy on write. Source and target may overlap: the result
        is as if all of source had been read first.

        Args:
            kv: this layer's cache tensors; mutated.
            source, target: int64 [n], slots; targets are distinct.
        """

    @abstractmethod
    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the content of blocks in the canonical layout, for swap and transfer.

        Args:
            kv: this layer's cache tensors.
            block_ids: int64 [n].

        Returns:
            One new tensor per stored quantity, each [n, BS, Hkv, ...] contiguous: (K, V) for plain caches, scales
            after them for quantized ones. `import_blocks` of this restores the blocks bit for bit.
        """

    @abstractmethod
    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Writes what `export_blocks` returned into the blocks `block_ids` (int64 [n]); mutates kv."""
