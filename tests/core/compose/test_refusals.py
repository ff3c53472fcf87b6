"""Every kind of mistake in a configuration is refused with a message that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError

WriteConfigDir = Callable[[dict[str, str]], Path]


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("attention=nope", ["attention=nope", "torch_sdpa"]),
        ("attention=torch_sdp", ["Did you mean 'torch_sdpa'?"]),
        ("experiment=latnecy", ["debug, latency", "Did you mean 'latency'?"]),
        ("cache.eviction=lruu", ["cache.eviction=lruu", "Did you mean 'lru' or 'slru'?"]),
        ("cache.name=none", ["write cache=none"]),
        ("cache.eviction.name=lru", ["write cache.eviction=lru"]),
        ("cache={name: none}", ["write cache=none"]),
        ("cache=null", ["hash, none", "Off is a plugin called 'none'"]),
        ("cache=off", ["Off is a plugin called 'none'"]),
        ("spec_decode=false", ["Off is a plugin called 'none'"]),
        ("cache=3", ["takes the name of an option"]),
        ("cache.eviction=3", ["takes the name of an option, one of fifo, lfu, lru"]),
        ("~cache", ["cannot be deleted"]),
        ("~cache.block_size", ["cannot be deleted"]),
        ("hydra.run.dir=x", ["Hydra's own settings"]),
        ("+hydra.anything=x", ["Hydra's own settings"]),
        ("++hydra.verbose=true", ["Hydra's own settings"]),
        ("hydra/launcher=basic", ["Hydra's own settings"]),
        ("cache@elsewhere=none", ["write cache=none"]),
        ("cache.block_size=8,16", ["sweep"]),
        ("cache=hash,none", ["sweep"]),
        ("cache.block_size=range(1,4)", ["sweep"]),
        ("cache.block_size=choice(1,4)", ["sweep"]),
        ("cache=glob(*)", ["sweep"]),
        ("model=hf:a/b,hf:c/d", ["sweep"]),
        ("model=nope", ["'nope' is neither an option (default) nor an existing path", "hf:org/name"]),
        ("model=defualt", ["Did you mean 'default'?"]),
        ("cache.block_size", ["is not an override", "key=value"]),
        ("=3", ["is not an override"]),
        ("", ["is not an override"]),
        ("engine.seed=[1", ["cannot be parsed", "quotes"]),
        ("engine.seed=a#b", ["cannot be parsed"]),
        ("cache.block_size.deeper=3", ["cache.block_size holds a value (16)"]),
        ("engine=3", ["engine=3: must be a block"]),
        ("cache.block_size=true", ["must be a valid integer"]),
        ("cache.block_size='16'", ["must be a valid integer"]),
        ("cache.block_size=0", ["cache.block_size=0", "greater than or equal to 1"]),
        ("cache.memory_fraction=1.5", ["less than or equal to 0.98"]),
        ("engine.deterministic=1", ["must be a valid boolean"]),
        ("engine.pipeline_depth=3", ["must be 1 or 2"]),
        ("engine.pipeline_depth=true", ["engine.pipeline_depth=true: must be one of 1, 2"]),
        ("model.dtype=float64", ["'auto', 'float32', 'bfloat16' or 'float16'"]),
        ("debug.checks=ful", ["'off', 'cheap' or 'full'"]),
        ("max_num_seqs=3", ["did you mean scheduler.max_num_seqs?"]),
        ("seed=3", ["did you mean engine.seed?"]),
        ("cache.max_num_seqs=3", ["did you mean scheduler.max_num_seqs?"]),
        ("cache.blok_size=3", ["cache=hash has no such key", "did you mean cache.block_size?"]),
        ("+cache.blok_size=3", ["did you mean cache.block_size?"]),
        ("++cache.blok_size=3", ["did you mean cache.block_size?"]),
        ("scheduller=fcfs", ["did you mean scheduler?"]),
        ("cache.evicton=lru", ["did you mean cache.eviction?"]),
        ("spec_decode.min_n=3", ["spec_decode=none has no such key", "it belongs to spec_decode=ngram"]),
    ],
)
def test_override_is_refused_with_help(override: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([override])
    for part in parts:
        assert part in str(caught.value)


def test_all_faults_are_listed_at_once() -> None:
    overrides = ["cache.block_size=0", "debug.checks=x", "scheduler.max_num_seqs=-1", "engine.tpyo=1", "+other=2"]
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    text = str(caught.value)
    assert text.startswith("5 settings are wrong:")
    for key in ("cache.block_size=0", "debug.checks=x", "scheduler.max_num_seqs=-1", "engine.tpyo=1", "other=2"):
        assert f"- {key}" in text


def test_faults_of_a_nested_plugin_and_its_parent_are_both_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["cache.eviction.tpyo=1", "cache.block_size=0"])
    assert "cache.eviction.tpyo=1: cache.eviction=lru has no such key" in str(caught.value)
    assert "cache.block_size=0" in str(caught.value)


def test_a_part_that_the_plugin_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache=none has no part 'eviction'; try cache=hash"):
        compose_config(["cache=none", "cache.eviction=lru"])
    with pytest.raises(ConfigError, match=r"cache\.eviction\.x=1: cache=none has no such key"):
        compose_config(["cache=none", "cache.eviction.x=1"])


def test_a_fault_from_a_file_names_the_file(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"cache/mine.yaml": "name: hash\nblock_size: 0\n"})
    with pytest.raises(ConfigError, match=r"cache\.block_size=0 \(.*user_conf/cache/mine\.yaml\)"):
        compose_config(["cache=mine"], config_dir=folder)


def test_leftover_keys_of_a_preset_are_explained(config_dir: WriteConfigDir) -> None:
    preset = "# @package _global_\ndefaults:\n  - override /spec_decode: ngram\nspec_decode:\n  min_n: 3\n"
    folder = config_dir({"experiment/chat.yaml": preset})
    assert compose_config(["experiment=chat"], config_dir=folder).engine.spec_decode.name == "ngram"
    with pytest.raises(ConfigError, match=r"spec_decode\.min_n=3 \(.*experiment/chat\.yaml\).*drop the preset"):
        compose_config(["experiment=chat", "spec_decode=none"], config_dir=folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# @package _global_\nhydra:\n  verbose: true\n", "Hydra's own settings"),
        ("# @package _global_\ndefaults:\n  - override /hydra/job_logging: none\n", "Hydra's own settings"),
        ("- a\n- b\n", "holds a list"),
        ("a: [1\n", "experiment/bad.yaml"),
        ("a: 1\na: 2\n", "duplicate key"),
        ("# @package _global_\ndefaults:\n  - override /cache: nope\n", "cache/nope"),
        ("# @package _global_\nengine:\n  sede: 1\n", "did you mean engine.seed?"),
    ],
)
def test_a_bad_preset_is_refused_naming_it(config_dir: WriteConfigDir, text: str, reason: str) -> None:
    folder = config_dir({"experiment/bad.yaml": text})
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=bad"], config_dir=folder)
    assert reason in str(caught.value)


def test_a_mandatory_value_that_is_not_given_is_refused(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"cache/mine.yaml": "name: hash\nblock_size: ???\n"})
    with pytest.raises(ConfigError, match=r"cache\.block_size: .*[Mm]issing mandatory value"):
        compose_config(["cache=mine"], config_dir=folder)


def test_an_option_file_without_a_name_is_refused(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"cache/nameless.yaml": "block_size: 8\n"})
    with pytest.raises(
        ConfigError, match=r"cache: must be a block whose 'name' is one of contiguous, hash, none, radix"
    ):
        compose_config(["cache=nameless"], config_dir=folder)


def test_config_dir_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        compose_config(config_dir=tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["cache/hash.yaml", "cache/eviction/lru.yaml", "config.yaml", "experiment/debug.yaml"])
def test_config_dir_may_not_shadow_a_builtin_option(config_dir: WriteConfigDir, path: str) -> None:
    folder = config_dir({path: "name: hash\n"})
    with pytest.raises(ConfigError, match=rf"{path} exists twice: .*user_conf"):
        compose_config(config_dir=folder)


def test_a_group_that_the_engine_lacks_is_refused(config_dir: WriteConfigDir) -> None:
    folder = config_dir({"teleport/fast.yaml": "speed: 3\n"})
    with pytest.raises(ConfigError, match=r"an engine has no group teleport"):
        compose_config(["teleport=fast"], config_dir=folder)
