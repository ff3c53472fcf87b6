"""A memory plan made from a config says what a real engine then reports, and fits what a real engine then runs."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import quantize

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.plugins.quant.checkpoint_packing import Encoded, write_pair
from tests.plugins.quant.format_encoders import GPTQ_SETTINGS, encode_gptq
from tests.plugins.spec_decode.tiny_medusa import TinyMedusa
from tests.tiny_model import write_tiny_llama
from tokenloom.checkpoint.base import Checkpoint
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.engine_builder import build_engine
from tokenloom.errors import CapabilityError, ConfigError, OutOfMemoryError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.memory_forecast import MemoryForecast, RequestLengths, forecast_memory, largest_batch
from tokenloom.ops.native import why_not_buildable

BASE = ("cache.num_blocks=65", "engine.num_threads=1", "scheduler.max_num_seqs=8", "model.max_model_len=256")
WINDOWS = {
    "model_type": "smollm3",
    "architectures": ["SmolLM3ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 32,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}


def write(folder: Path, *, windows: bool = False) -> Path:
    return write_tiny_llama(folder, extra_config=WINDOWS if windows else None, num_layers=3)


def forecast(model: Path, *overrides: str, memory_bytes: int | None = None) -> tuple[MemoryForecast, ComposedConfig]:
    composed = compose_config([f"model={model}", *BASE, *overrides])
    checkpoint = open_checkpoint(model)
    try:
        return forecast_memory(composed.engine, checkpoint, memory_bytes), composed
    finally:
        checkpoint.close()


@pytest.mark.parametrize(
    ("windows", "overrides"),
    [
        (False, ()),
        (False, ("model.dtype=bfloat16", "cache.block_size=32")),
        (False, ("quant=int8", "quant.include_embedding=true")),
        (False, ("spec_decode=ngram", "spec_decode.verifier=rejection", "scheduler.max_num_batched_tokens=64")),
        (True, ()),
        (True, ("quant=int8",)),
    ],
)
def test_a_forecast_is_what_the_engine_reports(windows: bool, overrides: tuple[str, ...], tmp_path: Path) -> None:
    model = write(tmp_path / "model", windows=windows)
    found, composed = forecast(model, *overrides)
    engine = build_engine(composed.engine)
    try:
        facts = engine.facts
        assert found.groups == facts.kv_groups
        assert found.plan.num_blocks == facts.num_blocks
        assert (found.device, found.dtype, found.max_model_len) == (facts.device, facts.dtype, facts.max_model_len)
        # What is free on the machine changes all the time.
        known = {name: size for name, size in found.plan.breakdown.items() if name != "available"}
        assert known == {name: size for name, size in facts.memory.items() if name != "available"}
    finally:
        engine.close()


def test_heads_that_keep_rows_of_the_model_are_counted_without_its_weights(tmp_path: Path) -> None:
    heads = TinyMedusa(hidden_size=64, vocab_size=256).write(tmp_path / "heads", "target's rows")
    model = write(tmp_path / "model")
    found, composed = forecast(model, "spec_decode=medusa", f"spec_decode.source={heads}")
    engine = build_engine(composed.engine)
    try:
        assert found.plan.breakdown["weights"] == engine.facts.memory["weights"]
    finally:
        engine.close()


@pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))
def test_layers_of_one_shape_may_be_stored_differently(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    other = {"blk.1.ffn_down.weight": (kinds.Q8_0, quantize(torch.ones(64, 128).numpy(), kinds.Q8_0))}
    folder = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    model = write_gguf(folder, tmp_path / "model.gguf", Conversion(kind=kinds.Q4_1, raw_tensors=other))
    found, _ = forecast(model, "quant=gguf")
    composed = compose_config([f"model={model}", *BASE, "quant=gguf"])
    engine = build_engine(composed.engine)
    try:
        assert found.plan.breakdown["weights"] == engine.facts.memory["weights"]
    finally:
        engine.close()
    assert found.plan.breakdown["weights"] < 0.5 * forecast(model, "quant=none")[0].plan.breakdown["weights"]


def test_packed_layers_of_one_name_may_differ_in_bits(tmp_path: Path) -> None:
    """`dynamic` of GPTQ: what is stored of a layer tells it from the one before."""

    def encode(part: str, weight: torch.Tensor) -> Encoded:
        return encode_gptq(8 if ".layers.1." in part else 4, 32, weight)

    settings = {**GPTQ_SETTINGS, "dynamic": {r"+:.*\.layers\.1\.": {"bits": 8}}}
    model, _ = write_pair(tmp_path, settings, encode, with_tokenizer=True)
    found, composed = forecast(model, "quant=gptq")
    engine = build_engine(composed.engine)
    try:
        assert found.plan.breakdown["weights"] == engine.facts.memory["weights"]
    finally:
        engine.close()


def test_kv_bytes_per_token_follow_the_formula(tmp_path: Path) -> None:
    model = write(tmp_path / "model")
    assert forecast(model)[0].kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert forecast(model, "model.dtype=bfloat16")[0].kv_bytes_per_token == 2 * 3 * 2 * 16 * 2


def test_no_dense_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "model")
    read: list[str] = []
    checkpoint = open_checkpoint(model)
    load = type(checkpoint).load

    def counting(self: Checkpoint, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        read.append(name)
        return load(self, name, dtype)

    checkpoint.close()
    monkeypatch.setattr(type(checkpoint), "load", counting)
    forecast(model)
    assert read == []
    forecast(model, "quant=int8")
    # Of three layers alike, the first one's seven matrices.
    assert len(read) == 7
    assert all(name.startswith("model.layers.0.") for name in read)


@pytest.mark.parametrize(
    ("overrides", "prompt", "output", "num_blocks", "num_requests", "internal"),
    [
        (("cache=none",), 40, 9, 3, 21, 0.0),
        (("cache=none",), 40, 10, 4, 16, 1 - 49 / 64),
        (("cache=contiguous",), 40, 10, 16, 4, 1 - 49 / 256),
        (("cache=contiguous", "cache.reserve=max_tokens"), 40, 10, 4, 16, 1 - 49 / 64),
    ],
)
def test_the_largest_batch_counts_whole_blocks(
    overrides: tuple[str, ...],
    prompt: int,
    output: int,
    num_blocks: int,
    num_requests: int,
    internal: float,
    tmp_path: Path,
) -> None:
    found, composed = forecast(write(tmp_path / "model"), *overrides)
    batch = largest_batch(composed.engine, found, RequestLengths(prompt, output), 16)
    assert (batch.num_blocks, batch.num_requests) == (num_blocks, num_requests)
    assert batch.internal == pytest.approx(internal)


def test_a_window_holds_only_what_it_sees(tmp_path: Path) -> None:
    found, composed = forecast(write(tmp_path / "model", windows=True), "cache=none")
    lengths = RequestLengths(150, 51)  # 200 stored: 13 blocks, of which 10 have left a window of 32
    windows = [group.window for group in found.groups]
    assert sorted(windows, key=str) == [32, None]
    assert largest_batch(composed.engine, found, lengths, 16).num_blocks == 13 + 3


def test_larger_blocks_leave_more_slots_empty_on_average(tmp_path: Path) -> None:
    found, composed = forecast(write(tmp_path / "model"), "cache=none")
    shares = [
        largest_batch(composed.engine, found, RequestLengths(100, 29), size).mean_internal for size in (8, 16, 64)
    ]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(3.5 / 131.5)


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    model = write(tmp_path / "model")
    with pytest.raises(OutOfMemoryError, match=r"even 2 blocks lack .* lower scheduler\.max_num_batched_tokens"):
        forecast(model, memory_bytes=1_000_000)
    with pytest.raises(OutOfMemoryError, match=r"the weights do not fit: .* of a memory of 1000 B"):
        forecast(model, memory_bytes=1_000)
    with pytest.raises(OutOfMemoryError, match=r"lower cache\.num_blocks to at most"):
        forecast(model, "cache.num_blocks=100000", memory_bytes=20_000_000)
    with pytest.raises(ConfigError, match="executor=simulated"):
        forecast(model, "executor=simulated")
    with pytest.raises(CapabilityError, match="pipeline_depth"):
        forecast(model, "engine.pipeline_depth=2")
