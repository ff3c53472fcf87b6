"""A model of the hub from the command line: fetched once, run, run again without a network, listed, removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_hub import FakeHub
from tests.tiny_model import write_tiny_llama

pytestmark = pytest.mark.slow


def test_model_of_the_hub_from_fetching_to_removing(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TOKENLOOM_"))}
    environment |= {"HF_HOME": str(tmp_path / "home"), "TOKENLOOM_CACHE": str(tmp_path / "own")}

    def run(*words: str, **changes: str) -> tuple[int, str, str]:
        command = [str(Path(sys.executable).parent / "tokenloom"), *words]
        done = subprocess.run(command, env=environment | changes, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    generate = ("generate", "--prompt", "abc", "model=hf:org/tiny@v1", "max_tokens=8", "cache.num_blocks=8")
    with FakeHub() as hub:
        environment["HF_ENDPOINT"] = hub.url
        hub.add("org/tiny", {path.name: path.read_bytes() for path in model.iterdir()}, "v1")
        first = run(*generate)
        assert first[0] == 0, first[2]
        assert set(hub.downloads()) == {path.name for path in model.iterdir()}
        hub.requests.clear()
        assert run(*generate, TOKENLOOM_OFFLINE="1")[:2] == first[:2]
        assert hub.requests == []
    unreachable = run(*generate)
    assert unreachable[:2] == first[:2]
    assert "what was fetched before is used" in unreachable[2]
    assert "hf:org/tiny@v1" in run("models", "list")[1]
    assert run("models", "rm", "hf:org/tiny@v1", "--yes")[0] == 0
    code, out, err = run(*generate, TOKENLOOM_OFFLINE="1")
    assert (code, out) == (2, "")
    assert "'tokenloom models pull hf:org/tiny@v1'" in err
