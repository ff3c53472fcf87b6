"""`tokenloom new plugin`: what it writes installs, passes its own tests, and runs in an engine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.cli.config_arguments import split_words
from tokenloom.cli.plugin_package import TEMPLATED_KINDS, usage, write_plugin_package
from tokenloom.cli.sampling_settings import SamplingSettings
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, KINDS, REQUEST_KINDS, SUB_KINDS
from tokenloom.plugins import default_registry

RunCli = Callable[..., tuple[int, str, str]]

WHEELS_PROGRAM = """
import os, sys
from hatchling.build import build_wheel

wheels, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    build_wheel(wheels)
"""

EXPLAIN_PROGRAM = """
import contextlib, io, json, sys
from tokenloom.cli import main

said = {}
for key in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["explain", key])
    said[key] = [code, out.getvalue()]
print(json.dumps(said))
"""

ENGINE_PROGRAM = """
import json, sys
from tokenloom import LLM, SamplingParams

model, *choices = sys.argv[1:]
prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12, 12, 12], [1, 2, 3, 4, 5, 6, 7, 20]]
for choice in choices:
    overrides = ["model.dtype=float32", "cache.block_size=4", "cache.num_blocks=64", *choice.split()]
    with LLM(model, overrides, show_progress=False) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12))
    print(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))
"""


def names() -> dict[str, str]:
    """A plugin name for each kind."""
    return {kind: f"made_{kind.rpartition('.')[2]}" for kind in TEMPLATED_KINDS}


def run(*command: str | Path, path: Sequence[Path] = (), cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([*map(str, command)], env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one generated package per kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind, name in names().items():
        write_plugin_package(kind, name, folder)
    return folder


@pytest.fixture(scope="module")
def site(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all generated packages installed by pip; one process builds all wheels, as pip would."""
    folder, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    for package in packages.iterdir():
        assert 'build-backend = "hatchling.build"' in (package / "pyproject.toml").read_text()
    run(sys.executable, "-c", WHEELS_PROGRAM, wheels, *sorted(packages.iterdir()))
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *options, "--target", folder, *sorted(wheels.iterdir()))
    return folder


def test_every_kind_but_the_executor_has_a_template() -> None:
    assert set(TEMPLATED_KINDS) == set(CONTRACT_VERSIONS) - {"executor"}


def test_new_plugin_writes_the_package_and_says_what_comes_next(run_cli: RunCli, tmp_path: Path) -> None:
    code, out, _ = run_cli("new", "plugin", "cache.eviction", "oldest", "--output", str(tmp_path))
    assert code == 0
    folder = tmp_path / "oldest-eviction"
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert written == [
        "README.md",
        "oldest_eviction/__init__.py",
        "oldest_eviction/conf/cache/eviction/oldest.yaml",
        "oldest_eviction/oldest.py",
        "oldest_eviction/py.typed",
        "pyproject.toml",
        "tests/test_oldest.py",
    ]
    assert f"pip install -e '{folder}[dev]'" in out
    assert "tokenloom explain cache.eviction=oldest" in out
    assert "tokenloom config cache=hash cache.eviction=oldest" in (folder / "README.md").read_text()


@pytest.mark.parametrize("kind", TEMPLATED_KINDS)
def test_the_printed_command_composes(run_cli: RunCli, tmp_path: Path, kind: str) -> None:
    code, out, _ = run_cli("new", "plugin", kind, "brand_new", "--output", str(tmp_path))
    assert code == 0
    (line,) = [line for line in out.splitlines() if "tokenloom generate" in line]
    known = default_registry().names(kind)[-1]  # a package that is not installed cannot be composed
    _, overrides = split_words(shlex.split(line.replace("brand_new", known)))
    composed = compose_config(overrides, command=SamplingSettings)
    assert known in str(composed.to_dict())


def test_a_plugin_that_requests_choose_gets_no_config_group(run_cli: RunCli, tmp_path: Path) -> None:
    code, out, _ = run_cli("new", "plugin", "logits_processor", "mild", "--output", str(tmp_path))
    assert code == 0
    folder = tmp_path / "mild-logits-processor"
    assert not (folder / "mild_logits_processor" / "conf").exists()
    assert "'logits_processors={mild:{}}'" in out
    assert "'logits_processors={mild:{}}'" in (folder / "README.md").read_text()
    assert "tokenloom_config_dir" not in (folder / "mild_logits_processor" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("schedulr", "x", "Did you mean 'scheduler'"),
        ("executor", "x", "start from tokenloom/executors/local.py"),
        ("scheduler", "fcfs", "exists already, in package tokenloom"),
        ("scheduler", "Bad-Name", "lower case words"),
        ("scheduler", "trailing_", "lower case words"),
        ("scheduler", "class", "no Python word"),
    ],
)
def test_new_plugin_refuses_with_a_reason(run_cli: RunCli, tmp_path: Path, kind: str, name: str, reason: str) -> None:
    code, _, err = run_cli("new", "plugin", kind, name, "--output", str(tmp_path))
    assert code == 2
    assert reason in err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine-cache").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_plugin_package("cache", "mine", tmp_path)
    assert list((tmp_path / "mine-cache").iterdir()) == []


@pytest.mark.parametrize("kind", TEMPLATED_KINDS)
def test_no_placeholder_is_left_in_what_is_written(packages: Path, kind: str) -> None:
    folder = packages / f"{names()[kind]}_{kind.rpartition('.')[2]}".replace("_", "-")
    for path in folder.rglob("*"):
        if path.is_file():
            assert "$" not in path.read_text(), path
            if path.suffix == ".py":
                compile(path.read_text(), path, "exec")


def test_generated_code_is_clean(packages: Path) -> None:
    options = ("--isolated", "--line-length", "120", "--no-cache")
    for folder in packages.iterdir():
        run(sys.executable, "-m", "ruff", "check", *options, "--select", "E,F,I,UP,B,SIM,RUF022", ".", cwd=folder)
        run(sys.executable, "-m", "ruff", "format", *options, "--check", ".", cwd=folder)


@pytest.mark.slow
def test_generated_code_is_typed(packages: Path, tmp_path: Path) -> None:
    modules = [init.parent for init in packages.glob("*/*/__init__.py")]
    run(sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", *modules)


@pytest.mark.slow
def test_generated_packages_are_listed_and_explained_once_installed(site: Path) -> None:
    program = "import sys; from tokenloom.cli import main; sys.exit(main())"
    listing = json.loads(run(sys.executable, "-c", program, "plugins", "--json", path=[site]))
    assert listing["broken"] == []
    found = {(plugin["kind"], plugin["name"]): plugin["package"] for plugin in listing["plugins"]}
    keys = [f"{kind}={name}" for kind, name in names().items()]
    explained = json.loads(run(sys.executable, "-c", EXPLAIN_PROGRAM, *keys, path=[site]))
    for (kind, name), key in zip(names().items(), keys, strict=True):
        assert found[kind, name] == f"{name}_{kind.rpartition('.')[2]}".replace("_", "-")
        code, out = explained[key]
        assert code == 0
        assert name in out


@pytest.mark.slow
def test_generated_tests_pass_once_installed(packages: Path, site: Path) -> None:
    out = run(
        sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", packages, path=[site]
    )
    assert " passed" in out


@pytest.mark.slow
def test_yaml_of_generated_packages_lists_every_field_with_its_default(site: Path) -> None:
    program = """
import sys, yaml
from pathlib import Path
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.plugins import default_registry
registry = default_registry()
folders = {folder.owner: folder.path for folder in registry.config_folders}
for plugin in registry.plugins():
    if plugin.package in folders:
        info = plugin.info
        fields = registry.load_config_class(info.kind, info.name).model_fields
        path = folders[plugin.package] / info.kind.replace(".", "/") / f"{info.name}.yaml"
        values = yaml.safe_load(path.read_text())
        values.pop("defaults", None)
        wanted = {name: field.default for name, field in fields.items() if field.annotation is not PluginChoice}
        wanted = {name: list(v) if isinstance(v, tuple) else v for name, v in wanted.items()}  # YAML has only lists
        assert values == {"name": info.name, **wanted}, (plugin.label, values, wanted)
        print(plugin.label)
"""
    num_with_yaml = len(set(TEMPLATED_KINDS) - set(REQUEST_KINDS))
    assert len(run(sys.executable, "-c", program, path=[site]).split()) == num_with_yaml


@pytest.mark.slow
def test_generated_plugins_give_the_plain_models_tokens(site: Path, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    chosen = [f"{kind}={name}" for kind, name in names().items() if kind in KINDS]
    choices = ["cache=none", *chosen, *(usage(kind, names()[kind]) for kind in SUB_KINDS)]
    choices.append(
        " ".join([*chosen, *(f"{kind}={names()[kind]}" for kind in ("cache.eviction", "spec_decode.policy"))])
    )
    outputs = run(sys.executable, "-c", ENGINE_PROGRAM, model, *choices, path=[site]).splitlines()
    assert len(outputs) == len(choices)
    plain = json.loads(outputs[0])
    assert [len(ids) for ids in plain] == [12, 12, 12]
    for choice, tokens in zip(choices, outputs, strict=True):
        assert json.loads(tokens) == plain, choice
