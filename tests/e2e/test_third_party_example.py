"""The example plugin package, installed as anybody would and used by name; the core knows nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "third_party_plugin"
DISTRIBUTION = "tokenloom-example-plugins"
CHOSEN = ("scheduler=shortest_prompt", "spec_decode=bigram")

COMPARE = """
import json, sys
from tokenloom import LLM, SamplingParams

model, *prompts = json.loads(sys.argv[1])
found = {}
for name, chosen in json.loads(sys.argv[2]).items():
    # Two slots and a budget of 24 tokens: requests queue, prompts are cut, and the order of service matters.
    limits = ["scheduler.max_num_seqs=2", "scheduler.max_num_batched_tokens=24", "cache.num_blocks=24"]
    checks = ["debug.checks=full", "model.dtype=float32", "engine.num_threads=1"]
    with LLM(model, [*chosen, *limits, *checks]) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        stats = llm.engine.stats
        found[name] = {
            "token_ids": [output.outputs[0].token_ids for output in outputs],
            "first_token_s": [output.outputs[0].metrics.ttft_s for output in outputs],
            "drafts": [stats.num_draft_tokens, stats.num_accepted_tokens],
        }
print(json.dumps(found))
"""

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Environment:
    """This interpreter, with the example package on its path."""

    folder: Path

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def tokenloom(self, *arguments: str) -> str:
        return self.run("-c", "import sys; from tokenloom.cli import main; sys.exit(main())", *arguments)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.tokenloom(*arguments))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("example")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return Environment(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Attention that averages makes greedy output repeat itself, so that drafts are accepted now and then.
    return write_tiny_llama(tmp_path_factory.mktemp("model"), sharpness=0.3, with_tokenizer=True)


def prompts() -> list[list[int]]:
    lengths = [70, 33, 5, 16, 1, 48]
    return [[(number * 31 + index * index * 7) % 256 for index in range(n)] for number, n in enumerate(lengths)]


def test_tokenloom_plugins_lists_both_with_package_and_version(example: Environment) -> None:
    found = example.json("plugins", "--json")
    assert found["broken"] == []
    own = {(p["kind"], p["name"]): p for p in found["plugins"] if p["package"] == DISTRIBUTION}
    assert set(own) == {("scheduler", "shortest_prompt"), ("spec_decode", "bigram")}
    assert all((p["version"], p["contract"], p["refusal"]) == ("0.1.0", "1.0", None) for p in own.values())


def test_tokenloom_config_composes_both(example: Environment) -> None:
    found = example.json("config", *CHOSEN, "scheduler.ageing_tokens_per_s=64", "--json")
    assert found["config"]["scheduler"]["name"] == "shortest_prompt"
    assert found["config"]["scheduler"]["ageing_tokens_per_s"] == 64
    assert found["config"]["scheduler"]["victim"] == {"name": "last_in"}
    assert found["config"]["spec_decode"]["min_count"] == 1
    assert found["sources"]["spec_decode.min_count"] == f"{DISTRIBUTION}:spec_decode/bigram.yaml"


def test_the_packages_own_tests_pass(example: Environment) -> None:
    assert " passed" in example.run("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests", cwd=EXAMPLE)


def test_generation_gives_the_tokens_of_the_plain_engine(example: Environment, model: Path) -> None:
    configs: dict[str, Sequence[str]] = {"plain": ["scheduler=fcfs", "spec_decode=none"], "example": CHOSEN}
    found = json.loads(example.run("-c", COMPARE, json.dumps([str(model), *prompts()]), json.dumps(configs)))
    assert found["example"]["token_ids"] == found["plain"]["token_ids"]
    assert [len(ids) for ids in found["plain"]["token_ids"]] == [40] * len(prompts())
    num_drafts, num_accepted = found["example"]["drafts"]
    assert num_drafts > num_accepted > 0, "no draft was verified, accepted or rejected: nothing was compared"
    assert found["plain"]["drafts"] == [0, 0]


def test_the_shortest_prompts_are_served_first(example: Environment, model: Path) -> None:
    # A hundredth of a token for a second of waiting: length alone decides.
    chosen = ["scheduler=shortest_prompt", "scheduler.ageing_tokens_per_s=0.01"]
    configs = {"fcfs": ["scheduler=fcfs"], "shortest": chosen}
    found = json.loads(example.run("-c", COMPARE, json.dumps([str(model), *prompts()]), json.dumps(configs)))
    by_length = sorted(range(len(prompts())), key=lambda number: len(prompts()[number]))
    order = {name: sorted(by_length, key=run["first_token_s"].__getitem__) for name, run in found.items()}
    assert order["shortest"] == by_length
    assert order["fcfs"] != by_length


def test_tokenloom_generate_runs_with_both(example: Environment, model: Path) -> None:
    arguments = ("generate", "to be or not to be or not", f"model={model}", "max_tokens=12", "ignore_eos=true")
    plain = example.tokenloom(*arguments, "spec_decode=none")
    assert plain.strip()
    assert example.tokenloom(*arguments, *CHOSEN) == plain
