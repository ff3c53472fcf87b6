"""`benchmarks/gpu_check.py` at tiny sizes, in Triton's interpreter: what it says of right and of wrong kernels."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("gpu_check")


def test_a_small_run_finds_everything_right_and_writes_its_report(
    gpu_check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    assert gpu_check.main(["--small", "--device", "cpu", "--only", "correctness", "--output", str(output)]) == 0
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["failures"] == {}
    assert found["skipped"] == []
    passed = "\n".join(found["passed"])
    for kind in ("triton_paged int8", "triton_flash", "naive", "cache of 131072", "sampling", "verification", "engine"):
        assert kind in passed
    assert found["provenance"]["packages"]["triton"]
    assert all("not measured" in target for target in found["targets"])
    assert "failed" in capsys.readouterr().out


def test_a_wrong_kernel_is_named_and_the_rest_goes_on(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = importlib.import_module("gpu_check_correctness")
    table = checks.build_op_table(CPU, "triton")

    class WrongSilu:
        def __getattr__(self, name: str) -> object:
            return (lambda gates: table.silu_and_mul(gates) + 1) if name == "silu_and_mul" else getattr(table, name)

    monkeypatch.setattr(checks, "build_op_table", lambda *_: WrongSilu())
    report = gpu_check.Report()
    found = [*checks.operation_checks(CPU, [torch.float32], [5]), checks.Check("fine", lambda: None)]
    monkeypatch.setattr(gpu_check, "_checks", lambda *_: iter(found))
    gpu_check.check_correctness(CPU, gpu_check.SMALL, report, gpu_check.Budget(60))
    assert list(report.failures) == ["operations float32 5"]
    assert "silu_and_mul" in report.failures["operations float32 5"]
    assert report.passed == ["fine"]


def test_what_there_is_no_time_for_is_named(gpu_check: ModuleType) -> None:
    report = gpu_check.Report()
    gpu_check.check_correctness(CPU, gpu_check.SMALL, report, gpu_check.Budget(0))
    gpu_check.measure_engines(CPU, gpu_check.SMALL, report, gpu_check.Budget(0), None)
    assert len(report.skipped) > 8
    assert report.skipped[-1] == "tiny Llama whole"
    assert report.passed == []


def test_speed_rows_have_rates_and_splits_beside_none(gpu_check: ModuleType) -> None:
    attention, small = importlib.import_module("gpu_check_attention"), gpu_check.SMALL
    rows = list(attention.decode_rows(CPU, small.heads, 2, 600, ["auto"]))
    assert [row.name for row in rows[:2]] == ["triton_paged auto", "triton_paged, not split"]
    page_bytes = 2 * small.heads.num_kv_heads * small.heads.head_dim * 2  # of a token, in 16 bits
    assert rows[0].rate == pytest.approx(2 * 600 * page_bytes / rows[0].time_s / 1e9)
    for row in rows:
        assert (row.rate is None) == (row.note != "" and row.time_s is None)


def test_targets_compare_with_their_yardsticks(gpu_check: ModuleType) -> None:
    attention, engine = (importlib.import_module(f"gpu_check_{name}") for name in ("attention", "engine"))
    report = gpu_check.Report(yardsticks={"copy_gb_s": 4000.0, "matmul_tflop_s": 800.0})
    report.attention = [
        attention.Row("decode 32 x 8192", "triton_paged auto", 1.0, 3500.0),
        attention.Row("prompt 8192, head_dim 128", "triton_flash", 1.0, 400.0),
        attention.Row("prompt 8192, head_dim 128", "sdpa cudnn", 1.0, 600.0),
    ]
    report.engines = [engine.EngineRow("8B", "tokenloom attention=x", 600.0, 1.0)]
    report.engines.append(engine.EngineRow("8B", "transformers", 100.0, 1.0))
    lines = gpu_check.target_lines(report)
    assert [line.rpartition(": ")[2] for line in lines] == ["met", "MISSED", "not measured", "MISSED", "met"]


def test_without_a_card_it_says_what_to_do(gpu_check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main([])
    assert "no CUDA device; --device cpu --small" in capsys.readouterr().err


def test_the_header_lists_every_package_that_is_loaded(tmp_path: Path) -> None:
    """In a process of its own: the imports, and a tiny engine, which loads the rest."""
    program = """
import sys
sys.path.insert(0, "benchmarks")
import gpu_check, torch
from pathlib import Path
folder = gpu_check.write_llama(Path(sys.argv[1]) / "model", gpu_check.TINY, torch.float32, torch.device("cpu"))
print(gpu_check.generate(folder, ["attention=naive", "cache.num_blocks=9"], [[1, 2]], 2)[0])
from importlib.metadata import packages_distributions
owners = packages_distributions()
files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
loaded = [name for name, file in files.items() if "site-packages" in file]
print(" ".join(sorted({owner.lower() for name in loaded for owner in owners.get(name, [])})))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header = (ROOT / "benchmarks" / "gpu_check.py").read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    words = set(re.findall(r"[\w-]+", header.lower().replace("_", "-")))
    # What pytest, torch and hydra bring along by themselves.
    known = {"attrs", "setuptools", "sympy", "mpmath", "iniconfig", "pygments", "tokenloom", "hypothesis"}
    known |= {"googleapis-common-protos"}  # shares a folder with protobuf
    missing = {name.replace("_", "-") for name in done.stdout.splitlines()[-1].split()} - words - known
    assert missing == set()
