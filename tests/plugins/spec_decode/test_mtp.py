"""Multi-token-prediction modules in both layouts: in the engine they draft what plain PyTorch says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.plugins.spec_decode.recorded_drafts import MODEL, chain_of, run_twice, tree_of
from tests.plugins.spec_decode.tiny_mtp import TinyMtp
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.testing import SpecDecodeSuite
from tokenloom.testing.tiny_engine import TinySettings, drafter_context
from tokenloom_spec_decode.eagle_drafter import EagleDrafter
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.mtp import MtpConfig

POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
EMBEDDING = MODEL.embed(torch.arange(MODEL.vocab_size))
TARGET_HEAD = MODEL.compute_logits(torch.eye(MODEL.hidden_size)).T


class TestMtp(SpecDecodeSuite):
    plugin = "mtp"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _module(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.settings = {"source": str(TinyMtp("deepseek").write(tmp_path_factory.mktemp("module")))}


def build(folder: Path, **settings: Any) -> EagleDrafter:
    return MtpConfig(source=str(folder), policy=POLICY, **settings).build(drafter_context(MODEL))


@pytest.mark.parametrize(
    ("layout", "own_head", "width", "settings"),
    [
        ("deepseek", False, 1, {"num_blocks": 20, "preempt_mode": "swap"}),
        ("deepseek", True, 2, {"budget": 9}),
        ("qwen", False, 1, {"block_size": 1}),
        ("qwen", False, 3, {"num_blocks": 24}),
    ],
)
def test_mtp_drafts_what_plain_pytorch_says(
    layout: str, own_head: bool, width: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    module = TinyMtp(layout, own_head=own_head)
    drafter = build(module.write(tmp_path), tree_width=width)
    assert drafter.needs().hidden_layers == (-1,)
    assert drafter.needs().kv_groups[0].lookahead == 1
    recorder, _ = run_twice(drafter, TinySettings(**settings), most_drafts=4 if width == 1 else 7)
    assert len(recorder.proposed) > 40
    for tokens, max_drafts, _, proposal in recorder.proposed[::5]:
        log_probs = partial(module.log_probs, recorder.features(tokens, [-1]), tokens, EMBEDDING, TARGET_HEAD)
        as_tree = width > 1 and max_drafts > 1
        expected = tree_of(log_probs, max_drafts, width) if as_tree else chain_of(log_probs, max_drafts)
        assert (proposal.token_ids, proposal.parents) == (expected.token_ids, expected.parents), f"after {tokens}"


@pytest.mark.parametrize(
    ("layout", "tensors", "message"),
    [
        ("deepseek", {"model.layers.3.eh_proj.weight": torch.ones(1)}, "holds more than one multi-token-prediction"),
        ("qwen", {"mtp.layers.1.input_layernorm.weight": torch.ones(1)}, "holds more than one multi-token-prediction"),
        ("deepseek", {"model.layers.2.mlp.experts.0.up_proj.weight": torch.ones(1)}, "that the head has no place for"),
        ("qwen", {"mtp.fc.weight": torch.ones(3, 3)}, r"has 'fc.weight' as torch.float32 of shape \[3, 3\]"),
    ],
)
def test_modules_that_do_not_fit_are_refused(
    layout: str, tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        build(TinyMtp(layout).write(tmp_path, **tensors))


def test_a_model_without_a_module_says_where_it_would_be(tmp_path: Path) -> None:
    folder = TinyMtp("qwen").write(tmp_path)
    save_file({"model.embed_tokens.weight": EMBEDDING}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"neither model\.layers\.2\.eh_proj\.weight, behind the target's 2 layers"):
        build(folder)


def test_a_module_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"set spec_decode\.source"):
        MtpConfig(policy=POLICY).build(drafter_context(MODEL))
