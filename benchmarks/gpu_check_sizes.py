"""What `gpu_check.py` tries: on a card, and in tiny sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpu_check_attention import Heads
from gpu_check_correctness import KVDtype, LayerKind
from gpu_check_engine import Llama

__all__ = ["SMALL", "TINY", "Sizes"]

_LLAMA_1B = Llama("Llama 1B", 2048, 8192, 16, 32, 8, 64, 128256, tied=True)
_LLAMA_8B = Llama("Llama 8B", 4096, 14336, 32, 32, 8, 128, 128256, tied=False)
_HEADS_8B = Heads(32, 8, 128)
TINY = Llama("tiny Llama", 64, 128, 2, 4, 2, 16, 256, tied=True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is tried; the defaults are for a card.

    Attributes:
        dtypes: of activations.
        kv_dtypes: of the cache.
        full_attention, more_attention: (dtype, head_dim) to check with every sort of layer and cache, and with one.
        layers: the sorts of layers, (window, soft cap).
        large_elements: of the large cache; more than 2^31 shows offsets of 32 bits.
        operation_sizes, vocab_sizes, num_rows: of fused operations and sampling.
        copy_bytes, matmul_size: of the two yardsticks.
        heads: of the timed layer.
        decodes: (requests, tokens in the cache).
        prompts: lengths.
        models: to run whole.
        streams, lengths: requests at a time, and their (prompt, output) tokens.
    """

    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
    kv_dtypes: tuple[KVDtype, ...] = ("auto", "int8", "fp8_e4m3")
    full_attention: tuple[torch.dtype, int] = (torch.bfloat16, 128)
    more_attention: tuple[tuple[torch.dtype, int], ...] = (
        (torch.bfloat16, 64),
        (torch.float16, 80),
        (torch.float32, 64),
        (torch.bfloat16, 256),
    )
    layers: tuple[LayerKind, ...] = ((None, None), (17, None), (None, 2.0), (130, 2.0))
    large_elements: int = 2**31 + 2**20
    operation_sizes: tuple[int, ...] = (33, 576, 4096, 16384)
    vocab_sizes: tuple[int, ...] = (333, 49152, 128256)
    num_rows: int = 64
    copy_bytes: int = 4 << 30
    matmul_size: int = 8192
    heads: Heads = _HEADS_8B
    decodes: tuple[tuple[int, int], ...] = ((1, 8192), (1, 131072), (8, 8192), (32, 8192), (64, 2048), (256, 1024))
    prompts: tuple[int, ...] = (1024, 4096, 8192, 16384)
    models: tuple[Llama, ...] = (_LLAMA_1B, _LLAMA_8B)
    streams: int = 64
    lengths: tuple[int, int] = (128, 128)


SMALL = Sizes(
    dtypes=(torch.float16,),
    kv_dtypes=("auto", "int8"),
    full_attention=(torch.float16, 16),
    more_attention=(),
    layers=((17, 2.0),),
    large_elements=2**17,
    operation_sizes=(33,),
    vocab_sizes=(333,),
    num_rows=6,
    copy_bytes=1 << 16,
    matmul_size=64,
    heads=Heads(4, 2, 16),
    decodes=((2, 600),),
    prompts=(70,),
    models=(TINY,),
    streams=2,
    lengths=(5, 3),
)
