"""`tokenloom calibrate-kv` on a tiny model: what it writes, in use, and what it refuses at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.tiny_model import write_tiny_llama
from tokenloom.kv_calibration import KVMagnitudes
from tokenloom.llm import LLM
from tokenloom.ops.native import why_not_buildable
from tokenloom.quantization.calibration_text import calibration_sequences, calibration_text
from tokenloom.sampling_params import SamplingParams

RunCli = Callable[..., tuple[int, str, str]]
BASE = ("cache.num_blocks=33", "engine.num_threads=1", "model.dtype=float32", "attention=native_cpu")


@pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))
def test_calibrated_scales_hold_what_they_were_measured_on(run_cli: RunCli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    text = tmp_path / "text.txt"
    text.write_text("The largest magnitudes decide. " * 20, encoding="utf-8")
    target = tmp_path / "scales.safetensors"
    words = (f"calibration={text}", "num_samples=2", "sample_tokens=40", f"output={target}")
    code, out, err = run_cli("calibrate-kv", f"model={model}", *BASE, *words)
    assert (code, err) == (0, "")
    assert "int8 scales of 2 layers, by head" in out
    scales = load_file(target)
    assert sorted(scales) == sorted(
        f"model.layers.{layer}.self_attn.{name}" for layer in range(2) for name in ("k_scale", "v_scale")
    )
    assert all(scale.shape == (2,) and bool((scale > 0).all()) for scale in scales.values())
    with safe_open(target, "pt") as file:
        assert file.metadata()["kv_dtype"] == "int8"
    own = ("attention.kv_dtype=int8", f"attention.kv_scales={target}")
    heard = KVMagnitudes()
    with LLM(str(model), BASE, show_progress=False, taps=[heard]) as llm:
        sequences = calibration_sequences(calibration_text(text), llm.tokenizer, 2, 40, 0)
        llm.generate(sequences, SamplingParams(temperature=0.0, max_tokens=1))
    for layer in range(2):
        for held, name in ((heard.keys, "k_scale"), (heard.values, "v_scale")):
            scale = scales[f"model.layers.{layer}.self_attn.{name}"]
            torch.testing.assert_close(scale * 127, held[layer], rtol=1e-5, atol=0)
    with LLM(str(model), (*BASE, *own), show_progress=False) as llm:
        (output,) = llm.generate([5, 9, 2, 40, 7, 3], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [(("output=a.json",), "must end in .safetensors"), (("output=a.safetensors", "kv_dtype=int4"), "kv_dtype")],
)
def test_calibration_refuses_at_once(run_cli: RunCli, words: tuple[str, ...], message: str) -> None:
    code, _, err = run_cli("calibrate-kv", *words)
    assert code == 2
    assert message in err


def test_parts_longer_than_the_model_takes_are_refused(run_cli: RunCli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    words = ("cache.num_blocks=33", "sample_tokens=512", f"output={tmp_path / 'a.safetensors'}")
    code, _, err = run_cli("calibrate-kv", f"model={model}", *words)
    assert code == 2
    assert "sample_tokens=512: the model takes parts of 511 tokens at most; try sample_tokens=511" in err
