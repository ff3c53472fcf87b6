"""The package of docs/adding_a_model.md, as it stands there: it loads by entry point, generates, and fails by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.core.models.building import build
from tests.core.models.dense_attention import Sequences
from tests.plugin_packages import install_package
from tests.tiny_model import write_byte_tokenizer, write_tiny_llama
from tokenloom import LLM, SamplingParams
from tokenloom.errors import ContractVersionError, ModelError, PluginError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.models.registry import architecture_named, model_infos
from tokenloom.plugins import default_registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding_a_model.md"
PACKAGE = "tokenloom_granite"
PROMPT = list(range(40, 70))


def sources() -> dict[str, str]:
    """The files that the page shows: a path in backquotes, a colon, and a block of code."""
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """install(name, {file: source}) puts a package on the path, where the core finds it."""

    def forget() -> None:
        default_registry.cache_clear()
        architecture_named.cache_clear()

    def install_files(name: str, files: dict[str, str]) -> None:
        install_package(tmp_path / name, monkeypatch, name, files[f"{name}/__init__.py"])
        for file, source in files.items():
            (tmp_path / name / file).write_text(source)
        for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
            del sys.modules[module]
        forget()

    yield install_files
    forget()


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Granite, written by Transformers."""
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=288,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        embedding_multiplier=3.0,
        attention_multiplier=0.4,
        residual_multiplier=0.7,
        logits_scaling=1.0,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("granite")
    GraniteForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@torch.no_grad()
def transformers_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    from transformers import GraniteForCausalLM

    logits: torch.Tensor = GraniteForCausalLM.from_pretrained(folder).eval()(torch.tensor([token_ids])).logits[0]
    return logits


def test_the_package_of_the_page_runs_a_model_as_transformers_does(install: Callable[..., None], granite: Path) -> None:
    assert set(sources()) == {f"{PACKAGE}/__init__.py", f"{PACKAGE}/granite.py"}
    install(PACKAGE, sources())
    assert "granite" in {info.name for info in model_infos()}
    expected = transformers_logits(granite, PROMPT)
    assert expected.std() > 0.3
    torch.testing.assert_close(Sequences(build(granite), 1, 40).feed(PROMPT), expected, rtol=0.0, atol=1e-4)

    settings = ("model.dtype=float32", "cache.num_blocks=64", "cache.block_size=4", "engine.num_threads=1")
    with LLM(str(granite), settings, show_progress=False) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        token_ids = llm.generate([PROMPT], params)[0].outputs[0].token_ids
    logits = transformers_logits(granite, PROMPT + token_ids)[len(PROMPT) - 1 : -1]
    assert logits.topk(2).values.diff().abs().min() > 1e-4
    assert token_ids == logits.argmax(-1).tolist()


def test_the_package_of_the_page_refuses_what_it_does_not_know(install: Callable[..., None], tmp_path: Path) -> None:
    install(PACKAGE, sources())
    folder = write_tiny_llama(
        tmp_path / "model",
        extra_config={"model_type": "granite", "architectures": ["GraniteForCausalLM"], "logits_scaling": 8.0},
    )
    with pytest.raises(ModelError, match=r"sets 'logits_scaling' to 8\.0, which changes the model's arithmetic"):
        open_checkpoint(folder)


def test_an_unknown_family_names_what_is_supported_and_what_failed_to_load(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install(PACKAGE, {**sources(), f"{PACKAGE}/__init__.py": "import a_module_that_is_not_there"})
    folder = write_tiny_llama(tmp_path / "model", extra_config={"model_type": "granite"})
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    assert "type 'granite'" in str(caught.value)
    assert "qwen3 (Qwen3ForCausalLM or Qwen3Model)" in str(caught.value)
    assert "A package failed to load: tokenloom-granite" in str(caught.value)
    assert "a_module_that_is_not_there" in str(caught.value)


DECLARATION = """
from tokenloom.plugins import ModelInfo, hookimpl


@hookimpl
def tokenloom_models() -> list[ModelInfo]:
    return [ModelInfo({arguments})]
"""


@pytest.mark.parametrize(
    ("arguments", "source", "message"),
    [
        ("'mine', 'pkg_mine.code:Nothing', ('mine',)", "", "module pkg_mine.code has no class Nothing"),
        ("'mine', 'pkg_mine.code:Mine', ('mine',)", "1 / 0", "ZeroDivisionError"),
        ("'mine', 'pkg_mine.code:Mine', ('mine',)", "class Mine: ...", "is not a subclass of Architecture"),
        (
            "'mine', 'pkg_mine.code:Mine', ('mine',)",
            "from tokenloom.models.architecture import Architecture\nclass Mine(Architecture): ...",
            "must be made without arguments, but fails with TypeError",
        ),
    ],
)
def test_a_broken_family_is_named_when_its_model_is_opened(
    install: Callable[..., None], tmp_path: Path, arguments: str, source: str, message: str
) -> None:
    install("pkg_mine", {"pkg_mine/__init__.py": DECLARATION.format(arguments=arguments), "pkg_mine/code.py": source})
    folder = write_tiny_llama(tmp_path / "model", extra_config={"model_type": "mine"})
    with pytest.raises(PluginError, match="model mine cannot be loaded") as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize("version", [(2, 0), (1, 7)])
def test_a_family_of_another_contract_is_refused_by_version(
    install: Callable[..., None], tmp_path: Path, version: tuple[int, int]
) -> None:
    arguments = f"'mine', 'pkg_mine.code:Mine', ('mine',), contract={version}"
    install("pkg_mine", {"pkg_mine/__init__.py": DECLARATION.format(arguments=arguments), "pkg_mine/code.py": "1 / 0"})
    folder = write_tiny_llama(tmp_path / "model", extra_config={"model_type": "mine"})
    stated = ".".join(map(str, version))
    with pytest.raises(ContractVersionError, match=f"model mine .*written for model contract {stated}, this core"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("arguments", "claim"),
    [
        ("'llama', 'pkg_twin.code:Mine'", "name 'llama'"),
        ("'mine', 'pkg_twin.code:Mine', ('qwen2',)", "model_type 'qwen2'"),
        ("'mine', 'pkg_twin.code:Mine', (), (), ('gemma2',)", "GGUF architecture 'gemma2'"),
    ],
)
def test_two_families_of_one_name_are_refused_naming_both_packages(
    install: Callable[..., None], arguments: str, claim: str
) -> None:
    install("pkg_twin", {"pkg_twin/__init__.py": DECLARATION.format(arguments=arguments)})
    with pytest.raises(PluginError, match=f"claim the {claim}: one from package tokenloom, one from package pkg-twin"):
        model_infos()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("'mine', 'os.system'", "target must be 'module:Class'"),
        ("'mine', 'pkg_odd.code:Mine', 'mine'", "names must be a tuple of texts, got 'mine'"),
        ("'mine', 'pkg_odd.code:Mine', ('mine', 3)", "names must be a tuple of texts"),
    ],
)
def test_a_wrong_declaration_breaks_its_package_alone(
    install: Callable[..., None], arguments: str, reason: str
) -> None:
    install("pkg_odd", {"pkg_odd/__init__.py": DECLARATION.format(arguments=arguments)})
    (broken,) = default_registry().broken
    assert reason in broken.error
    assert "mine" not in {info.name for info in model_infos()}
