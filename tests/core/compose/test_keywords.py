"""Python keywords map to keys through one table, and never contradict an override in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenloom.compose import KEYWORDS, compose_config
from tokenloom.errors import ConfigError

VALUES: dict[str, Any] = {
    "model": "hf:org/name",
    "revision": "main",
    "dtype": "float32",
    "device": "cpu",
    "max_model_len": 128,
    "seed": 3,
    "deterministic": True,
    "pipeline_depth": 2,
    "num_threads": 1,
    "checks": "full",
    "attention": "torch_sdpa",
    "scheduler": "fcfs",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "cache": "none",
    "block_size": 8,
    "num_blocks": 99,
    "memory_fraction": 0.5,
    "spec_decode": "ngram",
    "quant": "int8",
    "executor": "local",
    "experiment": "debug",
}


def test_this_table_covers_every_keyword() -> None:
    assert set(VALUES) == set(KEYWORDS)


@pytest.mark.parametrize("keyword", sorted(set(VALUES) - {"experiment"}))
def test_each_keyword_sets_its_key(keyword: str) -> None:
    composed = compose_config(keywords={keyword: VALUES[keyword]})
    key = {"model": "model.source"}.get(keyword, KEYWORDS[keyword])
    key = key if "." in key else f"{key}.name"
    block, _, name = key.partition(".")
    assert composed.to_dict()[block][name] == VALUES[keyword]
    assert composed.sources[key].startswith(f"keyword {keyword}=")


def test_the_experiment_keyword_chooses_a_preset() -> None:
    assert compose_config(keywords={"experiment": "debug"}).engine.debug.checks == "full"
    assert compose_config(keywords={"experiment": None}).choices["experiment"] is None


def test_an_unknown_keyword_names_near_matches() -> None:
    with pytest.raises(ConfigError, match=r"unknown keyword max_num_sqes=8\. Did you mean 'max_num_seqs'\?"):
        compose_config(keywords={"max_num_sqes": 8})


@pytest.mark.parametrize(
    ("keywords", "override"),
    [
        ({"max_num_seqs": 8}, "scheduler.max_num_seqs=4"),
        ({"deterministic": True}, "engine.deterministic=false"),
        ({"seed": 1}, "engine.seed='1'"),
        ({"cache": "none"}, "cache=hash"),
        ({"model": "hf:a/b"}, "model=hf:c/d"),
        ({"model": "hf:a/b"}, "model=default"),
        ({"model": "hf:a/b"}, "model.source=hf:c/d"),
        ({"block_size": 8}, "cache={block_size: 16}"),
    ],
)
def test_a_keyword_that_contradicts_an_override_is_refused(keywords: dict[str, Any], override: str) -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        compose_config([override], keywords=keywords)


def test_a_keyword_that_agrees_with_an_override_is_fine() -> None:
    composed = compose_config(["scheduler.max_num_seqs=8", "cache=none"], keywords={"max_num_seqs": 8, "cache": "none"})
    assert composed.to_dict()["scheduler"]["max_num_seqs"] == 8


@pytest.mark.parametrize("value", [object(), int, {1: 2}, [object()], b"bytes"])
def test_a_keyword_takes_plain_data_only(value: object) -> None:
    with pytest.raises(ConfigError, match="is no setting"):
        compose_config(keywords={"dtype": value})


def test_a_keyword_of_the_wrong_type_is_refused_by_key_and_keyword() -> None:
    with pytest.raises(
        ConfigError, match=r"scheduler\.max_num_seqs=8 \(keyword max_num_seqs='8'\): must be a valid int"
    ):
        compose_config(keywords={"max_num_seqs": "8"})


def test_a_model_may_be_a_path_object(tmp_path: Path) -> None:
    assert compose_config(keywords={"model": tmp_path}).engine.model.source == str(tmp_path)
