"""`tokenloom models`: list, pull, rm, architectures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.fake_hub import FakeHub
from tests.tiny_model import write_tiny_llama
from tokenloom.loader.sources import DEFAULT_MODEL, resolve_model

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one model, and two empty caches."""
    for name in ("HF_TOKEN", "TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "own"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True)
    with FakeHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        hub.add("org/tiny", {path.name: path.read_bytes() for path in model.iterdir()})
        yield hub


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_list_of_empty_caches_says_where_they_are(hub: FakeHub, run_cli: RunCli, tmp_path: Path) -> None:
    code, out, err = run_cli("models", "list")
    assert (code, err) == (0, "")
    assert out == f"0 models, 0 B, in {tmp_path / 'own' / 'models'} and {tmp_path / 'hub'}\n"
    assert not (tmp_path / "own").exists()


def test_pull_then_list_then_rm(hub: FakeHub, run_cli: RunCli, tmp_path: Path) -> None:
    code, out, _ = run_cli("models", "pull", "hf:org/tiny")
    assert code == 0
    path = Path(out.splitlines()[-1])
    assert (path / "model.safetensors").is_file()
    assert "digests compared" in out
    code, out, err = run_cli("models", "list")
    assert (code, err) == (0, "")
    for part in ("hf:org/tiny", "kB", "safetensors", "llama", "\n1 model,"):
        assert part in out
    assert resolve_model("hf:org/tiny", progress=False) == path
    code, out, _ = run_cli("models", "rm", "hf:org/tiny", "--yes")
    assert (code, out) == (0, "removed hf:org/tiny\n")
    assert not path.exists()
    assert run_cli("models", "list")[1].startswith("0 models")


def test_list_as_json_holds_what_the_table_shows(hub: FakeHub, run_cli: RunCli, tmp_path: Path) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    code, out, _ = run_cli("models", "list", "--json")
    data = json.loads(out)
    assert code == 0
    (model,) = data["models"]
    assert (model["source"], model["format"], model["architecture"]) == ("hf:org/tiny", "safetensors", "llama")
    assert Path(model["path"]).is_relative_to(tmp_path / "hub")
    assert model["size_bytes"] == sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    assert model["last_used_s"] > 1e9
    assert data["caches"] == [str(tmp_path / "own" / "models"), str(tmp_path / "hub")]
    assert (data["problems"], data["offline"]) == ([], None)


def test_list_tells_of_offline_mode_and_asks_nobody(
    hub: FakeHub, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    hub.requests.clear()
    monkeypatch.setenv("TOKENLOOM_OFFLINE", "1")
    assert "TOKENLOOM_OFFLINE=1" in run_cli("models", "list")[1]
    assert json.loads(run_cli("models", "list", "--json")[1])["offline"] == "TOKENLOOM_OFFLINE=1"
    assert hub.requests == []


def test_list_reports_what_is_broken(hub: FakeHub, run_cli: RunCli, tmp_path: Path) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    next((tmp_path / "hub").glob("models--org--tiny/blobs/*")).unlink()
    code, out, err = run_cli("models", "list")
    assert code == 0
    assert "0 models" in out
    assert err.startswith("warning: Blob missing")


def test_pull_compares_what_is_cached(hub: FakeHub, run_cli: RunCli) -> None:
    weights = Path(run_cli("models", "pull", "hf:org/tiny")[1].splitlines()[-1]) / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, out, err = run_cli("models", "pull", "hf:org/tiny")
    assert (code, out) == (2, "")
    assert "is damaged" in err


@pytest.mark.parametrize("source", ["model", "org/tiny", "ftp:x"])
def test_pull_takes_no_paths(hub: FakeHub, run_cli: RunCli, source: str) -> None:
    code, _, err = run_cli("models", "pull", source)
    assert code == 2
    assert "nothing to fetch" in err


def test_pull_says_what_is_wrong_with_a_source(hub: FakeHub, run_cli: RunCli) -> None:
    code, _, err = run_cli("models", "pull", "hf:org/tyni")
    assert code == 2
    assert "there is no model hf:org/tyni" in err


@pytest.mark.parametrize("reply", ["n\n", "\n"])
def test_rm_asks_first(hub: FakeHub, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, reply: str) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    answer(monkeypatch, reply)
    code, out, _ = run_cli("models", "rm", "hf:org/tiny")
    assert code == 1
    assert "Remove hf:org/tiny (" in out
    assert "nothing was removed" in out
    assert "\n1 model, " in run_cli("models", "list")[1]
    answer(monkeypatch, "y\n")
    assert run_cli("models", "rm", "hf:org/tiny")[0] == 0
    assert "0 models" in run_cli("models", "list")[1]


def test_rm_without_an_answer_removes_nothing(hub: FakeHub, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    answer(monkeypatch, "")
    assert run_cli("models", "rm", "hf:org/tiny")[0] == 130
    assert "\n1 model, " in run_cli("models", "list")[1]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("hf:org/tinny", "Did you mean 'hf:org/tiny'?"),
        ("hf:org/tiny@v1", "Did you mean 'hf:org/tiny'?"),
        ("pypi:no-such==1#m.gguf", "'tokenloom models list' shows what is"),
        ("default", f"{DEFAULT_MODEL} is not in a cache"),
        ("hf:../../x", "not of the form"),
    ],
)
def test_rm_of_an_unknown_name_is_refused(hub: FakeHub, run_cli: RunCli, source: str, hint: str) -> None:
    run_cli("models", "pull", "hf:org/tiny")
    code, out, err = run_cli("models", "rm", source, "--yes")
    assert (code, out) == (2, "")
    assert hint in err
    assert "\n1 model, " in run_cli("models", "list")[1]


def test_rm_of_a_path_is_refused(hub: FakeHub, run_cli: RunCli, tmp_path: Path) -> None:
    code, _, err = run_cli("models", "rm", str(tmp_path / "model"), "--yes")
    assert code == 2
    assert "yours to delete" in err
    assert (tmp_path / "model" / "config.json").exists()


def test_rm_lists_the_files_of_a_repository(hub: FakeHub, run_cli: RunCli) -> None:
    hub.add("org/quants", {"a.gguf": b"a", "b.gguf": b"b"})
    for name in ("a", "b"):
        run_cli("models", "pull", f"hf:org/quants#{name}.gguf")
    code, _, err = run_cli("models", "rm", "hf:org/quants", "--yes")
    assert code == 2
    assert "hf:org/quants#a.gguf, hf:org/quants#b.gguf" in err


def test_architectures_lists_every_family_with_its_package(run_cli: RunCli) -> None:
    code, out, err = run_cli("models", "architectures")
    assert (code, err) == (0, "")
    for part in ("llama", "LlamaForCausalLM", "tokenloom"):
        assert part in out
    families = json.loads(run_cli("models", "architectures", "--json")[1])["architectures"]
    (llama,) = [family for family in families if family["name"] == "llama"]
    assert llama == {
        "name": "llama",
        "model_types": ["llama"],
        "class_names": ["LlamaForCausalLM", "LlamaModel"],
        "gguf_names": ["llama"],
        "package": "tokenloom",
    }


def test_pull_shows_no_bar_where_nobody_looks(hub: FakeHub, run_cli: RunCli) -> None:
    assert run_cli("models", "pull", "hf:org/tiny")[2] == ""
