"""Checkpoints in the formats `gptq` and `awq`, as GPTQModel reads them below Transformers.

GPTQModel is no part of the development environment, since its metadata ask for another torch: CONTRIBUTING.md says how
it is installed for these tests, which are left out without it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.core.models.dense_attention import Sequences
from tests.plugins.quant.checkpoint_packing import PROMPT, load_model
from tests.tiny_model import write_tiny_llama
from tokenloom.interfaces.quant import QuantConfig
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.quantization.awq import AWQ
from tokenloom.quantization.formats import WRITERS
from tokenloom.quantization.gptq import GPTQ
from tokenloom.quantization.make import quantize_checkpoint
from tokenloom.quantization.method import RoundingMethod
from tokenloom.quantization.plan import QuantizePlan
from tokenloom.quantization.rounded_weight import RoundingScheme
from tokenloom_quant.awq import AWQConfig
from tokenloom_quant.gptq import GPTQConfig

pytest.importorskip("gptqmodel", reason="needs gptqmodel, see CONTRIBUTING.md", exc_type=ImportError)
pytest.importorskip("optimum", reason="Transformers reads GPTQ checkpoints by optimum", exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the libraries warn of each other

READERS: dict[str, QuantConfig] = {"awq": AWQConfig(weights="dense"), "gptq": GPTQConfig(weights="dense")}
CASES: dict[str, tuple[RoundingMethod, str, int, int, bool, tuple[str, ...]]] = {
    "gptq": (GPTQ(), "gptq", 4, 32, True, ()),
    "gptq, zero points": (GPTQ(), "gptq", 4, 64, False, ()),
    "gptq, groups in the order of rounding": (GPTQ(static_groups=False), "gptq", 4, 32, True, ()),
    "gptq, 3 bits": (GPTQ(), "gptq", 3, 32, True, ()),
    "gptq, 8 bits": (GPTQ(), "gptq", 8, -1, True, ()),
    "awq, a skipped layer": (AWQ(num_ratios=4), "awq", 4, 32, False, ("model.layers.0.mlp",)),
    "awq": (AWQ(num_ratios=4), "awq", 4, 64, False, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_transformers_gives_the_same_logits(tmp_path: Path, case: str) -> None:
    """Their kernels multiply in 16 bits or with rounded sums, so that logits agree to some hundredths."""
    method, output_format, bits, group_size, symmetric, skip = CASES[case]
    sizes = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True, **sizes)
    (tmp_path / "text.txt").write_text("".join(f"{number} apples and {number * 7} pears. " for number in range(200)))
    scheme = RoundingScheme(bits, group_size, symmetric, torch.float32)
    plan = QuantizePlan(method, WRITERS[output_format], scheme, skip=skip, num_samples=4, sample_tokens=64)
    checkpoint = open_checkpoint(model)
    quantize_checkpoint(checkpoint, tmp_path / "made", replace(plan, calibration=tmp_path / "text.txt"))
    checkpoint.close()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32, device_map="cpu").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0].float()
    logits = Sequences(load_model(tmp_path / "made", READERS[output_format]), 1, 128).feed(PROMPT)
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=0.1)  # of logits with a standard deviation of 2.5
    assert float((logits - expected).abs().mean()) < 0.01
