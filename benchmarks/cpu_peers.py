"""tokenloom beside other engines on this machine: the same model, token ids and lengths, in turn, ratios with spread.

    python benchmarks/cpu_peers.py mixed64.json single.json --cold prefix32.json --start single.json --quality 20000 \\
        --tokenloom "bf16: model.dtype=bfloat16" --vllm VLLM_ENV/bin/python --openvino OV_ENV/bin/python

Every engine runs in an interpreter of its own (that of its virtual environment) and sleeps while another is measured.
Each first runs every workload once untimed: that warms it up, and its greedy tokens are compared with those of the
first tokenloom variant. Then every repetition runs all engines in turn. Wall times are those of the whole workload, all
requests at once. Workloads of `--cold` share prefixes: prefix caches are on and empty; for the others they are off.
`--start` times fresh processes, from the spawn to the first token of the first request's prompt. `--quality` puts the
share of positions at which an engine's likeliest token is that of fp32, and the ratio of perplexities, beside speed.
Leave the machine alone meanwhile. Results go to OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from peer_process import Answer, PeerProcess, PeerSpec
from peer_quality import judge, text_windows
from peer_start import measure_starts
from peer_tables import quality_table, start_table, workload_table
from repetitions import spread

from tokenloom.bench.provenance import provenance
from tokenloom.bench.workload import read_workload
from tokenloom.loader.sources import resolve_model

Items = list[dict[str, Any]]

WINDOW_TOKENS = 1024
"""Of text that is judged at a time."""
REFERENCE = ("model.dtype=float32", "quant=none", "attention=torch_sdpa", "engine.operations=torch")
"""What all engines are compared with: tokenloom without any rounding of its own."""


def main() -> int:
    args = parse_arguments()
    specs = peer_specs(args)
    with tempfile.TemporaryDirectory() as scratch:
        settings = engine_settings(args, Path(scratch))
        quality = None if args.quality is None else guard(args, specs, settings)
        start = None if args.start is None else starts(args, specs, settings)
        runs = [
            measure(path, specs, {**settings, "prefix_caching": is_cold}, args.repetitions)
            for is_cold, paths in ((False, args.workloads), (True, args.cold))
            for path in paths
        ]
    result: dict[str, Any] = {"workloads": runs, "start": start, "quality": quality}
    result |= {"engines": [asdict(spec) for spec in specs], "provenance": provenance()}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".json").write_text(json.dumps(without_paths(result), indent=1) + "\n", encoding="utf-8")
    tables = [workload_table(run, quality) for run in runs]
    tables += [] if start is None else [start_table(start)]
    tables += [] if quality is None else [quality_table(quality)]
    args.output.with_suffix(".md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    print("\n\n".join(tables))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", type=Path, metavar="WORKLOAD")
    parser.add_argument("--cold", nargs="*", type=Path, default=[], metavar="WORKLOAD")
    parser.add_argument(
        "--tokenloom", action="append", metavar="LABEL: KEY=VALUE ...", help="a variant; may be repeated"
    )
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--openvino", metavar="PYTHON", help="measured with its defaults, and exact")
    parser.add_argument("--openvino-model", metavar="FOLDER", help="also with a model that it has converted before")
    parser.add_argument("--transformers", metavar="PYTHON", nargs="?", const=sys.executable)
    parser.add_argument("--ort", nargs=2, metavar=("PYTHON", "ONNX_FOLDER"))
    parser.add_argument("--llama-server", nargs="+", metavar=("BINARY", "OPTION"))
    parser.add_argument("--model", default="default", help="a GGUF file, as model= names it")
    parser.add_argument("--folder", type=Path, help="the same as `tokenloom export` wrote it; made anew if left out")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--start", type=Path, metavar="WORKLOAD", help="time starts of a process, too")
    parser.add_argument("--quality", type=int, metavar="TOKENS", help="compare with fp32 on so much text, too")
    parser.add_argument("--quality-every", type=int, default=8, help="for engines asked position by position")
    parser.add_argument("--quality-kept", type=Path, metavar="FOLDER", help="keep what engines said, and ask no more")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu_peers")
    args = parser.parse_args()
    if not (args.workloads or args.cold or args.start or args.quality):
        parser.error("name at least one workload, or --start, or --quality")
    return args


def peer_specs(args: argparse.Namespace) -> list[PeerSpec]:
    """tokenloom's variants first: the first of them is what the others must agree with."""
    specs = []
    for variant in args.tokenloom or ["bf16: model.dtype=bfloat16"]:
        label, _, overrides = variant.partition(":")
        specs.append(PeerSpec(f"tokenloom {label.strip()}", "tokenloom", sys.executable, tuple(overrides.split())))
    if args.vllm:
        specs.append(PeerSpec("vLLM CPU bf16", "vllm", args.vllm))
    if args.openvino:
        specs.append(PeerSpec("OpenVINO GenAI exact", "openvino", args.openvino, ("exact",)))
        specs.append(PeerSpec("OpenVINO GenAI", "openvino", args.openvino))
    if args.openvino and args.openvino_model:
        extra = (f"model={args.openvino_model}",)
        specs.append(PeerSpec("OpenVINO GenAI, converted before", "openvino", args.openvino, extra))
    if args.ort:
        specs.append(PeerSpec("ONNX Runtime GenAI", "ort", args.ort[0], (args.ort[1],)))
    if args.llama_server:
        specs.append(PeerSpec("llama-server", "llama_server", sys.executable, tuple(args.llama_server)))
    if args.transformers:
        specs.append(PeerSpec("transformers", "transformers", args.transformers))
    return specs


def engine_settings(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The model as a GGUF file and, for engines that do not read such, as a folder in bf16."""
    folder: Path = args.folder or scratch / "model"
    if args.folder is None and (args.vllm or args.transformers):
        command = [str(Path(sys.executable).with_name("tokenloom")), "export", str(folder), f"model={args.model}"]
        subprocess.run([*command, "dtype=bfloat16"], check=True, stdout=sys.stderr)
    return {
        "gguf": str(resolve_model(args.model)),
        "folder": str(folder.resolve()),
        "max_model_len": args.max_model_len,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "score_every": args.quality_every,
    }


# ---- measuring ----


def guard(args: argparse.Namespace, specs: Sequence[PeerSpec], settings: dict[str, Any]) -> dict[str, Any]:
    """What each engine's precision takes from the model."""
    windows = text_windows(Path(settings["gguf"]), args.quality, min(WINDOW_TOKENS, args.max_model_len - 1))
    reference = PeerSpec("tokenloom fp32", "tokenloom", sys.executable, REFERENCE)
    return judge(reference, specs, {**settings, "prefix_caching": True}, windows, say, args.quality_kept)


def starts(args: argparse.Namespace, specs: Sequence[PeerSpec], settings: dict[str, Any]) -> dict[str, Any]:
    """From the spawn of each engine's process to its first token."""
    item = read_workload(args.start)[0].model_dump()
    return measure_starts(specs, {**settings, "prefix_caching": False}, item, args.repetitions, say)


def measure(path: Path, specs: Sequence[PeerSpec], settings: dict[str, Any], repetitions: int) -> dict[str, Any]:
    """One workload on every engine."""
    items = [item.model_dump() for item in read_workload(path)]
    warm_up = unrelated(items)
    peers: list[PeerProcess] = []
    try:
        for spec in specs:
            say(f"{path.name}: loading {spec.label}")
            peers.append(PeerProcess(spec, settings))
        first = [agreement_run(peer, items, warm_up) for peer in peers]
        times: list[list[float]] = [[] for _ in peers]
        for repetition in range(repetitions):
            for peer, wall_s in zip(peers, times):
                wall_s.append(peer.run(items, warm_up).wall_s)
                say(f"{path.name}: {repetition + 1}/{repetitions} {peer.spec.label} {wall_s[-1]:.2f} s")
    finally:
        for peer in peers:
            peer.close()
    num_output = sum(item["max_tokens"] for item in items)
    rows = [
        {
            "label": peer.spec.label,
            "engine": f"{peer.name} {peer.version}",
            "load_s": peer.load_s,
            "wall_s": wall_s,
            "output_tok_s": num_output / median(wall_s),
            "equal_leading_tokens": equal_leading_share(first[0], answer),
            "speed_ratio": spread([theirs / ours for theirs, ours in zip(wall_s, times[0])]),
        }
        for peer, wall_s, answer in zip(peers, times, first)
    ]
    return {"workload": path.name, "num_requests": len(items), "num_output_tokens": num_output, "rows": rows}


def agreement_run(peer: PeerProcess, items: Items, warm_up: Items) -> Answer:
    answer = peer.run(items, warm_up)
    made = [len(ids) for ids in answer.token_ids]
    assert made == [item["max_tokens"] for item in items], f"{peer.spec.label} made {made} tokens, not what was asked"
    return answer


def unrelated(items: Items) -> Items:
    """A small workload that shares no prefix with the measured one."""
    draw = random.Random(0)
    largest = max(max(item["prompt"]) for item in items)
    return [{"prompt": [draw.randrange(largest) for _ in range(64)], "max_tokens": 8} for _ in range(4)]


def equal_leading_share(expected: Answer, found: Answer) -> float:
    """Of all tokens, the share that stands before the first difference of its request."""
    equal = total = 0
    for ours, theirs in zip(expected.token_ids, found.token_ids):
        differing = (at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b)
        equal += next(differing, len(ours))
        total += len(ours)
    return equal / total


# ---- reporting ----


def without_paths(result: dict[str, Any]) -> dict[str, Any]:
    """Results are kept: they name no folder of this machine."""
    for engine in result["engines"]:
        engine["python"] = Path(engine["python"]).name
        engine["extra"] = [Path(word).name if "/" in word else word for word in engine["extra"]]
    return result


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
