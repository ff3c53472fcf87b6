"""`tokenloom explain`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenloom.cli import main as _main  # noqa: F401 - the package first, as users import it
from tokenloom.cli.explain import GROUP_DOCS
from tokenloom.compose import builtin_conf_dir, compose_config
from tokenloom.compose.config_keys import settings_models
from tokenloom.interfaces.contract import CONTRACT_VERSIONS
from tokenloom.server.settings import ServeSettings

RunCli = Callable[..., tuple[int, str, str]]


def test_a_key_shows_doc_type_default_owners_and_keyword(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "cache.block_size")
    assert code == 0
    for part in ("Tokens per KV block.", "whole number >= 1", "16", "cache=hash", "cache=none", "LLM(block_size=...)"):
        assert part in out


def test_a_key_with_choices_lists_them(run_cli: RunCli) -> None:
    assert "choices    off, cheap, full" in run_cli("explain", "debug.checks")[1]


@pytest.mark.parametrize(("word", "key"), [("seed", "engine.seed"), ("max_num_seqs", "scheduler.max_num_seqs")])
def test_a_python_keyword_leads_to_its_key(run_cli: RunCli, word: str, key: str) -> None:
    code, out, _ = run_cli("explain", word)
    assert code == 0
    assert out.splitlines()[0] == key


@pytest.mark.parametrize("group", ["cache.eviction", "cache/eviction"])
def test_a_nested_group_lists_its_plugins(run_cli: RunCli, group: str) -> None:
    code, out, _ = run_cli("explain", group)
    assert code == 0
    assert "Contract version 1.0. Choose with cache.eviction=NAME." in out
    assert "lru" in out


def test_a_kind_lists_plugins_parts_and_keys(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "scheduler")
    assert code == 0
    for part in ("fcfs", "scheduler.victim", "scheduler.max_num_batched_tokens", "2048"):
        assert part in out


def test_a_plugin_shows_package_and_its_own_keys(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "spec_decode=ngram")
    assert code == 0
    for part in ("tokenloom 0.1.0", "spec_decode.policy, by default fixed", "spec_decode.min_n"):
        assert part in out


def test_a_kind_that_requests_choose_says_how(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "logits_processor")
    assert code == 0
    for part in (
        "Choose with logits_processors={NAME:{SETTING:VALUE}} beside the sampling keys.",
        "no_repeat_ngram",
        "size",
    ):
        assert part in out
    code, out, _ = run_cli("explain", "logits_processor=no_repeat_ngram")
    assert code == 0
    assert "include_prompt" in out
    assert "written       logits_processors={no_repeat_ngram:{size:...}}" in out


@pytest.mark.parametrize("word", ["size", "logits_processor.size"])
def test_a_setting_of_what_requests_choose_is_shown_as_one_writes_it(run_cli: RunCli, word: str) -> None:
    code, out, _ = run_cli("explain", word)
    assert code == 0
    assert out.splitlines()[0] == "size"
    assert "written    logits_processors={no_repeat_ngram:{size:...}}" in out


@pytest.mark.parametrize("word", ["logits_processor", "logits_processor=no_repeat_ngram"])
def test_no_key_is_listed_that_can_be_written_nowhere(run_cli: RunCli, word: str) -> None:
    out = run_cli("explain", word)[1]
    assert "logits_processor.size" not in out
    assert any(line.split()[:1] == ["size"] for line in out.splitlines())


@pytest.mark.parametrize(
    ("key", "expected"),
    [("logit_bias", "mapping from whole number to number"), ("stop_token_ids", "list of whole number")],
)
def test_types_of_sampling_keys_are_words(run_cli: RunCli, key: str, expected: str) -> None:
    assert f"type       {expected}\n" in run_cli("explain", key)[1]


def test_presets_are_listed(run_cli: RunCli) -> None:
    text = run_cli("explain", "experiment")[1]
    listed = text.partition("Choose with experiment=NAME: ")[2].partition(".")[0]
    folder = builtin_conf_dir() / "experiment"
    assert " ".join(listed.split()).split(", ") == sorted(path.stem for path in folder.glob("*.yaml"))


def test_a_preset_shows_its_file(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "experiment=latency")
    assert code == 0
    assert "conf/experiment/latency.yaml" in out
    assert "max_num_seqs: 8" in out
    code, _, err = run_cli("explain", "experiment=latnecy")
    assert code == 2
    assert "Did you mean 'latency'?" in err


@pytest.mark.parametrize(
    ("word", "hint"), [("cache.blok_size", "cache.block_size"), ("schedulr", "scheduler"), ("qqq", "groups are model")]
)
def test_an_unknown_key_names_near_matches(run_cli: RunCli, word: str, hint: str) -> None:
    code, _, err = run_cli("explain", word)
    assert code == 2
    assert hint in err


def test_an_unknown_plugin_lists_what_exists(run_cli: RunCli) -> None:
    code, _, err = run_cli("explain", "scheduler=nope")
    assert code == 2
    assert "fcfs" in err


def test_every_group_and_block_is_documented() -> None:
    groups = {group.replace("/", ".") for group in compose_config(["spec_decode=ngram"]).choices}
    blocks = {*settings_models(), *settings_models(ServeSettings)}
    assert set(GROUP_DOCS) == groups | set(CONTRACT_VERSIONS) | blocks


def test_every_leaf_of_the_configuration_can_be_explained(run_cli: RunCli) -> None:
    leaves = [key for key in compose_config(["spec_decode=ngram"]).sources if not key.endswith(".name")]
    assert len(leaves) > 15
    for key in leaves:
        code, out, err = run_cli("explain", key)
        assert (code, err) == (0, "")
        assert "(no description)" not in out, key
