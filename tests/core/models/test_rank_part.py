"""What of a layer a rank holds: equal parts of each shard, sizes that do not divide, shared KV heads, dense storage."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.core.models.split_layers import Axis, check_parts, split_specs, stored
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec, LinearWeights, Shard
from tokenloom.models.dense_weights import DenseEmbedding, DenseLinear
from tokenloom.models.rank_part import rank_part
from tokenloom.ops.table import build_op_table
from tokenloom.parallel import ParallelContext

CPU = torch.device("cpu")
QKV = LayerSpec(
    "model.layers.0.self_attn.qkv_proj",
    "linear",
    45,
    36,
    (Shard("q_proj", 18), Shard("k_proj", 9), Shard("v_proj", 9)),
    has_bias=True,
)
DOWN = LayerSpec("model.layers.0.mlp.down_proj", "linear", 45, 9, (Shard("down_proj", 9),), has_bias=True)
EMBED = LayerSpec("model.embed_tokens", "embedding", 5, 21, (Shard("embed_tokens", 21),), tied=True)


def dense_linear(spec: LayerSpec) -> LinearWeights:
    return DenseLinear(spec, torch.float32, CPU, build_op_table(CPU))


def weights_of(spec: LayerSpec) -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return {
        shard.name: {"weight": torch.randn(shard.out_features, spec.in_features, generator=generator)}
        for shard in spec.shards
    }


@pytest.mark.parametrize("axis", ["output", "input"])
@pytest.mark.parametrize("spec", [QKV, DOWN], ids=["fused", "plain"])
def test_dense_parts_are_the_whole_layer(spec: LayerSpec, axis: Axis) -> None:
    layers = check_parts(dense_linear, spec, axis, 3, weights_of(spec))
    whole = stored(dense_linear, replace(spec, has_bias=False), weights_of(spec))
    assert all(layer.num_bytes < whole.num_bytes / 2 for layer in layers)


def test_layers_without_axis_are_whole_on_each_rank() -> None:
    spec = replace(DOWN, parallel=ParallelContext(1, 2))
    part = rank_part(spec, "down_proj")
    assert (part.rows, part.columns, part.adds_bias) == (range(9), range(45), True)
    weight = torch.ones(9, 45)
    assert part.of_weight(weight) is weight


def test_parts_keep_nothing_of_the_whole_tensor() -> None:
    (_, spec) = split_specs(DOWN, "input", 5)[:2]
    part = rank_part(spec, "down_proj")
    own = part.of_weight(torch.arange(9 * 45.0).view(9, 45))
    assert own[0].tolist() == list(range(9, 18))
    assert own.untyped_storage().nbytes() == own.nbytes
    assert part.of_bias(torch.ones(9)) is None


def test_replicated_heads_are_the_same_on_neighbours() -> None:
    shards = (Shard("q_proj", 16), Shard("k_proj", 8, num_replicas=2), Shard("v_proj", 8, num_replicas=2))
    specs = split_specs(replace(QKV, out_features=32, shards=shards), "output", 4)
    assert [rank_part(spec, "q_proj").rows.start for spec in specs] == [0, 4, 8, 12]
    assert [rank_part(spec, "k_proj").rows for spec in specs] == [range(4), range(4), range(4, 8), range(4, 8)]


@pytest.mark.parametrize(
    ("spec", "axis", "size", "message"),
    [
        (
            QKV,
            "output",
            2,
            r"qkv_proj, shard k_proj: its 9 output features cannot be cut into 2 equal parts.* 1, 3, 9$",
        ),
        (DOWN, "input", 2, r"down_proj: its 45 input features cannot be cut into 2 equal parts.* 1, 3, 5, 9, 15$"),
        (EMBED, "output", 2, r"embed_tokens: its 21 output features .* sizes up to 16 that fit are 1, 3, 7$"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(spec: LayerSpec, axis: Axis, size: int, message: str) -> None:
    create = DenseEmbedding if spec is EMBED else DenseLinear
    with pytest.raises(ModelError, match=message):
        create(split_specs(spec, axis, size)[0], torch.float32, CPU, build_op_table(CPU))


def test_groups_that_would_be_cut_are_refused() -> None:
    spec = split_specs(replace(DOWN, in_features=96), "input", 2)[1]
    rank_part(spec, "down_proj").require_whole_groups(16)
    with pytest.raises(
        ModelError, match=r"size of 2 cuts its 96 input features within groups of 32; .* 1, 3, or leave"
    ):
        rank_part(spec, "down_proj").require_whole_groups(32)


def test_rows_of_an_embedding_come_from_one_rank() -> None:
    table = weights_of(EMBED)["embed_tokens"]["weight"]
    token_ids = torch.tensor([20, 0, 6, 7, 13, 14])
    looked_up, logits = [], []
    for spec in split_specs(EMBED, "output", 3):
        layer = DenseEmbedding(spec, torch.float32, CPU, build_op_table(CPU))
        layer.load("embed_tokens", "weight", table)
        layer.finalize()
        looked_up.append(layer.lookup(token_ids))
        logits.append(layer.apply(table[:2]))
    assert torch.equal(torch.stack(looked_up).sum(dim=0), table[token_ids])
    assert [int(rows.any(dim=1).sum()) for rows in looked_up] == [2, 2, 2]
    torch.testing.assert_close(torch.cat(logits, dim=1), table[:2] @ table.T)
