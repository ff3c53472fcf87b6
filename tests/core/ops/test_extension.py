"""Extensions are built on first use, found again, and refused with words that help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.core.ops.native_levels import LEVELS, NEEDS_COMPILER
from tokenloom.engine_config import EngineSettings
from tokenloom.errors import CapabilityError, NativeBuildError
from tokenloom.executors.device_choice import choose_ops
from tokenloom.ops.native import load_extension, why_not_buildable
from tokenloom.ops.native.toolchain import find_toolchain

CPU = torch.device("cpu")

HEADER = """#pragma once
#include <tokenloom/isa.h>
TL_DECLARE_KERNEL(const char*, level, ())
"""
KERNEL = """#include "level.h"
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
namespace tl::TL_ISA {
const char* level() { return TEXT(TL_ISA); }
}
"""
BINDING = """#include <pybind11/pybind11.h>
#include "level.h"
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("set_isa", [](const char* name) { return tl::set_isa(name); });
  m.def("isa", [] { return tl::isa_name(tl::current_isa()); });
  m.def("level", [] { return tl::level_kernel()(); });
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _write(folder: Path, binding: str = BINDING) -> Path:
    folder.mkdir()
    for name, text in (("level.h", HEADER), ("level.cpp", KERNEL), ("binding.cpp", binding)):
        (folder / name).write_text(text)
    return folder


def _load(folder: Path, name: str = "tokenloom_test") -> object:
    return load_extension(
        name,
        [folder / "binding.cpp"],
        kernels=[folder / "level.cpp"],
        include_dirs=[folder],
        instead="attention=torch_sdpa",
    )


@NEEDS_COMPILER
def test_load_extension_builds_once_and_chooses_kernels_by_level(
    tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = _write(tmp_path / "csrc")
    module = _load(folder, "tokenloom_test_levels")
    assert "tokenloom_test_levels is native code: building it with" in capfd.readouterr().err
    assert _load(folder, "tokenloom_test_levels") is module
    assert capfd.readouterr().err == ""
    assert len(list(cache.glob("native/tokenloom_test_levels-*/*.so"))) == 1
    best = module.isa()  # type: ignore[attr-defined]
    for level in LEVELS[: LEVELS.index(best) + 1]:
        assert module.set_isa(level)  # type: ignore[attr-defined]
        assert module.level() == ("avx512" if level == "amx" else level)  # type: ignore[attr-defined]
    assert not module.set_isa("quantum")  # type: ignore[attr-defined]


@NEEDS_COMPILER
def test_load_extension_shows_what_the_compiler_complains_of(tmp_path: Path, cache: Path) -> None:
    folder = _write(tmp_path / "csrc", "int main() { return no_such_name; }")
    with pytest.raises(NativeBuildError, match=r"(?s)no_such_name.*or use attention=torch_sdpa"):
        _load(folder)
    assert list(cache.glob("native/*/*.so")) == []


@NEEDS_COMPILER
def test_load_extension_says_when_the_cache_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(NativeBuildError, match="TOKENLOOM_CACHE"):
        _load(_write(tmp_path / "csrc"))


@pytest.mark.parametrize("compiler", ["no-such-compiler", ""])
def test_load_extension_without_a_compiler_says_what_to_install_and_to_choose(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeBuildError, match=r"(?s)no C\+\+ compiler.*apt install g\+\+.*attention=torch_sdpa"):
        _load(_write(tmp_path / "csrc"))
    assert not cache.exists()


@NEEDS_COMPILER
def test_flags_of_the_environment_are_used_and_make_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENLOOM_CXXFLAGS", raising=False)
    toolchain = find_toolchain()
    plain = (toolchain.compile_flags("x"), toolchain.link_flags())
    monkeypatch.setenv("TOKENLOOM_CXXFLAGS", "-fsanitize=address '-DWORDS=two words'")
    added = ["-fsanitize=address", "-DWORDS=two words"]
    assert (toolchain.compile_flags("x"), toolchain.link_flags()) == (plain[0] + added, plain[1] + added)


def test_load_extension_without_python_s_headers_names_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("CXX", "/bin/true")
    with pytest.raises(NativeBuildError, match="python3-dev"):
        find_toolchain()


def test_auto_chooses_native_ops_for_bfloat16_where_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.executors.device_choice.why_not_buildable", lambda: None)
    auto = EngineSettings()
    assert choose_ops(auto, CPU, torch.bfloat16) == "native"
    assert choose_ops(auto, CPU, torch.float32) == "torch"
    assert choose_ops(EngineSettings(operations="torch"), CPU, torch.bfloat16) == "torch"


def test_auto_chooses_torch_ops_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not_buildable() is not None
    assert choose_ops(EngineSettings(), CPU, torch.bfloat16) == "torch"
    assert choose_ops(EngineSettings(operations="native"), CPU, torch.bfloat16) == "native"  # building it says why not


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_native_ops_are_refused_where_they_cannot_compute(device: str, dtype: torch.dtype) -> None:
    with pytest.raises(CapabilityError, match=r"engine\.operations=native .* got .*; try .*engine\.operations=torch"):
        choose_ops(EngineSettings(operations="native"), torch.device(device), dtype)
