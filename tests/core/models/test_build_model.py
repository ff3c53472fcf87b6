"""From checkpoint to model: what is stored how, in which order it is loaded, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights, Quantizer
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.build import build_model
from tokenloom.models.causal_lm import CausalLM, assign_groups
from tokenloom.parallel import ParallelContext

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


@final
class _Recorder(EmbeddingWeights):
    """Storage that writes down what happens to it."""

    def __init__(self, spec: LayerSpec) -> None:
        self.spec = spec
        self.events: list[str] = []
        self.dtypes: set[torch.dtype] = set()

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        self.events.append(f"{shard}.{parameter}")
        self.dtypes.add(tensor.dtype)

    def finalize(self) -> None:
        self.events.append("finalize")

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        return 1000


@final
class _RecordingQuantizer(Quantizer):
    """Covers layers whose name contains one of `words`."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.asked: list[LayerSpec] = []
        self.made: dict[str, _Recorder] = {}

    def covers(self, spec: LayerSpec) -> bool:
        self.asked.append(spec)
        return any(word in spec.name for word in self._words)

    def create_linear(self, spec: LayerSpec) -> LinearWeights:
        assert spec.kind == "linear"
        return self.made.setdefault(spec.name, _Recorder(spec))

    def create_embedding(self, spec: LayerSpec) -> EmbeddingWeights:
        assert spec.kind == "embedding"
        return self.made.setdefault(spec.name, _Recorder(spec))

    @property
    def fingerprint(self) -> str:
        return "recording"


def _build(folder: Path, quantizer: Quantizer | None = None, **options: Any) -> CausalLM:
    return build_model(
        open_checkpoint(folder),
        quantizer=quantizer or _RecordingQuantizer(),
        dtype=options.pop("dtype", torch.float32),
        device=CPU,
        parallel=ParallelContext(),
        **options,
    )


def _rewrite(folder: Path, change: Callable[[Tensors], object], config: dict[str, Any] | None = None) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **(config or {})}))


def test_build_model_asks_the_quantizer_about_every_matrix_with_its_shards_and_axis(tmp_path: Path) -> None:
    quantizer = _RecordingQuantizer()
    _build(write_tiny_llama(tmp_path, num_layers=1, tied=False, attention_bias=True), quantizer)
    facts = [
        (
            spec.name,
            spec.kind,
            (spec.in_features, spec.out_features),
            tuple((shard.name, shard.out_features) for shard in spec.shards),
            spec.has_bias,
            spec.axis,
            spec.tied,
        )
        for spec in quantizer.asked
    ]
    qkv, gate_up = (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)), (("gate_proj", 128), ("up_proj", 128))
    name = "model.layers.0"
    assert facts == [
        ("model.embed_tokens", "embedding", (64, 256), (("embed_tokens", 256),), False, "output", False),
        (f"{name}.self_attn.qkv_proj", "linear", (64, 128), qkv, True, "output", False),
        (f"{name}.self_attn.o_proj", "linear", (64, 64), (("o_proj", 64),), True, "input", False),
        (f"{name}.mlp.gate_up_proj", "linear", (64, 256), gate_up, False, "output", False),
        (f"{name}.mlp.down_proj", "linear", (128, 64), (("down_proj", 64),), False, "input", False),
        ("lm_head", "linear", (64, 256), (("lm_head", 256),), False, "output", False),
    ]
    assert all(spec.parallel == ParallelContext(0, 1) for spec in quantizer.asked)


def test_build_model_tells_the_quantizer_of_a_tied_embedding(tmp_path: Path) -> None:
    quantizer = _RecordingQuantizer()
    _build(write_tiny_llama(tmp_path, tied=True), quantizer)
    assert [spec.name for spec in quantizer.asked if spec.tied] == ["model.embed_tokens"]
    assert "lm_head" not in [spec.name for spec in quantizer.asked]


def test_build_model_gives_the_quantizer_each_tensor_as_stored_and_finalizes_once(tmp_path: Path) -> None:
    quantizer = _RecordingQuantizer("qkv_proj", "embed_tokens")
    folder = write_tiny_llama(tmp_path, attention_bias=True, dtype=torch.bfloat16)
    model = _build(folder, quantizer)
    assert sorted(quantizer.made) == [
        "model.embed_tokens",
        "model.layers.0.self_attn.qkv_proj",
        "model.layers.1.self_attn.qkv_proj",
    ]
    for name, made in quantizer.made.items():
        parts = ["embed_tokens"] if "embed" in name else ["q_proj", "k_proj", "v_proj"]
        parameters = ["weight"] if "embed" in name else ["weight", "bias"]
        assert sorted(made.events[:-1]) == sorted(f"{part}.{parameter}" for part in parts for parameter in parameters)
        assert made.events[-1] == "finalize"
        assert made.dtypes == {torch.bfloat16}
    assert model.num_weight_bytes > 3000


def test_build_model_leaves_skipped_layers_dense(tmp_path: Path) -> None:
    quantizer = _RecordingQuantizer("proj", "embed_tokens")
    folder = write_tiny_llama(tmp_path)
    _rewrite(folder, lambda tensors: None, {"quantization_config": {"modules_to_not_convert": ["model.layers.0"]}})
    _build(folder, quantizer, skip=("lm_head", "model.layers.1.mlp.down_proj"))
    assert list(quantizer.made) == [
        "model.layers.1.self_attn.qkv_proj",
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.mlp.gate_up_proj",
    ]


def test_build_model_reports_progress_tensor_by_tensor(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    calls: list[tuple[str, int, int]] = []
    _build(folder, progress=lambda stage, done, total: calls.append((stage, done, total)))
    num_tensors = len(open_checkpoint(folder).tensor_names())
    assert calls == [("loading weights", done, num_tensors) for done in range(num_tensors + 1)]


def test_build_model_loads_in_another_dtype(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, dtype=torch.float16)
    sizes = {dtype: _build(folder, dtype=dtype).num_weight_bytes for dtype in (torch.float32, torch.bfloat16)}
    assert sizes[torch.float32] == 2 * sizes[torch.bfloat16]
    assert _build(folder, dtype=torch.bfloat16).embed(torch.tensor([1])).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ],
)
def test_build_model_names_a_tensor_of_the_wrong_shape_with_file_and_shapes(tmp_path: Path, name: str) -> None:
    folder = write_tiny_llama(tmp_path, tied=False, attention_bias=True)
    found: list[int] = []

    def shorten(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].contiguous()
        found.extend(tensors[name].shape)

    _rewrite(folder, shorten)
    expected = [found[0] + 1, *found[1:]]
    with pytest.raises(ModelError) as error:
        _build(folder)
    message = str(error.value)
    assert str(folder / "model.safetensors") in message
    assert f"tensor {name!r} has shape {found}" in message
    assert f"asks for {expected}" in message


def test_build_model_names_a_missing_tensor_and_its_near_match(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    right, wrong = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_prj.weight"
    _rewrite(folder, lambda tensors: tensors.update({wrong: tensors.pop(right)}))
    with pytest.raises(ModelError) as error:
        _build(folder)
    message = str(error.value)
    assert f"lacks tensor {right!r} and holds tensor {wrong!r} that the model has no place for." in message
    assert message.endswith(f"Did you mean {wrong!r}?")


def test_build_model_misses_a_layer_that_the_config_counts(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_layers=1)
    _rewrite(folder, lambda tensors: None, {"num_hidden_layers": 2})
    with pytest.raises(ModelError, match=r"lacks tensors 'model\.layers\.1\..*\(9 tensors\)"):
        _build(folder)


def test_build_model_refuses_a_layer_that_the_config_does_not_count(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_layers=2)
    _rewrite(folder, lambda tensors: None, {"num_hidden_layers": 1})
    with pytest.raises(ModelError, match=r"holds tensors 'model\.layers\.1\..*no place for"):
        _build(folder)
    with pytest.raises(ModelError, match=r"no place for"):
        _build(folder, layers=range(1))


def test_build_model_refuses_a_bias_that_the_config_denies(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, attention_bias=True)
    _rewrite(folder, lambda tensors: None, {"attention_bias": False})
    with pytest.raises(ModelError, match=r"self_attn\.k_proj\.bias.*no place for"):
        _build(folder)


def test_build_model_misses_a_shard_that_a_quantizer_should_get(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    _rewrite(folder, lambda tensors: tensors.pop("model.layers.0.self_attn.k_proj.weight"))
    with pytest.raises(ModelError, match=r"lacks tensor 'model\.layers\.0\.self_attn\.k_proj'"):
        _build(folder, _RecordingQuantizer("qkv_proj"))


def test_build_model_lets_a_quantizer_have_parameters_of_its_own(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_layers=1)

    def pack(tensors: Tensors) -> None:
        name = "model.layers.0.mlp.down_proj"
        tensors[f"{name}.qweight"] = tensors.pop(f"{name}.weight").to(torch.int32)
        tensors[f"{name}.scales"] = torch.ones(3, 5)

    _rewrite(folder, pack, {"quantization_config": {"quant_method": "packed"}})
    quantizer = _RecordingQuantizer("down_proj")
    _build(folder, quantizer)
    made = quantizer.made["model.layers.0.mlp.down_proj"]
    assert sorted(made.events[:-1]) == ["down_proj.qweight", "down_proj.scales"]
    assert made.dtypes == {torch.int32, torch.float32}
    with pytest.raises(ModelError, match=r"quant_method='packed'.*choose a quant plugin that reads this format"):
        _build(folder)


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((), ()),
        ((None, None), (0, 0)),
        ((4, None, 4, 8), (0, 1, 0, 2)),
        ((None, 4, None), (0, 1, 0)),
    ],
)
def test_assign_groups_numbers_windows_as_they_occur(windows: tuple[int | None, ...], groups: tuple[int, ...]) -> None:
    assert assign_groups(windows) == groups
