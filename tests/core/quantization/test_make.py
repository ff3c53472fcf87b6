"""Whole checkpoints: made, read back by the plugins, gone on with, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.checkpoint_packing import PROMPT, load_model
from tests.tiny_model import write_tiny_llama
from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ConfigError, ModelError
from tokenloom.interfaces.quant import QuantConfig
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.models.skip_list import part_names
from tokenloom.quantization.awq import AWQ
from tokenloom.quantization.formats import WRITERS
from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.layer_rounding import LayerRounding, RoundedLayer
from tokenloom.quantization.layer_runner import linear_layers
from tokenloom.quantization.make import Made, quantize_checkpoint
from tokenloom.quantization.method import RoundingMethod
from tokenloom.quantization.model_card import model_card
from tokenloom.quantization.plan import USUAL_GROUPS, QuantizePlan, blocks_before, row_ranges
from tokenloom.quantization.rounded_weight import RoundingScheme
from tokenloom.quantization.rtn import RoundToNearest
from tokenloom.quantization.smoothquant import SmoothQuant
from tokenloom.quantization.work_folder import forget_work
from tokenloom.quantization.writer import usual_group_size
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.compressed_tensors import CompressedTensorsConfig
from tokenloom_quant.gptq import GPTQConfig
from tokenloom_quant.none import NoneConfig

READERS: dict[str, QuantConfig] = {
    "awq": AWQConfig(weights="dense"),
    "gptq": GPTQConfig(weights="dense"),
    "compressed-tensors": CompressedTensorsConfig(weights="dense"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder, head_dim=32, num_heads=4, num_kv_heads=2, attention_bias=True, with_tokenizer=True)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{number} times {number} is {number * number}. " for number in range(200)))
    return file


def plan(
    text: Path,
    method: RoundingMethod,
    output_format: str = "compressed-tensors",
    bits: int = 4,
    group_size: int = 32,
    *,
    symmetric: bool = True,
) -> QuantizePlan:
    scheme = RoundingScheme(bits, group_size, symmetric, torch.float32)
    return QuantizePlan(method, WRITERS[output_format], scheme, calibration=text, num_samples=4, sample_tokens=64)


@dataclass
class Recorded:
    """Decoder layers as the maker had them."""

    layers: list[RoundedLayer] = field(default_factory=list)

    def write_dense(self, model: Path, folder: Path) -> Path:
        """The model with the maker's own numbers."""
        folder.mkdir()
        (folder / "config.json").write_text((model / "config.json").read_text())
        tensors = load_file(model / "model.safetensors")
        specs = {linear.spec.name: linear.spec for linear in linear_layers(open_checkpoint(model))}
        for layer in self.layers:
            tensors |= {f"{name}.weight": weight for name, weight in layer.norms.items()}
            for name, weight in layer.weights.items():
                ranges = row_ranges([shard.out_features for shard in specs[name].shards])
                for part, (start, stop) in zip(part_names(specs[name]), ranges):
                    tensors[f"{part}.weight"] = weight.dequantized()[start:stop].contiguous()
                    if name in layer.biases:
                        tensors[f"{part}.bias"] = layer.biases[name][start:stop].contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found, run = Recorded(), LayerRounding.run

    def recording(rounding: LayerRounding) -> RoundedLayer:
        found.layers.append(run(rounding))
        return found.layers[-1]

    monkeypatch.setattr(LayerRounding, "run", recording)
    return found


@contextmanager
def open_checkpoint_of(model: Path) -> Iterator[Checkpoint]:
    checkpoint = open_checkpoint(model)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def make(model: Path, target: Path, wanted: QuantizePlan) -> Made:
    with open_checkpoint_of(model) as checkpoint:
        return quantize_checkpoint(checkpoint, target, wanted)


def logits(folder: Path, config: QuantConfig) -> torch.Tensor:
    return Sequences(load_model(folder, config), 1, 128).feed(PROMPT)


WEIGHT_ONLY = [
    ("awq", 4, 32, False),
    ("awq", 4, -1, True),
    ("compressed-tensors", 4, 32, True),
    ("compressed-tensors", 4, 32, False),
    ("compressed-tensors", 8, -1, True),
    ("compressed-tensors", 8, -1, False),
    ("gptq", 2, 32, True),
    ("gptq", 3, 64, False),
    ("gptq", 4, 48, False),  # the last group is shorter
    ("gptq", 8, -1, True),
]


@pytest.mark.parametrize("method", [RoundToNearest(), GPTQ(), AWQ(num_ratios=4)], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("output_format", "bits", "group_size", "symmetric"), WEIGHT_ONLY)
def test_readers_give_what_the_maker_had(
    recorded: Recorded,
    model: Path,
    text: Path,
    tmp_path: Path,
    method: RoundingMethod,
    output_format: str,
    bits: int,
    group_size: int,
    symmetric: bool,
) -> None:
    wanted = plan(text, method, output_format, bits, group_size, symmetric=symmetric)
    made = make(model, tmp_path / "made", wanted)
    dense = recorded.write_dense(model, tmp_path / "dense")
    expected = logits(dense, NoneConfig())
    torch.testing.assert_close(logits(tmp_path / "made", READERS[output_format]), expected, rtol=1e-4, atol=1e-4)
    assert [report.error is None for report in made.reports] == [not method.needs_inputs] * 8
    # It is the model's own function, only rounded.
    original = logits(model, NoneConfig())
    assert not torch.equal(expected, original)
    if bits == 8:
        assert float((expected - original).abs().mean()) < 0.2


def test_groups_in_the_order_of_rounding_are_stored(
    recorded: Recorded, model: Path, text: Path, tmp_path: Path
) -> None:
    make(model, tmp_path / "made", plan(text, GPTQ(static_groups=False), "gptq"))
    assert not all(weight.is_in_order for layer in recorded.layers for weight in layer.weights.values())
    expected = logits(recorded.write_dense(model, tmp_path / "dense"), NoneConfig())
    torch.testing.assert_close(logits(tmp_path / "made", READERS["gptq"]), expected, rtol=1e-4, atol=1e-4)


def test_smoothquant_makes_int8_weights_and_activations(
    recorded: Recorded, model: Path, text: Path, tmp_path: Path
) -> None:
    make(model, tmp_path / "made", plan(text, SmoothQuant(), bits=8, group_size=-1))
    stored = load_file(tmp_path / "made" / "model.safetensors")
    assert stored["model.layers.0.self_attn.q_proj.weight"].dtype == torch.int8
    dense = logits(recorded.write_dense(model, tmp_path / "dense"), NoneConfig())
    rounded = logits(tmp_path / "made", READERS["compressed-tensors"])
    assert 0 < float((rounded - dense).abs().mean()) < 0.1  # activations are rounded as well
    assert float((dense - logits(model, NoneConfig())).abs().mean()) < 0.2


def test_folder_has_tokenizer_settings_and_card(model: Path, text: Path, tmp_path: Path) -> None:
    made = make(model, tmp_path / "made", plan(text, GPTQ(), "gptq"))
    names = {path.name for path in made.files}
    assert names >= {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    settings = json.loads((tmp_path / "made" / "config.json").read_text())["quantization_config"]
    assert {key: settings[key] for key in ("quant_method", "bits", "group_size", "desc_act", "sym")} == {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "sym": True,
    }
    card = (tmp_path / "made" / "README.md").read_text()
    for part in (
        "GPTQ (act-order, static groups, damping 0.01)",
        "4 sequences of 64 tokens of: text.txt",
        "down_proj |",
    ):
        assert part in card
    assert not (tmp_path / "made.quantizing").exists()


def test_a_run_that_was_killed_goes_on_and_ends_the_same(model: Path, text: Path, tmp_path: Path) -> None:
    wanted, checkpoint = plan(text, AWQ(num_ratios=3)), open_checkpoint(model)

    def killed(stage: str, done: int, _: int) -> None:
        if (stage, done) == ("rounding layers", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(checkpoint, tmp_path / "twice", wanted, killed)
    assert not (tmp_path / "twice").exists()
    with pytest.raises(ConfigError, match=r"unfinished run with other settings \(seed=0; now seed=1\).*--restart"):
        quantize_checkpoint(checkpoint, tmp_path / "twice", replace(wanted, seed=1))
    with pytest.raises(ConfigError, match="other settings"):
        quantize_checkpoint(checkpoint, tmp_path / "twice", replace(wanted, method=AWQ(num_ratios=4)))
    assert quantize_checkpoint(checkpoint, tmp_path / "twice", wanted).num_resumed == 1
    assert quantize_checkpoint(checkpoint, tmp_path / "once", wanted).num_resumed == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("once", "twice"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_that_ends_between_a_layer_and_its_states_rounds_that_layer_again(
    model: Path, text: Path, tmp_path: Path
) -> None:
    wanted, checkpoint = plan(text, GPTQ()), open_checkpoint(model)

    def killed(stage: str, done: int, _: int) -> None:
        if (stage, done) == ("rounding layers", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(checkpoint, tmp_path / "twice", wanted, killed)
    (tmp_path / "twice.quantizing" / "states.safetensors").unlink()
    assert quantize_checkpoint(checkpoint, tmp_path / "twice", wanted).num_resumed == 0


def test_layers_without_the_settings_that_they_were_made_with_are_not_taken(
    model: Path, text: Path, tmp_path: Path
) -> None:
    wanted, checkpoint = plan(text, RoundToNearest()), open_checkpoint(model)

    def killed(stage: str, done: int, _: int) -> None:
        if (stage, done) == ("rounding layers", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(checkpoint, tmp_path / "made", wanted, killed)
    (tmp_path / "made.quantizing" / "settings.json").unlink()  # as if ended while the folder was deleted
    other = replace(wanted, scheme=replace(wanted.scheme, bits=8))
    assert quantize_checkpoint(checkpoint, tmp_path / "made", other).num_resumed == 0


def test_skipped_layers_stay_as_they_are(recorded: Recorded, model: Path, text: Path, tmp_path: Path) -> None:
    skip = ("model.layers.0.mlp", "model.layers.1.self_attn", "lm_head")
    for output_format in ("gptq", "compressed-tensors", "awq"):
        recorded.layers.clear()
        wanted = replace(plan(text, AWQ(num_ratios=3), output_format, symmetric=False), skip=skip)
        folder = tmp_path / output_format
        made = make(model, folder, wanted)
        assert len(made.reports) == 4
        stored, plain = load_file(folder / "model.safetensors"), load_file(model / "model.safetensors")
        for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
            assert torch.equal(stored[name], plain[name])
        dense = recorded.write_dense(model, tmp_path / f"{output_format}-dense")
        torch.testing.assert_close(
            logits(folder, READERS[output_format]), logits(dense, NoneConfig()), rtol=1e-4, atol=1e-4
        )


def test_divided_scales_stay_normal_numbers_of_float16(recorded: Recorded, text: Path, tmp_path: Path) -> None:
    """Rows of v and up that are small have small scales, and AWQ wants to divide some of them by a lot."""
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    tensors = load_file(model / "model.safetensors")
    for name in tensors:
        if "v_proj" in name or "up_proj" in name:
            tensors[name] *= torch.logspace(-3, 1, tensors[name].shape[0]).unsqueeze(1)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    make(model, tmp_path / "made", plan(text, AWQ(num_ratios=8), "awq", symmetric=False))
    stored = load_file(tmp_path / "made" / "model.safetensors")
    scales = torch.cat([tensor.flatten() for name, tensor in stored.items() if name.endswith("scales")])
    assert float(scales.abs().min()) >= torch.finfo(torch.float16).smallest_normal
    expected = logits(recorded.write_dense(model, tmp_path / "dense"), NoneConfig())
    torch.testing.assert_close(logits(tmp_path / "made", READERS["awq"]), expected, rtol=1e-4, atol=1e-4)


def test_two_runs_of_one_output_are_kept_apart(model: Path, text: Path, tmp_path: Path) -> None:
    wanted, checkpoint = plan(text, RoundToNearest()), open_checkpoint(model)
    told: list[str] = []

    def second(stage: str, done: int, _: int) -> None:
        if (stage, done) == ("rounding layers", 1):
            with pytest.raises(
                ConfigError, match=r"output=made: another run works in .*made\.quantizing; wait"
            ) as seen:
                quantize_checkpoint(checkpoint, tmp_path / "made", wanted)
            with pytest.raises(ConfigError, match="another run works"):
                forget_work(tmp_path / "made")
            told.append(str(seen.value))

    assert quantize_checkpoint(checkpoint, tmp_path / "made", wanted, second).num_resumed == 0
    assert len(told) == 1
    assert (tmp_path / "made" / "model.safetensors").is_file()


def test_a_card_says_that_its_source_was_rounded_before(
    monkeypatch: pytest.MonkeyPatch, model: Path, text: Path, tmp_path: Path
) -> None:
    plain = write_tiny_llama(tmp_path / "plain")
    file = write_gguf(plain, tmp_path / "small.gguf", Conversion(kind=gguf.GGMLQuantizationType.Q8_0))
    with open_checkpoint_of(file) as checkpoint:
        assert blocks_before(checkpoint) == ("Q8_0",)
    make(model, tmp_path / "once", plan(text, RoundToNearest()))
    assert "rounded before" not in (tmp_path / "once" / "README.md").read_text()
    monkeypatch.setattr(HFCheckpoint, "stored_type", lambda *_: "Q8_0")  # a GGUF file would need a tokenizer
    make(model, tmp_path / "twice", plan(text, RoundToNearest()))
    assert "rounded before, to blocks of Q8_0" in (tmp_path / "twice" / "README.md").read_text()


def test_a_card_s_tables_hold_any_name(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{number} times {number} is {number * number}. " for number in range(200)))
    with open_checkpoint_of(model) as checkpoint:
        wanted = replace(plan(file, GPTQ()), skip=("model.layers.0.mlp|x",)).for_model(checkpoint)
        card = model_card(checkpoint, wanted, {"calibration": "a", "calibration_sha256": "b"}, [])
    row = next(line for line in card.splitlines() if line.startswith("| skip"))
    assert row.replace(r"\|", "").count("|") == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"group_size": 48},
            r"group_size=48 does not divide the 64 input features of model\.layers\.0\.self_attn\.q_proj",
        ),
        ({"group_size": 128}, r"try group_size=64, format=gptq, or.*skip=\[model\.layers\.0\.self_attn\.q_proj\]"),
        ({"bits": 3, "output_format": "awq"}, "bits=3: format=awq stores weights of 4 bits"),
        ({"bits": 2}, "bits=2: format=compressed-tensors stores weights of 4, 8 bits"),
        ({"output_format": "awq", "method": GPTQ(static_groups=False)}, "format=awq cannot store which column"),
        ({"method": GPTQ(static_groups=False)}, "format=compressed-tensors cannot store.*try format=gptq"),
        ({"output_format": "gptq", "method": SmoothQuant()}, "try format=compressed-tensors"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    model: Path, text: Path, tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    wanted = plan(text, **{"method": RoundToNearest(), **changes})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=expected):
        make(model, tmp_path / "made", wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output_format", ["awq", "gptq"])
def test_sizes_that_fill_no_words_are_refused(text: Path, tmp_path: Path, output_format: str) -> None:
    model = write_tiny_llama(tmp_path / "odd", intermediate_size=132, with_tokenizer=True)
    with pytest.raises(
        ConfigError, match=r"needs a multiple of 8 output features, and model\.layers\.0\.mlp\.\w+ has 132"
    ):
        make(model, tmp_path / "made", plan(text, RoundToNearest(), output_format, group_size=-1))
    make(model, tmp_path / "made", plan(text, RoundToNearest(), group_size=-1))
    assert logits(tmp_path / "made", READERS["compressed-tensors"]).isfinite().all()


def test_the_usual_group_size_is_one_that_divides_all_input_features(model: Path, text: Path, tmp_path: Path) -> None:
    make(model, tmp_path / "made", plan(text, RoundToNearest(), group_size=USUAL_GROUPS))  # 64 and 128 features
    stored = load_file(tmp_path / "made" / "model.safetensors")
    assert stored["model.layers.0.mlp.gate_proj.weight_scale"].shape == (128, 1)
    assert stored["model.layers.0.mlp.down_proj.weight_scale"].shape == (64, 2)
    assert [usual_group_size(sizes) for sizes in ([576, 1536], [4096, 11008], [96], [100])] == [64, 128, 32, -1]


def test_skip_lists_that_name_nothing_or_everything_are_refused(model: Path, text: Path, tmp_path: Path) -> None:
    wanted = plan(text, RoundToNearest())
    with pytest.raises(ConfigError, match=r"'model\.layers\.7'"):
        make(model, tmp_path / "made", replace(wanted, skip=("model.layers.7",)))
    with pytest.raises(ConfigError, match="leaves no layer to quantize"):
        make(model, tmp_path / "made", replace(wanted, skip=("model.layers",)))


def test_a_quantized_checkpoint_is_refused(model: Path, text: Path, tmp_path: Path) -> None:
    wanted = plan(text, RoundToNearest())
    make(model, tmp_path / "made", wanted)
    with pytest.raises(
        ModelError, match=r"quant_method='compressed-tensors'.*quantize the model that it was made from"
    ):
        make(tmp_path / "made", tmp_path / "again", wanted)


def test_samples_longer_than_the_model_takes_are_refused(model: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model takes 512 tokens at most"):
        make(model, tmp_path / "made", replace(plan(text, GPTQ()), sample_tokens=513))
