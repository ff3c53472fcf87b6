"""What the documents show is so: commands and code of README.md run, the tutorial's plugin works, links lead on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shown_commands import run_shown
from tokenloom.plugins import default_registry

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda path: path.as_posix(),
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(text: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block that names a language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


BLOCKS = blocks_of(README)
# A server does not end by itself: tests/test_serving_document.py tries those.
SHELL = [block for language, block in BLOCKS if language == "bash" and "tokenloom serve" not in block]
PYTHON = [block for language, block in BLOCKS if language == "python"]
RUNNABLE = {"tokenloom", "echo"}
RUN_ELSEWHERE = {"make", "pip"}
"""Set-up commands: CI starts with them, and tests/test_wheel.py installs."""


def programs(block: str) -> set[str]:
    return {line.split()[0] for line in block.splitlines() if line.strip() and not line.startswith("#")}


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # `tokenloom` lies beside the interpreter that runs the tests.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_block_is_of_a_language_that_is_checked() -> None:
    assert {language for language, _ in BLOCKS} == {"bash", "python"}
    assert [sorted(programs(block)) for block in SHELL if not programs(block) <= RUNNABLE | RUN_ELSEWHERE] == []
    assert [block for block in SHELL if programs(block) & RUNNABLE and programs(block) & RUN_ELSEWHERE] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in SHELL if programs(block) == {"tokenloom"}])
def test_commands_run(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_shown(block, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in SHELL if {"tokenloom"} < programs(block) <= RUNNABLE])
def test_shell_scripts_run(block: str, tmp_path: Path) -> None:
    done = run(["bash", "-euo", "pipefail", "-c", block], tmp_path)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{block}\nprinted nothing"


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON)
def test_python_runs(block: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", block], tmp_path)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("wrong", ["scheduler=fifo", "cache.blok_size=32"])
def test_the_mistakes_that_it_shows_are_refused(wrong: str, tmp_path: Path) -> None:
    assert wrong in README
    done = run(["tokenloom", "config", wrong], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_the_table_lists_every_built_in_plugin() -> None:
    listed = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \|", README, re.MULTILINE)
    built_in = {(p.info.kind, p.info.name) for p in default_registry().plugins() if p.package == "tokenloom"}
    assert len(listed) == len(set(listed))
    assert set(listed) == built_in


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:core|plugins|conf|docs|tests|examples|benchmarks)/[\w./-]+)`", document.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists() and not (document.parent / name).exists()] == []


def test_the_tutorials_plugin_works(tmp_path: Path) -> None:
    blocks = blocks_of((ROOT / "docs" / "writing_a_plugin.md").read_text(encoding="utf-8"))
    (settings, declaration, conformance) = (block for language, block in blocks if language == "python")
    (yaml,) = (block for language, block in blocks if language == "yaml")
    (entry_point,) = (block for language, block in blocks if language == "toml")
    assert '[project.entry-points.tokenloom]\nmy_package = "my_package"' in entry_point
    files = {
        "my_package/__init__.py": declaration,
        "my_package/cheapest.py": settings,
        "my_package/conf/scheduler/victim/cheapest.yaml": yaml,
        "test_cheapest.py": conformance,
        "my_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n",
        "my_package-1.0.dist-info/entry_points.txt": "[tokenloom]\nmy_package = my_package\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = ["tokenloom", "config", "scheduler.victim=cheapest", "scheduler.victim.min_tokens=3", "--json"]
    done = run(command, tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["config"]["scheduler"]["victim"] == {"name": "cheapest", "min_tokens": 3}
    done = run([sys.executable, "-m", "pytest", "-q", "test_cheapest.py"], tmp_path, PYTHONPATH=str(tmp_path))
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
