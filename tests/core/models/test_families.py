"""Every family against Transformers on tiny random checkpoints that Transformers wrote: fp32 logits within 1e-4."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.core.models.family_checkpoints import FAMILIES, VOCAB_SIZE, oracle_logits, write_family
from tokenloom.interfaces.attention import AttentionContext
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.model_config import DivisorScaling, RopeConfig
from tokenloom.models.decoder import Decoder
from tokenloom.models.registry import architecture_named
from tokenloom_attention.torch_sdpa.backend import TorchSdpaBackend, TorchSdpaConfig

MAX_LEN = 80
PROMPT = [int(token) for token in torch.randint(0, VOCAB_SIZE, (61,), generator=torch.Generator().manual_seed(5))]

YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def longrope(num_pairs: int, **more: Any) -> dict[str, Any]:
    divisors = {
        "short_factor": [1.0 + 0.05 * pair for pair in range(num_pairs)],
        "long_factor": [1.5 + 1.25 * pair for pair in range(num_pairs)],
    }
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 48, **divisors, **more}


@dataclass(frozen=True, slots=True)
class Variant:
    """A checkpoint: a family, settings over its own, and the longest sequence that our model is built for."""

    family: str
    settings: dict[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None
    num_tokens: int = len(PROMPT)


PHI3_ROPE = {"original_max_position_embeddings": 48, "rope_parameters": longrope(6)}
PHI4_ROPE = {"original_max_position_embeddings": 48, "rope_parameters": longrope(3, partial_rotary_factor=0.5)}

VARIANTS: dict[str, Variant] = {
    **{name: Variant(name) for name in FAMILIES},
    "llama-tied": Variant("llama", {"tie_word_embeddings": True}),
    "llama-full-heads": Variant("llama", {"num_key_value_heads": 4}),
    "llama-one-kv-head": Variant("llama", {"num_key_value_heads": 1}),
    "llama-biases": Variant("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": Variant("llama", {"head_dim": 22}),
    "llama-linear": Variant("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "llama-llama3": Variant("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": Variant("llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": Variant(
        "llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False}}
    ),
    "llama-yarn-betas": Variant(
        "llama", {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 2, "beta_slow": 0.5}}
    ),
    "llama-longrope": Variant("llama", {"rope_parameters": longrope(6)}),
    "mistral-no-window": Variant("mistral", {"sliding_window": None}),
    "mistral-window-4": Variant("mistral", {"sliding_window": 4}),
    "mistral-window-beyond": Variant("mistral", {"sliding_window": 100, "tie_word_embeddings": True}),
    "qwen2-tied": Variant("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2-window": Variant("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2-window-off": Variant("qwen2", {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}),
    "qwen2-layer-types": Variant(
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
    ),
    "qwen2-yarn": Variant("qwen2", {"rope_parameters": YARN}),
    "qwen3-biases": Variant("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-window": Variant("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "gemma2-no-caps": Variant("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2-tight-caps": Variant("gemma2", {"attn_logit_softcapping": 0.8, "final_logit_softcapping": 1.5}),
    "gemma2-untied": Variant("gemma2", {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma2-layer-types": Variant(
        "gemma2", {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    ),
    "gemma3-linear": Variant(
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            },
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3-layer-types": Variant(
        "gemma3",
        {"num_hidden_layers": 2, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "phi3-window": Variant("phi3", {"sliding_window": 7}),
    "phi3-partial": Variant("phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    "phi3-short": Variant("phi3", PHI3_ROPE, max_model_len=48, num_tokens=47),
    "phi3-long": Variant("phi3", PHI3_ROPE, max_model_len=len(PROMPT)),
    "phi3-partial-long": Variant("phi3", {**PHI4_ROPE, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "smollm3-untied": Variant("smollm3", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "smollm3-layers": Variant("smollm3", {"no_rope_layers": [0, 1, 1, 0]}),
    "smollm3-window": Variant(
        "smollm3", {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 2}
    ),
}
HARD = (*FAMILIES, "gemma3-linear", "phi3-partial-long", "qwen2-window", "smollm3-window")
"""One of each kind of attention and position; what depends on how tokens are fed is tested on these."""


@dataclass(frozen=True, slots=True)
class Case:
    """A variant's folder, our model of it, and Transformers' logits of a prompt."""

    folder: Path
    model: Decoder
    token_ids: list[int]
    expected: torch.Tensor  # [T, V]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Makes each variant once."""
    made: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in made:
            variant = VARIANTS[name]
            folder = write_family(tmp_path_factory.mktemp("family"), variant.family, variant.settings)
            model = build(folder, max_model_len=variant.max_model_len)
            token_ids = PROMPT[: variant.num_tokens]
            made[name] = Case(folder, model, token_ids, oracle_logits(folder, token_ids))
        return made[name]

    return get


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-4)


def torch_sdpa(model: Decoder, num_sequences: int) -> TorchSdpaBackend:
    config = model.config
    return TorchSdpaConfig().build(
        AttentionContext(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=1,
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_num_seqs=num_sequences,
            max_num_batched_tokens=256,
            max_model_len=MAX_LEN,
        )
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_prefill_logits_equal_transformers(case: Callable[[str], Case], name: str) -> None:
    found = case(name)
    assert found.expected.std() > 0.3, "logits this flat would hide every difference"
    run = Sequences(found.model, 1, MAX_LEN, attention=torch_sdpa(found.model, 1))
    assert_near(torch.cat([run.feed(found.token_ids[:40]), run.feed(found.token_ids[40:])]), found.expected)


@pytest.mark.parametrize("name", HARD)
def test_logits_do_not_come_from_the_attention_plugin_alone(case: Callable[[str], Case], name: str) -> None:
    """The same through a mask that is written out in full: what the plugin cannot hide."""
    found = case(name)
    assert_near(Sequences(found.model, 1, MAX_LEN).feed(found.token_ids), found.expected)


def test_every_variant_changes_the_logits_of_its_family(case: Callable[[str], Case]) -> None:
    """Or the tests above and below would not see whether its setting is honoured."""
    same = [
        name
        for name, variant in VARIANTS.items()
        if variant.settings
        and torch.allclose(case(name).expected[:47], case(variant.family).expected[:47], rtol=0.0, atol=1e-2)
    ]
    assert same == ["qwen2-window-off"]


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("name", HARD)
def test_chunked_and_decoded_logits_equal_transformers(case: Callable[[str], Case], name: str, chunk: int) -> None:
    found = case(name)
    run = Sequences(found.model, 1, MAX_LEN, attention=torch_sdpa(found.model, 1))
    token_ids = found.token_ids
    parts = [run.feed(token_ids[start : start + chunk]) for start in range(0, len(token_ids), chunk)]
    assert_near(torch.cat(parts), found.expected)


@pytest.mark.parametrize("name", HARD)
def test_ragged_batches_give_the_logits_of_each_sequence_alone(case: Callable[[str], Case], name: str) -> None:
    found = case(name)
    # Longer than the trained length of the longrope variants, as Transformers decides by the length it is given.
    prompts = [PROMPT[:50], PROMPT[3:61], list(reversed(PROMPT))]
    expected = [oracle_logits(found.folder, prompt) for prompt in prompts]
    run = Sequences(found.model, 3, MAX_LEN, attention=torch_sdpa(found.model, 3))
    steps: Sequence[tuple[int, int, int]] = ((31, 0, 61), (1, 40, 0), (17, 1, 0), (1, 17, 0))
    fed = [0, 0, 0]
    for counts in steps:
        spans = [range(done, done + count) for done, count in zip(fed, counts)]
        logits = run.feed(*([prompt[i] for i in span] for prompt, span in zip(prompts, spans)))
        assert_near(logits, torch.cat([rows[span.start : span.stop] for rows, span in zip(expected, spans)]))
        fed = [span.stop for span in spans]
    assert fed == [50, 58, 61]


@pytest.mark.parametrize("name", ["gemma2", "phi3", "qwen3"])
def test_sharded_checkpoints_load_as_single_ones_do(case: Callable[[str], Case], tmp_path: Path, name: str) -> None:
    folder = write_family(tmp_path, name, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    found = case(name)
    logits = Sequences(build(folder), 1, MAX_LEN).feed(found.token_ids)
    torch.testing.assert_close(logits, Sequences(found.model, 1, MAX_LEN).feed(found.token_ids), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", VARIANTS)
def test_exported_config_gives_the_same_model_to_us_and_to_transformers(
    case: Callable[[str], Case], tmp_path: Path, name: str
) -> None:
    found = case(name)
    config = found.model.config
    values = architecture_named(config.architecture).config_json(config)
    (tmp_path / "config.json").write_text(json.dumps(values))
    shutil.copy(found.folder / "model.safetensors", tmp_path)
    assert open_checkpoint(tmp_path).config == config
    torch.testing.assert_close(oracle_logits(tmp_path, found.token_ids), found.expected, rtol=0.0, atol=0.0)


def test_divisors_of_a_gguf_file_mean_the_same_to_transformers_once_exported(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    found = case("llama")
    rope = RopeConfig(1e4, 12, DivisorScaling((1.0, 1.0, 1.5, 3.0, 8.0, 8.0)))
    config = replace(found.model.config, ropes=(rope,) * 3)
    (tmp_path / "config.json").write_text(json.dumps(architecture_named("llama").config_json(config)))
    shutil.copy(found.folder / "model.safetensors", tmp_path)
    expected = oracle_logits(tmp_path, found.token_ids)
    assert not torch.allclose(expected, found.expected, rtol=0.0, atol=0.1)
    assert_near(Sequences(build(tmp_path), 1, MAX_LEN).feed(found.token_ids), expected)


def test_text_part_of_a_model_for_text_and_images_equals_transformers(tmp_path: Path) -> None:
    import transformers

    text = transformers.Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=20,
        sliding_window=7,
        max_position_embeddings=256,
    )
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=14, patch_size=7
    )
    whole = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    oracle = transformers.Gemma3ForConditionalGeneration(whole).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in oracle.parameters():
            std = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
        oracle.save_pretrained(tmp_path)
        is_image = torch.zeros(1, len(PROMPT), dtype=torch.int64)
        expected = oracle(torch.tensor([PROMPT]), token_type_ids=is_image).logits[0]
    assert expected.std() > 0.3
    assert_near(Sequences(build(tmp_path), 1, MAX_LEN).feed(PROMPT), expected)
