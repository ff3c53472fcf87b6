"""Skip lists: by full dotted name, whole parts only."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import LayerSpec, Shard
from tokenloom.models.skip_list import SkipList, checkpoint_skip_entries, part_names


def _spec(name: str, *shards: str, tied: bool = False) -> LayerSpec:
    parts = shards or (name.rpartition(".")[2],)
    return LayerSpec(name, "linear", 8, 8 * len(parts), tuple(Shard(part, 8) for part in parts), tied=tied)


QKV = _spec("model.layers.1.self_attn.qkv_proj", "q_proj", "k_proj", "v_proj")
DOWN = _spec("model.layers.1.mlp.down_proj")


def test_part_names_are_those_of_the_checkpoint() -> None:
    assert part_names(DOWN) == ("model.layers.1.mlp.down_proj",)
    assert part_names(_spec("lm_head")) == ("lm_head",)
    assert part_names(QKV) == tuple(f"model.layers.1.self_attn.{part}_proj" for part in "qkv")


@pytest.mark.parametrize(
    "entry",
    [
        "model.layers.1.mlp.down_proj",
        "model.layers.1.mlp",
        "model.layers.1",
        "layers.1.mlp",
        "model",
        "re:.*down_proj",
        r"re:model\.layers\.[12]\.",
    ],
)
def test_skip_list_names_a_layer_and_all_below_it(entry: str) -> None:
    assert SkipList((entry,)).names(DOWN)
    assert SkipList((), (entry,)).names(DOWN)


@pytest.mark.parametrize(
    "entry",
    [
        "model.layers.1.mlp.down",  # not a whole part
        "model.layers.11",
        "layers.1.mlp.down_proj.weight",
        "mlp.down_proj",  # neither a full name nor a beginning of one
        "down_proj",
        "re:down_proj",  # matches from the start
        "lm_head",
    ],
)
def test_skip_list_leaves_other_names_alone(entry: str) -> None:
    assert not SkipList((entry,)).names(DOWN)


def test_skip_list_does_not_take_layer_11_for_layer_1() -> None:
    skip = SkipList(("model.layers.1",))
    assert not skip.names(_spec("model.layers.11.mlp.down_proj"))
    assert not skip.names(_spec("model.layers.10.mlp.down_proj"))


def test_skip_list_names_a_fused_layer_by_its_own_name_or_by_all_shards() -> None:
    assert SkipList(("model.layers.1.self_attn.qkv_proj",)).names(QKV)
    assert SkipList(("model.layers.1.self_attn",)).names(QKV)
    assert SkipList(part_names(QKV)).names(QKV)


def test_skip_list_refuses_a_fused_layer_named_in_part() -> None:
    with pytest.raises(ModelError, match=r"names model\.layers\.1\.self_attn\.k_proj but not .*q_proj, .*v_proj"):
        SkipList(("model.layers.1.self_attn.k_proj",)).names(QKV)


def test_skip_list_takes_the_head_for_an_embedding_that_is_tied_to_it() -> None:
    assert SkipList(("lm_head",)).names(_spec("model.embed_tokens", tied=True))
    assert not SkipList(("lm_head",)).names(_spec("model.embed_tokens"))


def test_skip_list_is_strict_with_entries_of_the_user_only() -> None:
    skip = SkipList(("visual.blocks",), ("model.layers.1",))
    skip.names(DOWN)
    skip.check_used()
    misspelt = SkipList((), ("model.layer.1.mlp.down_proj",))
    misspelt.names(DOWN)
    with pytest.raises(ConfigError, match=r"'model\.layer\.1\.mlp\.down_proj'.*Did you mean 'model\.layers\.1\.mlp"):
        misspelt.check_used()


def test_skip_list_counts_every_entry_that_names_a_layer_as_used() -> None:
    skip = SkipList((), ("model.layers.1", "model.layers.1.mlp", "re:.*down_proj"))
    assert skip.names(DOWN)
    skip.check_used()


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, ()),
        ({}, ()),
        ({"quant_method": "awq", "modules_to_not_convert": None}, ()),
        ({"modules_to_not_convert": ["lm_head"]}, ("lm_head",)),
        ({"ignore": ["lm_head", "re:.*gate"], "ignored_layers": ["lm_head", "b"]}, ("lm_head", "re:.*gate", "b")),
    ],
)
def test_checkpoint_skip_entries_reads_each_formats_key(
    quantization: dict[str, object] | None, expected: tuple[str, ...]
) -> None:
    assert checkpoint_skip_entries(quantization) == expected


@pytest.mark.parametrize("value", ["lm_head", [1], [""], {"a": 1}])
def test_checkpoint_skip_entries_refuses_anything_but_a_list_of_names(value: object) -> None:
    with pytest.raises(ModelError, match="'ignore' must be a list of layer names"):
        checkpoint_skip_entries({"ignore": value})
