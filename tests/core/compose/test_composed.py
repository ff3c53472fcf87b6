"""What composing gives: validated blocks, origins of values, plain data."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.interfaces.scheduler import SchedulerConfig

WriteConfigDir = Callable[[dict[str, str]], Path]


class BenchSettings(BaseModel):
    """A command's own keys, as a benchmark has them."""

    model_config = ConfigDict(extra="forbid")
    workload: Path
    output: Path | None = None
    repeats: int = Field(default=1, ge=1)


def test_defaults_compose_to_the_builtin_plugins() -> None:
    engine = compose_config().engine
    assert [(choice.kind, choice.name) for choice in engine.choices()] == [
        ("attention", "native_cpu"),
        ("scheduler", "fcfs"),
        ("cache", "hash"),
        ("spec_decode", "none"),
        ("quant", "none"),
        ("executor", "local"),
    ]
    assert isinstance(engine.cache.config, CacheConfig)
    assert engine.cache.config.block_size == 16


def test_overrides_reach_core_plugin_and_nested_blocks() -> None:
    composed = compose_config(["spec_decode=ngram", "spec_decode.min_n=1", "engine.seed=7", "model.dtype=float32"])
    values = composed.to_dict()
    assert values["spec_decode"]["name"] == "ngram"
    assert values["spec_decode"]["min_n"] == 1
    assert values["spec_decode"]["policy"]["name"] == "fixed"
    assert composed.engine.engine.seed == 7
    assert composed.engine.model.dtype == "float32"


@pytest.mark.parametrize("override", ["cache.eviction=lru", "cache/eviction=lru", "+cache.eviction=lru"])
def test_nested_choice_in_any_spelling_replaces_the_whole_block(override: str) -> None:
    composed = compose_config([override])
    assert composed.to_dict()["cache"]["eviction"]["name"] == "lru"
    assert composed.sources["cache.eviction.name"] == f"override {override}"


def test_sources_name_file_preset_override_keyword_and_default(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"scheduler/short.yaml": "name: fcfs\nmax_num_seqs: 3\n"})
    composed = compose_config(
        ["scheduler=short", "experiment=debug", "cache.block_size=32"],
        config_dir=folder,
        keywords={"max_num_batched_tokens": 99},
    )
    sources = composed.sources
    assert sources["engine.seed"] == "conf/config.yaml"
    assert sources["cache.memory_fraction"] == "conf/cache/hash.yaml"
    assert sources["cache.name"] == "conf/config.yaml"
    assert sources["debug.checks"] == "conf/experiment/debug.yaml"
    assert sources["cache.block_size"] == "override cache.block_size=32"
    assert sources["scheduler.name"] == "override scheduler=short"
    assert sources["scheduler.max_num_seqs"] == str(folder / "scheduler" / "short.yaml")
    assert sources["scheduler.max_num_batched_tokens"] == "keyword max_num_batched_tokens=99"
    assert sources["scheduler.victim.name"] == "default"
    assert composed.choices["experiment"] == "debug"


def test_preset_choice_is_a_source_and_yields_to_an_override() -> None:
    preset = compose_config(["experiment=latency"])
    assert preset.engine.spec_decode.name == "ngram"
    assert preset.sources["spec_decode.name"] == "conf/experiment/latency.yaml"
    overridden = compose_config(["experiment=latency", "spec_decode=none"])
    assert overridden.engine.spec_decode.name == "none"
    assert overridden.sources["spec_decode.name"] == "override spec_decode=none"


def test_every_leaf_of_the_values_has_a_source() -> None:
    composed = compose_config(["spec_decode=ngram", "quant=int8"])

    def leaves(values: dict[str, object], prefix: str = "") -> set[str]:
        found: set[str] = set()
        for key, value in values.items():
            found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}"}
        return found

    assert set(composed.sources) == leaves(composed.to_dict())


def test_an_option_of_ones_own_is_a_variant_of_a_registered_plugin(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"cache/big.yaml": "name: hash\nblock_size: 64\n"})
    composed = compose_config(["cache=big", "cache.eviction=lru"], config_dir=folder)
    assert composed.engine.cache.name == "hash"
    assert composed.to_dict()["cache"]["block_size"] == 64
    assert composed.to_dict()["cache"]["eviction"]["name"] == "lru"


def test_interpolations_resolve() -> None:
    config = compose_config(["scheduler.max_num_batched_tokens=${scheduler.max_num_seqs}"]).engine.scheduler.config
    assert isinstance(config, SchedulerConfig)
    assert config.max_num_batched_tokens == config.max_num_seqs


def test_an_interpolation_that_fails_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"model\.dtype: .*NO_SUCH_VARIABLE"):
        compose_config(["model.dtype=${oc.env:NO_SUCH_VARIABLE}"])


def test_command_keys_go_to_the_commands_schema() -> None:
    composed = compose_config(["workload=a#b=c d.json", "repeats=3", "cache=none"], command=BenchSettings)
    settings = composed.extras_of(BenchSettings)
    assert settings == BenchSettings(workload=Path("a#b=c d.json"), repeats=3)
    assert composed.engine.cache.name == "none"
    assert composed.sources["workload"] == "override workload=a#b=c d.json"
    assert composed.sources["output"] == "default"


def test_command_keys_are_checked_like_any_other() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["repeats=0", "worklod=x", "cache.block_size=0"], command=BenchSettings)
    text = str(caught.value)
    assert "workload: must be given" in text
    assert "repeats=0: must be greater than or equal to 1" in text
    assert "did you mean workload?" in text
    assert "cache.block_size=0" in text


def test_command_keys_are_unknown_to_other_commands() -> None:
    with pytest.raises(ConfigError, match=r"workload=x: no such key"):
        compose_config(["workload=x"])


@pytest.mark.parametrize(
    ("override", "source"),
    [
        ("model=hf:org/name", "hf:org/name"),
        ("+model=hf:org/name", "hf:org/name"),
        ("model=pypi:a-b==1.2#f.gguf", "pypi:a-b==1.2#f.gguf"),
        ("model=/some/where/model.gguf", "/some/where/model.gguf"),
        ("model=./relative", "./relative"),
        ("model='/with, comma'", "/with, comma"),
        ("model.source=pypi:a==b#c", "pypi:a==b#c"),
        ("model.source=123", "123"),
        ("model=default", "default"),
    ],
)
def test_model_takes_any_source_without_quotes(override: str, source: str) -> None:
    assert compose_config([override]).engine.model.source == source


@pytest.mark.parametrize("source", ["hf:org/name@main", "pypi:a==b#c.gguf", "~/heads", "./heads, old"])
def test_drafters_take_any_source_as_well(source: str) -> None:
    value = f"'{source}'" if "," in source else source
    config = compose_config(["spec_decode=draft_model", f"spec_decode.source={value}"]).engine.spec_decode.config
    assert dict(config)["source"] == os.path.expanduser(source)


def test_a_path_may_begin_at_home() -> None:
    home = os.path.expanduser("~")
    assert compose_config(["trace.file=~/a b.jsonl"]).engine.trace.file == f"{home}/a b.jsonl"
    with pytest.raises(ConfigError, match=f"executor.device={home}/none.yaml: No such file"):
        compose_config(["executor=simulated", "executor.device=~/none.yaml"])


def test_model_takes_an_existing_folder_by_a_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel").mkdir()
    monkeypatch.chdir(tmp_path)
    assert compose_config(["model=mymodel"]).engine.model.source == "mymodel"


def test_model_and_its_keys_combine() -> None:
    model = compose_config(["model=hf:org/name", "model.revision=1234567", "model.dtype=bfloat16"]).engine.model
    assert (model.source, model.revision, model.dtype) == ("hf:org/name", "1234567", "bfloat16")


def test_the_last_of_equal_overrides_wins() -> None:
    composed = compose_config(["cache=none", "engine.seed=1", "engine.seed=2", "cache=hash"])
    assert (composed.engine.cache.name, composed.engine.engine.seed) == ("hash", 2)


def test_a_block_override_sets_its_keys() -> None:
    composed = compose_config(["cache={block_size: 8, num_blocks: 64}"])
    assert composed.to_dict()["cache"] | {"block_size": 8, "num_blocks": 64} == composed.to_dict()["cache"]
    assert composed.sources["cache.num_blocks"] == "override cache={block_size: 8, num_blocks: 64}"
