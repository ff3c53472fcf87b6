"""docs/tutorial.md, from its first command to its table: every file is written and every command is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PACKAGE = "my-sjf-scheduler"

pytestmark = pytest.mark.slow


def blocks() -> Iterator[tuple[str, str]]:
    """(language, content) of every fenced block, in order."""
    return iter(re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE))


@dataclass(slots=True)
class Reader:
    """Somebody who follows the tutorial in an empty folder. The package is installed into a folder of its own."""

    folder: Path

    def write(self, block: str) -> None:
        """A file's content, whose first line names it."""
        name = block.splitlines()[0].removeprefix("# ")
        path = self.folder / PACKAGE / name
        assert path.is_file(), f"the tutorial replaces {name}, which `tokenloom new` did not write"
        path.write_text(block, encoding="utf-8")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """One command line, as typed; the package is found in its sources, as after `pip install -e`."""
        # `tokenloom`, `python` and `pytest` lie beside the interpreter that runs the tests.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        sources = os.pathsep.join([str(self.folder / PACKAGE), str(self.folder / "installed")])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def follow(self, command: str) -> str:
        """Runs a command and checks its exit status; returns what it printed."""
        if command.startswith("pip install -e"):
            # Without a network: the metadata alone, beside the sources.
            target = self.folder / "installed"
            command = f"python -m pip install -q --no-deps --no-build-isolation --target {target} ./{PACKAGE}"
        status = re.search(r"# exit status (\d+)$", command.strip())
        done = self.run(command)
        expected = int(status[1]) if status is not None else 0
        assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def commands(block: str) -> list[str]:
    """The commands of a block: one a line, but for a here-document."""
    if "<<'END'" in block:
        head, _, rest = block.partition("\nEND\n")
        return [f"{head}\nEND\n", *rest.splitlines()]
    return block.splitlines()


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    printed: dict[str, str] = {}
    for language, block in blocks():
        match language:
            case "python" | "yaml":
                reader.write(block)
            case "bash":
                for command in commands(block):
                    printed[command] = reader.follow(command)
            case _:
                pytest.fail(f"a block of language {language!r} is not checked")
    measured = re.findall(r"^\| `(scheduler=\w+)` \|(?: [\d.]+ \|){6}$", TUTORIAL, re.MULTILINE)
    assert measured == ["scheduler=fcfs", "scheduler=my_sjf"]
    failed = printed[f"tokenloom plugins check {PACKAGE}  # exit status 1"]
    assert set(re.findall(r"FAILED \S+ (test_\w+)", failed)) == {
        "test_nobody_waits_longer_than_stated",
        "test_a_preempted_request_waits_no_longer_than_stated",
    }
    assert "FAILED" not in printed[f"tokenloom plugins check {PACKAGE}"]
    table = next(text for command, text in printed.items() if command.startswith("tokenloom bench"))
    assert re.findall(r"^ *(scheduler=\w+) ", table, re.MULTILINE) == ["scheduler=fcfs", "scheduler=my_sjf"]
