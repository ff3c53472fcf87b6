"""A whole engine on Llamas with random weights: the same tokens by every backend, and tokens per second beside
Transformers."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.plugins import Registry

__all__ = ["EngineRow", "Llama", "engine_row", "generate", "packages_registry", "transformers_row", "write_llama"]

PACKAGES = (
    "tokenloom_attention",
    "tokenloom_schedulers",
    "tokenloom_cache",
    "tokenloom_spec_decode",
    "tokenloom_quant",
    "tokenloom.executors",
    "tokenloom.logits_processors",
)


@dataclass(frozen=True, slots=True)
class Llama:
    """Sizes of a model."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool


@dataclass(frozen=True, slots=True)
class EngineRow:
    """Output tokens per second of one engine; None where it could not run: see `note`."""

    model: str
    engine: str
    output_tok_s: float | None
    load_s: float
    note: str = ""


def packages_registry() -> Registry:
    """The plugins of this repository, which need not be installed."""
    return Registry.discover([EntryPoint(name, name, "tokenloom") for name in PACKAGES])


def write_llama(folder: Path, model: Llama, dtype: torch.dtype, device: torch.device) -> Path:
    """Writes config.json and random weights in as many files as layers; returns `folder`."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": model.tied,
        "hidden_act": "silu",
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_byte_tokenizer(folder / "tokenizer.json")
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values: torch.Tensor = torch.randn(rows, columns, device=device) * columns**-0.5
        return values.to(dtype).cpu()

    ones = torch.ones(model.hidden, dtype=dtype)
    ends = {"model.embed_tokens.weight": matrix(model.vocab, model.hidden), "model.norm.weight": ones}
    if not model.tied:
        ends["lm_head.weight"] = matrix(model.vocab, model.hidden)
    shards = [ends]
    for layer in range(model.layers):
        prefix, hidden, q_size = f"model.layers.{layer}.", model.hidden, model.heads * model.head_dim
        kv_size = model.kv_heads * model.head_dim
        shapes = {"self_attn.q_proj": (q_size, hidden), "self_attn.k_proj": (kv_size, hidden)}
        shapes |= {"self_attn.v_proj": (kv_size, hidden), "self_attn.o_proj": (hidden, q_size)}
        shapes |= {"mlp.gate_proj": (model.intermediate, hidden), "mlp.up_proj": (model.intermediate, hidden)}
        shapes |= {"mlp.down_proj": (hidden, model.intermediate)}
        tensors = {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        norms = ("input_layernorm", "post_attention_layernorm")
        shards.append(tensors | {f"{prefix}{name}.weight": ones.clone() for name in norms})
    places: dict[str, str] = {}
    for index, tensors in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index_text = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index_text, encoding="utf-8")
    return folder


def _write_byte_tokenizer(path: Path) -> None:
    """A tokenizer whose tokens are bytes: an engine wants one, though everything here is token ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def prompts(num_streams: int, length: int, vocab: int) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(1, vocab, (num_streams, length), generator=generator).tolist()
    return rows


def generate(
    folder: Path, overrides: Sequence[str], work: list[list[int]], num_output: int, params: SamplingParams | None = None
) -> tuple[list[list[int]], float, float]:
    """(token ids, seconds to generate them, seconds to load) of tokenloom; a first short run is not timed."""
    registry = packages_registry()
    start = time.perf_counter()
    config = compose_config([f"model={folder}", *overrides], registry=registry)
    llm = LLM(config=config, registry=registry, show_progress=False)
    load_s = time.perf_counter() - start
    try:
        wanted = params or SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        llm.generate(work, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))  # compiles and allocates
        llm.engine.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(work, wanted)
        return [output.outputs[0].token_ids for output in outputs], time.perf_counter() - start, load_s
    finally:
        llm.close()
        del llm
        _free()


def engine_row(
    folder: Path, model: Llama, overrides: Sequence[str], num_streams: int, lengths: tuple[int, int]
) -> EngineRow:
    """tokenloom with `overrides`, on `num_streams` requests of (prompt, output) `lengths`."""
    name = "tokenloom " + " ".join(override for override in overrides if override.startswith("attention"))
    try:
        work = prompts(num_streams, lengths[0], model.vocab)
        token_ids, wall_s, load_s = generate(folder, overrides, work, lengths[1])
    except Exception as error:  # noqa: BLE001  (reported; the other engines still run)
        return EngineRow(model.name, name, None, math.nan, f"{type(error).__name__}: {error}"[:300])
    return EngineRow(model.name, name, sum(map(len, token_ids)) / wall_s, load_s)


def transformers_row(
    folder: Path, model: Llama, device: torch.device, num_streams: int, lengths: tuple[int, int]
) -> EngineRow:
    """Transformers' generate on the same prompts as one static batch, greedy."""
    try:
        start = time.perf_counter()
        loaded = _load_transformers(folder, device)
        load_s = time.perf_counter() - start
        ids = torch.tensor(prompts(num_streams, lengths[0], model.vocab), device=device)
        _hf_generate(loaded, ids, 3)
        start = time.perf_counter()
        _hf_generate(loaded, ids, lengths[1])
        wall_s = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001  (another's code; its failure is a figure that is missing)
        return EngineRow(model.name, "transformers", None, math.nan, f"{type(error).__name__}: {error}"[:300])
    finally:
        loaded = None
        _free()
    return EngineRow(model.name, "transformers", num_streams * lengths[1] / wall_s, load_s)


def _load_transformers(folder: Path, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return model.to(device).eval()


@torch.inference_mode()
def _hf_generate(model: Any, ids: torch.Tensor, num_output: int) -> None:
    mask = torch.ones_like(ids)
    found = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=num_output,
        min_new_tokens=num_output,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    found.cpu()  # waits for the device


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
