"""`tokenloom config`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

RunCli = Callable[..., tuple[int, str, str]]


def test_the_table_shows_key_value_and_origin(run_cli: RunCli) -> None:
    code, out, _ = run_cli("config", "experiment=latency", "cache.block_size=32")
    rows = {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}
    assert code == 0
    assert rows["cache.block_size"] == ["32", "override", "cache.block_size=32"]
    assert rows["scheduler.max_num_seqs"] == ["8", "conf/experiment/latency.yaml"]
    assert rows["engine.deterministic"] == ["false", "conf/config.yaml"]
    assert rows["cache.num_blocks"] == ["null", "conf/cache/hash.yaml"]


def test_json_holds_values_sources_and_choices(run_cli: RunCli) -> None:
    code, out, _ = run_cli("config", "--json", "spec_decode=ngram")
    shown = json.loads(out)
    assert code == 0
    assert shown["config"]["spec_decode"]["policy"]["name"] == "fixed"
    assert shown["sources"]["spec_decode.name"] == "override spec_decode=ngram"
    assert shown["choices"]["spec_decode"] == "ngram"


def test_config_dir_adds_options_of_ones_own(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "big.yaml").write_text("name: hash\nblock_size: 64\n")
    code, out, _ = run_cli("config", "--config-dir", str(tmp_path), "cache=big", "--json")
    assert code == 0
    assert json.loads(out)["config"]["cache"]["block_size"] == 64


def test_config_dir_that_is_not_there_is_a_mistake(run_cli: RunCli, tmp_path: Path) -> None:
    code, _, err = run_cli("config", "--config-dir", str(tmp_path / "nope"))
    assert code == 2
    assert "no such folder" in err


def test_brackets_in_values_are_printed_as_they_are(run_cli: RunCli) -> None:
    code, out, _ = run_cli("config", "model='/a/[b]'")
    assert code == 0
    assert "/a/[b]" in out
