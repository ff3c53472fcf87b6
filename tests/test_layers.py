"""The shape of the code: layers, sizes, names, and what an import costs. Reads the sources, runs none of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = {
    "tokenloom": ROOT / "core",
    "tokenloom_attention": ROOT / "plugins" / "attention",
    "tokenloom_schedulers": ROOT / "plugins" / "schedulers",
    "tokenloom_cache": ROOT / "plugins" / "cache",
    "tokenloom_spec_decode": ROOT / "plugins" / "spec_decode",
    "tokenloom_quant": ROOT / "plugins" / "quant",
    "tokenloom_example": ROOT / "examples" / "third_party_plugin",
}
PLUGIN_PACKAGES = frozenset(SOURCE_ROOTS) - {"tokenloom"}

LAYERS: tuple[frozenset[str], ...] = (
    # 0: contracts, and the types that they exchange.
    frozenset(
        {
            "interfaces",
            "batch",
            "capability_check",
            "clock",
            "collector_pause",
            "engine_config",
            "errors",
            "grammar_spec",
            "hookspecs",
            "interrupts",
            "json_file",
            "model_config",
            "openmp",
            "output_files",
            "parallel",
            "plugin_discovery",
            "plugin_guard",
            "plugin_target",
            "plugins",
            "request",
            "rope_config",
            "sampling_fields",
            "sampling_params",
            "settings_base",
            "settings_validation",
            "unguarded",
        }
    ),
    # 1: memory, sampling and scheduling.
    frozenset({"checkpoint", "kv", "sampling", "scheduling"}),
    # 2: the step loop, and what runs a model.
    frozenset(
        {
            "executors",
            "loader",
            "logits_processors",
            "models",
            "ops",
            "text",
            "backlog",
            "batch_state",
            "commit",
            "draft_lengths",
            "draft_passes",
            "draft_proposals",
            "engine",
            "engine_builder",
            "engine_output",
            "engine_parts",
            "engine_tap",
            "feasibility",
            "host_blocks",
            "model_runner",
            "proposal_check",
            "request_book",
            "request_factory",
            "request_options",
            "row_plan",
            "sampled_rows",
            "step_inputs",
            "structured",
            "tracing",
            "verification",
            "view_guard",
            "waiting_states",
        }
    ),
    # 3: offline use and configuration.
    frozenset(
        {
            "__init__",
            "bench",
            "compose",
            "drafter_training",
            "engine_process",
            "evaluation",
            "experiments",
            "kv_calibration",
            "llm",
            "load_generator",
            "memory_forecast",
            "load_progress",
            "observability",
            "quantization",
            "results",
            "session",
            "simulation",
        }
    ),
    # 4: what people touch.
    frozenset({"cli", "server", "testing"}),
)
"""Modules and packages right below `tokenloom`; a package has its place as a whole. A new one gets its line here."""

MAX_LINES = 300
MAX_KERNEL_LINES = 500
MAX_FUNCTION_LINES = 60
NAMELESS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name and its syntax tree."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def where(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def read_modules(package: str) -> list[Module]:
    base = SOURCE_ROOTS[package]
    return [read_module(path, base) for path in sorted((base / package).rglob("*.py"))]


def read_module(path: Path, base: Path) -> Module:
    parts = path.relative_to(base).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    source = path.read_text(encoding="utf-8")
    return Module(name, path, source, ast.parse(source, str(path)))


CORE = read_modules("tokenloom")
CODE = [module for package in SOURCE_ROOTS for module in read_modules(package)]
TESTS = [read_module(path, ROOT) for path in sorted((ROOT / "tests").rglob("*.py"))]


def imported_names(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports anywhere, in functions and under TYPE_CHECKING too, with the line.

    `from a import b` yields "a.b", be b a module or not.
    """
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def layer_of(name: str) -> int:
    """Layer of a dotted name in `tokenloom`; what is no module (`tokenloom.LLM`) is in the package's own `__init__`."""
    table = {entry: number for number, entries in enumerate(LAYERS) for entry in entries}
    return table.get([*name.split("."), "__init__"][1], table["__init__"])


def upward_imports(modules: list[Module]) -> list[str]:
    return [
        f"{module.where}:{line} (layer {layer_of(module.name)}) imports {name} (layer {layer_of(name)})"
        for module in modules
        for name, line in imported_names(module)
        if name.split(".")[0] == "tokenloom" and layer_of(name) > layer_of(module.name)
    ]


def test_every_core_module_has_its_place_in_one_layer() -> None:
    existing = {[*module.name.split("."), "__init__"][1] for module in CORE}
    placed = [name for names in LAYERS for name in names]
    assert len(placed) == len(set(placed)), "a module is in two layers"
    assert existing - set(placed) == set(), "modules without a layer: give them a place in LAYERS"
    assert set(placed) - existing == set(), "LAYERS names modules that do not exist"


def test_layers_import_downwards_only() -> None:
    assert upward_imports(CORE) == []


@pytest.mark.parametrize(
    "line",
    [
        "import tokenloom.engine",
        "from tokenloom.kv.manager import KVManager",
        "from tokenloom import llm",
        "from tokenloom import LLM",
        "if TYPE_CHECKING:\n    from tokenloom.compose import compose_config",
        "def build() -> None:\n    from .cli.main import main",
    ],
)
def test_an_import_upwards_is_seen_wherever_it_stands(line: str) -> None:
    module = Module("tokenloom.clock", ROOT / "core" / "tokenloom" / "clock.py", line, ast.parse(line))
    assert len(upward_imports([module])) == 1


def test_core_imports_no_plugin_package() -> None:
    found = [
        f"{module.where}:{line} imports {name}"
        for module in CORE
        for name, line in imported_names(module)
        if name.split(".")[0] in PLUGIN_PACKAGES
    ]
    assert found == []


def test_plugin_packages_do_not_import_each_other() -> None:
    found = [
        f"{module.where}:{line} imports {name}"
        for module in CODE
        for name, line in imported_names(module)
        if name.split(".")[0] in PLUGIN_PACKAGES - {module.name.split(".")[0]}
        and module.name.split(".")[0] != "tokenloom"
    ]
    assert found == []


def test_modules_are_short() -> None:
    def limit(module: Module) -> int:
        return MAX_KERNEL_LINES if module.path.name == "kernels.py" else MAX_LINES

    counts = [(module, module.source.count("\n")) for module in CODE]
    assert [f"{module.where}: {count} lines" for module, count in counts if count > limit(module)] == []


def test_functions_are_short() -> None:
    found = [
        f"{module.where}:{node.lineno} {node.name}: {length} lines"
        for module in CODE
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert found == []


def test_modules_are_named_after_what_they_hold() -> None:
    found = [module.where for module in [*CODE, *TESTS] if NAMELESS & {*module.path.with_suffix("").parts}]
    assert found == []


def test_modules_say_what_they_are() -> None:
    assert [module.where for module in [*CODE, *TESTS] if not ast.get_docstring(module.tree)] == []


def test_modules_postpone_the_evaluation_of_annotations() -> None:
    """A module that holds nothing but its docstring and imports needs no line for it."""
    found = [
        module.where
        for module in [*CODE, *TESTS]
        if any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AnnAssign) for node in ast.walk(module.tree))
        and not any(name == "__future__.annotations" for name, _ in imported_names(module))
    ]
    assert found == []


@pytest.mark.parametrize(
    "module",
    [
        "tokenloom",
        "tokenloom.cli",
        "tokenloom.cli.main",
        "tokenloom.compose",
        "tokenloom.server.front_end_app",
        "tokenloom.server.supervisor",
    ],
)
def test_an_import_does_not_pull_in_torch(module: str) -> None:
    program = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), f"import {module} loads torch, or fails"


def test_declaring_plugins_does_not_pull_in_torch() -> None:
    program = "from tokenloom.plugins import default_registry as d; import sys; d(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), "a plugin package imports torch when it is listed"


TRACKED = ("core", "plugins", "conf", "tests", "examples", "docs", "benchmarks", ".ci")
# Put together here, so that this file does not hold what it looks for.
OUTSIDE = tuple("".join(parts) for parts in (("/wo", "rk/"), ("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/")))
REGISTRIES = tuple("".join(parts) for parts in (("pypi", ".org"), ("python", "hosted.org")))


def text_files() -> Iterator[tuple[Path, str]]:
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in TRACKED for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(paths):
        is_generated = any(part.endswith((".egg-info", "_cache", "__pycache__", ".hypothesis")) for part in path.parts)
        if not is_generated and path.suffix not in {".so", ".pyc", ".png", ".gguf", ".safetensors"}:
            yield path, path.read_text(encoding="utf-8", errors="replace")


def test_no_file_names_a_place_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in text_files()
        for word in (*OUTSIDE, *REGISTRIES)
        if word in text
    ]
    assert found == []
