"""Files of Medusa heads that do not fit, or are no such files: refused with the tensor's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.plugins.spec_decode.tiny_medusa import TinyMedusa
from tokenloom.errors import ModelError
from tokenloom_spec_decode.medusa_checkpoint import TargetSizes, read_medusa

TARGET = TargetSizes(32, 64, torch.float32, torch.device("cpu"))
Tensors = dict[str, torch.Tensor]


def test_heads_come_in_the_targets_dtype_and_share_what_the_file_shares(tmp_path: Path) -> None:
    target = TargetSizes(32, 64, torch.bfloat16, torch.device("cpu"))
    own = read_medusa(TinyMedusa().write(tmp_path / "own"), target)
    shared = read_medusa(TinyMedusa().write(tmp_path / "shared", "vllm shared"), target)
    lent = read_medusa(TinyMedusa().write(tmp_path / "lent", "target's head"), target)
    assert own.layers[2][0].weight.dtype == torch.bfloat16
    assert [weights.outputs[0] is weights.outputs[1] for weights in (own, shared, lent)] == [False, True, True]
    assert lent.outputs == (None, None, None)
    block, output = 2 * (32 * 32 + 32), 2 * 64 * 32
    assert [w.num_bytes for w in (own, shared, lent)] == [3 * (block + output), 3 * block + output, 3 * block]


def test_rows_that_pad_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    target = TargetSizes(32, 60, torch.float32, torch.device("cpu"))
    output = read_medusa(TinyMedusa().write(tmp_path), target).outputs[0]
    assert output is not None
    assert output.shape == (60, 32)


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        ("vllm", lambda t: t.clear(), r"must hold heads 0, 1, \.\.\. with a layer each, got heads \[\]"),
        ("vllm", lambda t: t.pop("blocks.1.layers.0.weight"), "lacks the weight of layer 0"),
        ("vllm", lambda t: [t.pop(n) for n in list(t) if n.startswith("blocks.1.")], r"got heads \[0, 1, 2\]"),
        ("vllm", lambda t: t.update({"fc.weight": torch.ones(2)}), "'fc.weight' that no Medusa head has"),
        (
            "vllm",
            lambda t: t.update({"lm_heads.0.weight": torch.ones(50, 32)}),
            r"'lm_heads.0.weight' is torch.float32 of shape \[50, 32\].*have \[64, 32\]",
        ),
        (
            "vllm",
            lambda t: t.update({"blocks.0.layers.0.weight": torch.ones(32, 32, dtype=torch.int32)}),
            "is torch.int32 of shape",
        ),
        ("truncated", lambda t: t.update({"token_map": torch.tensor([1, 64])}), "ids from 0 to 63"),
        ("truncated", lambda t: t.update({"token_map": torch.zeros(32, dtype=torch.int64)}), "names a token twice"),
        ("truncated", lambda t: t.pop("lm_heads.2.weight"), r"heads \[2\] have no output matrix for the rows"),
    ],
)
def test_what_does_not_fit_is_refused(
    layout: str, change: Callable[[Tensors], object], message: str, tmp_path: Path
) -> None:
    heads = TinyMedusa()
    folder = heads.write(tmp_path, layout)
    tensors = {name: tensor.contiguous() for name, tensor in heads.tensors(layout).items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        read_medusa(folder, TARGET)


@pytest.mark.parametrize("stated", ["[]", "[0.5]", "[[1.5]]", '[["x"]]', "[[]]"])
def test_accuracies_that_are_none_are_refused(stated: str, tmp_path: Path) -> None:
    folder = TinyMedusa().write(tmp_path)
    (folder / "config.json").write_text('{"medusa_head_accuracies": ' + stated + "}")
    if stated == "[]":
        assert read_medusa(folder, TARGET).accuracies == ()
        return
    with pytest.raises(ModelError, match="must be a list of shares from 0 to 1 for each head"):
        read_medusa(folder, TARGET)


def test_accuracies_of_other_heads_are_refused(tmp_path: Path) -> None:
    folder = TinyMedusa(config={"medusa_head_accuracies": [[0.5]] * 4}).write(tmp_path)
    with pytest.raises(ModelError, match="states the accuracies of 4 heads; the file holds 3"):
        read_medusa(folder, TARGET)


def test_a_folder_without_heads_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none of medusa_lm_head\.safetensors, medusa_lm_head\.pt"):
        read_medusa(tmp_path, TARGET)
