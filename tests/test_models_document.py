"""docs/models.md: its commands run where they need no network, and its sources are of the form that is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shown_commands import run_shown
from tokenloom.loader.hub_source import HubSpec

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
NEEDS_NETWORK = [block for block in BLOCKS if "hf:" in block]
RUNNABLE = [block for block in BLOCKS if block not in NEEDS_NETWORK]
SCRIPTS = [block for block in RUNNABLE if re.search(r"^(?!tokenloom |#|$)", block, re.MULTILINE)]
"""What takes a shell: variables, other programs."""


def test_every_block_is_checked_here() -> None:
    assert len(BLOCKS) == TEXT.count("```") // 2
    assert 0 < len(NEEDS_NETWORK) < len(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in RUNNABLE if block not in SCRIPTS])
def test_commands_run(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_shown(block, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS)
def test_scripts_run(block: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{block}\nprinted nothing"


@pytest.mark.parametrize("source", sorted({word for block in NEEDS_NETWORK for word in re.findall(r"hf:(\S+)", block)}))
def test_hub_sources_are_of_the_form_that_is_read(source: str) -> None:
    assert str(HubSpec.parse(source)) == f"hf:{source}"
