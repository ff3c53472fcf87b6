"""Writes a workload of random token ids: many requests of mixed lengths, the same file for the same arguments.

    python benchmarks/make_workload.py mixed.json --requests 64 --seed 0
    tokenloom bench throughput workload=mixed.json

Prompt lengths are uniform in 16..310 and output lengths in 32..206 tokens, as in a burst of chat requests.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    prompts = [
        [draw.randrange(100, args.vocab_size) for _ in range(draw.randint(16, 310))] for _ in range(args.requests)
    ]
    limits = [draw.randint(32, 206) for _ in range(args.requests)]
    workload = [{"prompt": ids, "max_tokens": limit} for ids, limit in zip(prompts, limits, strict=True)]
    args.output.write_text(json.dumps(workload), encoding="utf-8")
    print(f"{args.requests} requests, {sum(map(len, prompts))} prompt and {sum(limits)} output tokens")


if __name__ == "__main__":
    main()
