"""config.json in old and new spellings, what absent keys mean in each family, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
)
from tokenloom.models.config_fields import KeyDefaults, base_config
from tokenloom.models.refused_keys import ARITHMETIC_KEYS
from tokenloom.models.registry import BUILT_IN_MODELS, architecture_named

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
}
FAMILIES = [info.name for info in BUILT_IN_MODELS]
FUSED = ("model.layers.0.self_attn.qkv_proj.qweight", "model.layers.0.mlp.gate_up_proj.weight")


def read(family: str, changes: dict[str, Any] | None = None, names: tuple[str, ...] = ()) -> ModelConfig:
    values = json.loads(json.dumps({**SIZES, **(changes or {})}))
    return architecture_named(family).read_config(Fields(values, Path("some/config.json")), names)


@pytest.mark.parametrize("family", FAMILIES)
def test_read_config_takes_the_sizes(family: str) -> None:
    config = read(family, {"head_dim": 16})
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (48, 4, 4, 2)
    assert (config.head_dim, config.vocab_size, config.max_position_embeddings) == (16, 96, 256)
    assert len(config.ropes) == len(config.windows) == 4
    assert not config.is_qkv_fused
    assert not config.is_gate_up_fused
    assert config.architecture == family
    assert config.extra == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_read_config_sees_fused_projections_in_the_tensor_names(family: str) -> None:
    config = read(family, names=FUSED)
    assert config.is_qkv_fused
    assert config.is_gate_up_fused


@pytest.mark.parametrize(
    ("family", "tied", "num_kv_heads", "head_dim", "theta", "window"),
    [
        ("llama", False, 4, 12, 1e4, None),
        ("mistral", False, 8, 12, 1e4, 4096),
        ("qwen2", False, 32, 12, 1e4, None),
        ("qwen3", False, 32, 128, 1e4, None),
        ("gemma2", True, 4, 256, 1e4, 4096),
        ("gemma3", True, 4, 256, 1e4, 4096),
        ("phi3", False, 4, 12, 1e4, None),
        ("smollm3", True, 4, 12, 2e6, None),
    ],
)
def test_absent_keys_mean_what_the_family_means(
    family: str, tied: bool, num_kv_heads: int, head_dim: int, theta: float, window: int | None
) -> None:
    values = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    config = architecture_named(family).read_config(Fields(values, Path("config.json")), ())
    assert config.tie_word_embeddings is tied
    assert (config.num_kv_heads, config.head_dim, config.windows[0]) == (num_kv_heads, head_dim, window)
    assert config.ropes[0] is not None
    assert config.ropes[0].theta == theta


def test_null_is_not_the_same_as_absent() -> None:
    assert read("mistral", {"sliding_window": None}).windows == (None,) * 4
    assert read("mistral", {"num_key_value_heads": None}).num_kv_heads == 4
    config = read("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (config.attn_soft_cap, config.final_soft_cap) == (None, None)
    assert (read("gemma2").attn_soft_cap, read("gemma2").final_soft_cap) == (50.0, 30.0)
    assert read("gemma3").final_soft_cap is None
    assert read("qwen3", {"head_dim": None}).head_dim == 12


def test_gemma2_reads_its_arithmetic() -> None:
    config = read("gemma2", {"query_pre_attn_scalar": 144, "sliding_window": 9, "hidden_act": "gelu_pytorch_tanh"})
    assert config.windows == (9, None, 9, None)
    assert config.softmax_scale == pytest.approx(1 / 12)
    assert config.embedding_scale == pytest.approx(math.sqrt(48))
    assert (config.hidden_act, config.norm_offset, config.has_post_norms) == ("gelu_tanh", 1.0, True)
    assert read("gemma2", {"query_pre_attn_scalar": 256}).softmax_scale is None, "that is what head_dim gives"


def test_gemma3_reads_the_few_keys_of_an_old_file() -> None:
    """As the text part of a released config says it: all else follows from the family."""
    values = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = architecture_named("gemma3").read_config(Fields(values, Path("config.json")), ())
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert [index for index, window in enumerate(config.windows) if window is None] == [5, 11, 17, 23, 29]
    assert config.ropes[5] == RopeConfig(1e6, 256, LinearScaling(8.0))
    assert config.ropes[0] == RopeConfig(1e4, 256, None)


def test_gemma3_reads_old_and_new_spelling_alike() -> None:
    old = {
        "rope_theta": 5e5,
        "rope_local_base_freq": 300.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "sliding_window_pattern": 2,
    }
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    assert read("gemma3", old) == read("gemma3", new)
    assert read("gemma3", old).windows == (4096, None, 4096, None)


def test_qwen_windows_follow_their_switch() -> None:
    window = {"sliding_window": 5, "max_window_layers": 3}
    for family in ("qwen2", "qwen3"):
        assert read(family, window).windows == (None,) * 4
        assert read(family, {**window, "use_sliding_window": True}).windows == (None, None, None, 5)
        assert read(family, {"use_sliding_window": True}).windows == (None,) * 4, "from layer 28 on"
    assert read("qwen2").qkv_bias
    assert not read("qwen2").output_bias
    assert read("qwen3").has_qk_norm


def test_smollm3_reads_which_layers_have_no_rope() -> None:
    assert [rope is None for rope in read("smollm3").ropes] == [False, False, False, True]
    config = read("smollm3", {"no_rope_layers": [0, 1, 0, 1, 1], "use_sliding_window": True, "sliding_window": 6})
    assert [rope is None for rope in config.ropes] == [True, False, True, False]
    assert config.windows == (6, None, 6, None)


PHI3_LONG = {
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "su", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
}


def test_phi3_reads_longrope_in_its_early_spellings() -> None:
    attention_factor = math.sqrt(1 + math.log(4.0) / math.log(64))
    expected = RopeConfig(1e4, 12, LongRopeScaling((1.0,) * 6, (2.0,) * 6, 64, attention_factor))
    for kind in ("su", "yarn", "longrope"):
        rope_scaling = {**PHI3_LONG["rope_scaling"], "type": kind}  # type: ignore[dict-item]
        assert read("phi3", {**PHI3_LONG, "rope_scaling": rope_scaling}).ropes == (expected,) * 4
    partial = read("phi3", {"partial_rotary_factor": 0.75, "num_attention_heads": 2, "num_key_value_heads": 2})
    assert partial.ropes[0] == RopeConfig(1e4, 18, None)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            Llama3Scaling(8.0, 1.0, 4.0, 256),
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "finetuned": True},
            YarnScaling(4.0, 64, 0.1 * math.log(4.0) + 1.0),
        ),
        ({"type": "yarn", "original_max_position_embeddings": 64}, YarnScaling(4.0, 64, 0.1 * math.log(4.0) + 1.0)),
        (
            {"rope_type": "longrope", "short_factor": [3.0] * 6, "long_factor": [3.0] * 6},
            DivisorScaling((3.0,) * 6),
        ),
    ],
)
def test_rope_is_read_from_either_section(entry: dict[str, Any], expected: object) -> None:
    old = read("llama", {"rope_scaling": entry, "rope_theta": 700.0})
    new = read("llama", {"rope_parameters": {**entry, "rope_theta": 700.0}})
    both = read("llama", {"rope_scaling": entry, "rope_parameters": {**entry, "rope_theta": 700.0}, "rope_theta": 700})
    assert old.ropes == new.ropes == both.ropes
    assert old.ropes[0] == RopeConfig(700.0, 12, expected)  # type: ignore[arg-type]


def test_a_trained_length_outside_the_entry_counts() -> None:
    entry = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = read("llama", {"rope_scaling": entry, "original_max_position_embeddings": 32})
    assert config.ropes[0] is not None
    assert isinstance(config.ropes[0].scaling, YarnScaling)
    assert config.ropes[0].scaling.original_max_position_embeddings == 32


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "llama",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "'dynamic' is not supported: its frequencies change",
    ),
    ("llama", {"rope_scaling": {"rope_type": "proportional"}}, "rope type 'proportional' is not supported; supported"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "lacks the key 'factor'"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 1}}, "'linear' has no key 'beta'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 6}}, "needs the key 'long_factor'"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "contradict each other",
    ),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "no key 'full_attention'"),
    ("llama", {"sliding_window": 5}, "sets 'sliding_window' to 5"),
    ("llama", {"hidden_act": "relu"}, "hidden_act must be one of silu, swish, gelu_pytorch_tanh, got 'relu'"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation must be one of"),
    ("mistral", {"layer_types": ["full_attention"] * 4}, "'layer_types' and 'sliding_window' disagree"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "names sliding layers, but the file switches windows off"),
    ("qwen3", {"layer_types": ["full_attention"] * 3}, "'layer_types' has 3 entries for 4 layers"),
    ("qwen3", {"layer_types": ["linear_attention"] * 4}, "'layer_types' holds 'linear_attention'"),
    ("qwen3", {"layer_types": "full_attention"}, "'layer_types' must be a list of strings"),
    ("gemma2", {"sliding_window": None}, "names sliding layers"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' must be positive"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "sets 'attn_logit_softcapping' to 50.0"),
    ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "one entry per layer type, got 'rope_type'"),
    ("gemma3", {"use_bidirectional_attention": True}, "sets 'use_bidirectional_attention' to True"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "must hold 0 or 1 for each of 4 layers"),
    ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, "must hold 0 or 1"),
    ("phi3", {"partial_rotary_factor": 1.5}, "'partial_rotary_factor' must be above 0 and at most 1, got 1.5"),
    ("phi3", {"partial_rotary_factor": 0}, "'partial_rotary_factor' must be above 0 and at most 1, got 0.0"),
    ("phi3", {"partial_rotary_factor": 1e308}, "'partial_rotary_factor' must be above 0 and at most 1"),
    ("phi3", {"partial_rotary_factor": 10**400}, "'partial_rotary_factor' must be a finite number"),
    ("phi3", {"partial_rotary_factor": 0.45}, "rotates 5 elements of a head of 12; elements are rotated in pairs"),
    ("phi3", {"partial_rotary_factor": 0.05}, "rotates 0 elements of a head of 12"),
    (
        "llama",
        {"rope_scaling": {"type": "yarn", "factor": math.e, "mscale": 1, "mscale_all_dim": -10}},
        "not be negative",
    ),
    ("phi3", {"hidden_size": 50}, "'hidden_size' 50 is not a multiple of 'num_attention_heads' 4"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_what_would_change_the_arithmetic_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read(family, changes)
    assert message in str(caught.value)
    assert "some/config.json" in str(caught.value)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"phi3"}))
@pytest.mark.parametrize("share", [0.5, 0.999, 0.0, -1.0, 1.5])
@pytest.mark.parametrize("place", ["top", "entry"])
def test_only_phi3_rotates_a_part_of_a_head(family: str, share: float, place: str) -> None:
    """Transformers' other families leave `partial_rotary_factor` unread."""

    def changes(value: float) -> dict[str, Any]:
        values = {"partial_rotary_factor": value}
        if place == "top":
            return values
        entry = {"rope_type": "default", "rope_theta": 1e4, **values}
        return {"rope_parameters": {"full_attention": entry} if family == "gemma3" else entry}

    rope = read(family, changes(1.0)).ropes[0]
    assert rope is not None
    assert rope.rotary_dim == read(family).head_dim
    with pytest.raises(ModelError, match=f"'partial_rotary_factor' is {share}; models of this family rotate whole"):
        read(family, changes(share))


def test_another_family_may_rotate_a_part_of_a_head() -> None:
    fields = Fields({**SIZES, "partial_rotary_factor": 0.5}, Path("config.json"))
    config = base_config(fields, "other", (), KeyDefaults(rotates_in_part=True))
    assert config.ropes == (RopeConfig(1e4, 6, None),) * 4


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"phi3"}))
def test_part_of_a_head_is_not_exported(family: str) -> None:
    from dataclasses import replace

    config = replace(read(family, {"head_dim": 12}), dtype="float32")
    partial = tuple(None if rope is None else replace(rope, rotary_dim=6) for rope in config.ropes)
    with pytest.raises(ModelError, match=r"partial_rotary_factor|cannot express this model's ropes"):
        architecture_named(family).config_json(replace(config, ropes=partial))


NUMBERS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
YARN_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_that_are_not_finite_are_refused_by_name(value: float) -> None:
    for key in NUMBERS:
        with pytest.raises(ModelError, match=f"'{key}' must be a finite number"):
            read("phi3", {key: value})
    for key in YARN_NUMBERS:
        with pytest.raises(ModelError, match=f"'{key}' must be a finite number"):
            read("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0, key: value}})
    with pytest.raises(ModelError, match="'short_factor' must be a list of finite numbers"):
        read("phi3", {"rope_scaling": {"type": "su", "short_factor": [value] * 6, "long_factor": [1.0] * 6}})


@pytest.mark.parametrize("entry", [{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}])
def test_gemma3_takes_the_trained_length_of_its_entry(entry: dict[str, Any]) -> None:
    for changes in ({"rope_parameters": {"full_attention": entry}}, {"rope_scaling": entry}):
        config = read(
            "gemma3", {**changes, "original_max_position_embeddings": 32, "layer_types": ["full_attention"] * 4}
        )
        assert config.ropes[0] is not None
        assert isinstance(config.ropes[0].scaling, YarnScaling)
        assert config.ropes[0].scaling.original_max_position_embeddings == 64


KNOWN = {
    "sliding_window": {"mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3"},
    "use_sliding_window": {"qwen2", "qwen3", "smollm3"},
    "sliding_window_pattern": {"gemma3"},
    "no_rope_layers": {"smollm3"},
    "no_rope_layer_interval": {"smollm3"},
    "query_pre_attn_scalar": {"gemma2", "gemma3"},
    "attn_logit_softcapping": {"gemma2"},
    "final_logit_softcapping": {"gemma2", "gemma3"},
    "rope_local_base_freq": {"gemma3"},
    "attention_bias": {"llama", "qwen3", "gemma2", "gemma3", "smollm3"},
    "mlp_bias": {"llama", "smollm3"},
    "hidden_activation": {"gemma2", "gemma3"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_arithmetic_key_is_known_to_the_family_or_refused(family: str) -> None:
    for key, neutral in ARITHMETIC_KEYS.items():
        if family in KNOWN.get(key, set()):
            continue
        for value in (None, *neutral):
            assert read(family, {key: value}).architecture == family
        with pytest.raises(ModelError, match=f"sets '{key}' to 7.5, which changes the model's arithmetic"):
            read(family, {key: 7.5})


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_about_training_and_tools_are_ignored(family: str) -> None:
    harmless = {
        "use_cache": False,
        "attention_dropout": 0.1,
        "pretraining_tp": 2,
        "made_by": "a tool",
        "pad_token_id": 3,
    }
    assert read(family, harmless) == read(family)


def test_a_config_that_the_file_cannot_express_is_not_exported() -> None:
    from dataclasses import replace

    llama = replace(read("llama"), dtype="float32")
    assert architecture_named("llama").config_json(llama)["rope_theta"] == 1e4
    for changes, lost in (
        ({"windows": (5,) * 4}, "windows"),
        ({"qkv_bias": True}, "output_bias"),
        ({"attn_soft_cap": 3.0, "final_soft_cap": 2.0}, "attn_soft_cap, final_soft_cap"),
    ):
        with pytest.raises(ModelError, match=f"'llama' cannot express this model's {lost}"):
            architecture_named("llama").config_json(replace(llama, **changes))
    with pytest.raises(ModelError, match="holds one rotary embedding; this model has 2"):
        ropes = (*llama.ropes[:3], RopeConfig(5.0, 12, None))
        architecture_named("llama").config_json(replace(llama, ropes=ropes))
    gemma = replace(read("gemma2"), dtype="float32", softmax_scale=0.3)
    with pytest.raises(ModelError, match=r"softmax_scale=0\.3: it is not 1 / sqrt of a whole number"):
        architecture_named("gemma2").config_json(gemma)


def test_divisors_of_a_gguf_file_are_exported_as_longrope() -> None:
    from dataclasses import replace

    scaling = DivisorScaling((1.0, 1.0, 2.0, 4.0, 8.0, 8.0))
    config = replace(read("llama"), dtype="float32", ropes=(RopeConfig(5e5, 12, scaling),) * 4)
    values = architecture_named("llama").config_json(config)
    assert values["rope_scaling"]["long_factor"] == list(scaling.divisors)
    found = architecture_named("llama").read_config(Fields(values, Path("config.json")), ())
    assert found.ropes == config.ropes
