"""Training goes on from a head that was trained before: its weights, its tokens, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.core.drafter_training.tiny_corpus import vocabulary_of
from tokenloom.drafter_training.acceptance import Acceptance
from tokenloom.drafter_training.eagle3_network import Eagle3Network
from tokenloom.drafter_training.head_files import HeadRecord, write_head
from tokenloom.drafter_training.head_start import read_head_start
from tokenloom.drafter_training.medusa_network import MedusaNetwork
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import TrainableHead
from tokenloom.errors import ConfigError


def build(kind: str, target: Target, num_drafts: int = 2) -> TrainableHead:
    """With weights that float16 holds exactly."""
    network = Eagle3Network if kind == "eagle3" else MedusaNetwork
    head = network(target, vocabulary_of(target), num_drafts)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape).half())
    return head


def write(kind: str, target: Target, folder: Path) -> TrainableHead:
    """A head in a folder."""
    head = build(kind, target)
    folder.mkdir()
    record = HeadRecord(kind, "tiny", target.fingerprint, "command", ())
    write_head(folder, head, record, Acceptance(1, (0.5, 0.5), ((0.5, 0.1, 0.1),) * 2))
    return head


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_head_is_taken_over_weight_for_weight(kind: str, target: Target, tmp_path: Path) -> None:
    torch.manual_seed(2)
    written, other = write(kind, target, tmp_path / "head"), build(kind, target)
    start = read_head_start(tmp_path / "head", kind, target.fingerprint)
    start.apply(other)
    assert start.draft_ids.tolist() == vocabulary_of(target).ids.tolist()
    for name, tensor in written.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_heads_of_another_kind_target_or_form_are_refused(target: Target, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    write("medusa", target, folder)
    with pytest.raises(ConfigError, match="is a head of kind 'medusa' for 'tiny'; it must be of kind 'eagle3'"):
        read_head_start(folder, "eagle3", target.fingerprint)
    with pytest.raises(ConfigError, match="trained for this very model"):
        read_head_start(folder, "medusa", "another")
    start = read_head_start(folder, "medusa", target.fingerprint)
    with pytest.raises(ConfigError, match="holds a head of another form"):
        start.apply(build("medusa", target, num_drafts=3))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"cannot read model\.safetensors"):
        read_head_start(folder, "medusa", target.fingerprint)
    assert json.loads((folder / "config.json").read_text())["tokenloom_target"]["drafter"] == "medusa"
