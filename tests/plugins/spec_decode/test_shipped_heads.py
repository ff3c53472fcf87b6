"""The heads that come with tokenloom: small, told apart by their target, and of use on the default model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokenloom_spec_decode
from tests.plugins.spec_decode.recorded_drafts import MODEL
from tokenloom import LLM, SamplingParams
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.testing.tiny_engine import drafter_context
from tokenloom_spec_decode.eagle3 import Eagle3Config
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig
from tokenloom_spec_decode.medusa import MedusaConfig
from tokenloom_spec_decode.shipped_heads import shipped_head

HEADS = Path(tokenloom_spec_decode.__file__).parent / "heads"
POLICY = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig())
MAX_BYTES = 24 * 10**6


def test_each_head_says_whose_it_is_and_how_it_was_made() -> None:
    found = {}
    for folder in HEADS.iterdir():
        target = json.loads((folder / "config.json").read_text())["tokenloom_target"]
        found[target["drafter"]] = target["fingerprint"]
        card = (folder / "README.md").read_text()
        assert card.startswith(f"# `{target['drafter']}` head for {target['name']}\n")
        assert "tokenloom train-drafter kind=" in card
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert set(found) == {"medusa", "eagle3"}
    assert len(set(found.values())) == 1
    assert sum(path.stat().st_size for path in HEADS.rglob("*")) < MAX_BYTES


@pytest.mark.parametrize("config", [Eagle3Config(policy=POLICY), MedusaConfig(policy=POLICY)])
def test_another_model_needs_a_source(config: Eagle3Config | MedusaConfig) -> None:
    with pytest.raises(
        ConfigError, match=r"set spec_decode\.source .* or train .* the (eagle3|medusa) heads .* are for"
    ):
        config.build(drafter_context(MODEL))


def test_a_folder_without_heads_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^eagle needs one$"):
        shipped_head("eagle", tmp_path, "eagle needs one", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["medusa", "eagle3"])
def test_the_default_model_drafts_without_a_source(drafter: str) -> None:
    """In fp32 its words stay the same."""
    prompt = "The sun is a star. The moon is"
    params = SamplingParams(temperature=0.0, max_tokens=24)
    answers = []
    for name in ("none", drafter):
        with LLM(overrides=["model.dtype=float32", "cache.num_blocks=16", f"spec_decode={name}"]) as llm:
            answers.append(llm.generate(prompt, params)[0].outputs[0].token_ids)
            num_accepted = llm.engine.stats.num_accepted_tokens
    assert answers[0] == answers[1]
    assert num_accepted > 2
