"""Device presets: the table and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tokenloom.errors import ConfigError
from tokenloom.executors.device_presets import DEVICE_PRESETS, DevicePreset, load_preset
from tokenloom.executors.step_time import CostBracket, StepShape


def test_kv_bytes_per_token_are_those_of_the_formula() -> None:
    # 2 x 32 layers x 8 heads x 128 x 2 bytes, and 2 x 30 x 3 x 64 x 4.
    assert load_preset("h100_8b").kv_bytes_per_token == 131_072
    assert load_preset("cpu_2core_135m").kv_bytes_per_token == 46_080


@pytest.mark.parametrize("preset", DEVICE_PRESETS.values(), ids=list(DEVICE_PRESETS))
def test_every_preset_says_where_its_figures_come_from_and_has_room_for_kv(preset: DevicePreset) -> None:
    assert len(preset.source) > 40
    assert preset.memory_bytes > preset.model.weight_bytes + 1000 * preset.kv_bytes_per_token
    assert preset.costs.step_s > 0
    assert preset.costs.prefill_token_s > 0


def test_devices_stand_in_the_order_of_their_bandwidth() -> None:
    decode = StepShape(0, 16, 16 * 1000 * 131_072, 0)
    times = [load_preset(name).costs.duration_s(decode) for name in ("h200_8b", "h100_8b", "a100_8b", "l4_8b")]
    assert times == sorted(times)
    # 16 GB at 80 % of 3.35 TB/s alone take 6 ms.
    assert 0.006 < times[1] < 0.020


def test_a_file_holds_the_same_preset(tmp_path: Path) -> None:
    preset = load_preset("l4_8b")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(preset.model_dump()))
    assert load_preset(str(path)) == preset


def test_a_file_holds_brackets(tmp_path: Path) -> None:
    preset = load_preset("l4_8b")
    brackets = (CostBracket(above=4, each_s=1e-5), CostBracket(above=16, each_s=2e-5))
    costs = preset.costs.model_copy(update={"decode_brackets": brackets})
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(preset.model_copy(update={"costs": costs}).model_dump()))
    assert load_preset(str(path)).costs == costs


def test_layers_are_grouped_by_how_far_they_look_back() -> None:
    plain = load_preset("l4_8b")
    (span,) = plain.attention_spans
    assert (span.window, span.bytes_per_token, span.share) == (None, plain.kv_bytes_per_token, 1.0)
    windows = (512, 512, 512, None) * 8
    mixed = plain.model_copy(update={"model": plain.model.model_copy(update={"windows": windows})})
    assert [(s.window, s.bytes_per_token * 4, s.share) for s in mixed.attention_spans] == [
        (512, 3 * plain.kv_bytes_per_token, 0.75),
        (None, plain.kv_bytes_per_token, 0.25),
    ]


def test_numbers_may_be_written_as_in_json(tmp_path: Path) -> None:
    """YAML takes 4e-13 for text."""
    preset = load_preset("cpu_2core_135m")
    path = tmp_path / "mine.json"
    path.write_text(preset.model_dump_json())
    assert "e-" in path.read_text()
    assert load_preset(str(path)) == preset
    by_hand = tmp_path / "mine.yaml"
    by_hand.write_text(yaml.safe_dump(preset.model_dump()).replace("kv_byte_s: 1.0e-10", "kv_byte_s: 4e-13"))
    assert load_preset(str(by_hand)).costs.kv_byte_s == 4e-13


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nme": "x"}, "nme"),
        ({"dtype": "int8"}, "dtype"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"host_bytes_per_s": "fast"}, "host_bytes_per_s"),
        ({"costs": {"step_s": -1.0}}, "costs.step_s: must be greater than or equal to 0"),
        ({"model": {**load_preset("l4_8b").model.model_dump(), "windows": [8, None]}}, "windows must name each of 32"),
        ({"model": {**load_preset("l4_8b").model.model_dump(), "vocab_size": 2}}, "vocab_size: must be greater than"),
        ({"model": {**load_preset("l4_8b").model.model_dump(), "num_layers": 10**12}}, "num_layers: must be less than"),
    ],
)
def test_a_wrong_key_of_a_file_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**load_preset("l4_8b").model_dump(), **change}))
    with pytest.raises(ConfigError, match=message):
        load_preset(str(path))


@pytest.mark.parametrize(("name", "message"), [("h100_8", "Did you mean 'h100_8b'"), ("gone.yaml", "No such file")])
def test_what_does_not_exist_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_preset(name)


@pytest.mark.parametrize("text", ["a: [", "[1, 2]", ""])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"executor\.device="):
        load_preset(str(path))
