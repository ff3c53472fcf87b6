"""Baseline: Transformers' generate on a token-id workload in static batches, left-padded, greedy, bf16.

    python benchmarks/transformers_static.py WORKLOAD.json [--batch-size 32]

Prints one JSON line; compare with `tokenloom bench throughput workload=WORKLOAD.json` on the same machine. Each batch
runs to the longest max_tokens of its requests, as a static batch must; only the tokens asked for are counted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from tokenloom.bench.workload import WorkloadItem, read_workload
from tokenloom.loader.sources import resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    workload = read_workload(args.workload)
    model = load_model()
    start_s = time.perf_counter()
    for first in range(0, len(workload), args.batch_size):
        run_batch(model, workload[first : first + args.batch_size])
    wall_s = time.perf_counter() - start_s
    num_output = sum(item.max_tokens for item in workload)
    figures = {"engine": "transformers", "batch_size": args.batch_size, "wall_s": wall_s}
    print(json.dumps({**figures, "output_tok_s": num_output / wall_s}))


def load_model() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, GgufConfig

    path = resolve_model("default")
    config = GgufConfig(dequantize=True)
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=config, dtype=torch.bfloat16
    )
    return model.eval()


@torch.inference_mode()
def run_batch(model: torch.nn.Module, items: list[WorkloadItem]) -> None:
    longest = max(len(item.prompt) for item in items)
    ids = torch.tensor([[0] * (longest - len(item.prompt)) + item.prompt for item in items])  # [B, longest]
    mask = torch.tensor([[0] * (longest - len(item.prompt)) + [1] * len(item.prompt) for item in items])
    count = max(item.max_tokens for item in items)
    model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )


if __name__ == "__main__":
    main()
