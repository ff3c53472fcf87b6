"""`tokenloom explain`: what a configuration key, a group or one plugin is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import click

from tokenloom.cli.console import print_table
from tokenloom.cli.lazy_group import load_target
from tokenloom.cli.main import COMMANDS
from tokenloom.compose import KEYWORDS
from tokenloom.compose.conf_folders import conf_folders, display_path, group_options
from tokenloom.compose.config_keys import KeyDoc, document_model, near_keys, settings_models
from tokenloom.compose.overrides import value_word
from tokenloom.errors import ConfigError, PluginError, did_you_mean
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, REQUEST_KINDS, SUB_KINDS
from tokenloom.plugins import Registry, default_registry

__all__ = ["GROUP_DOCS", "explain"]

GROUP_DOCS = {
    "model": "Which model to run, and in which form.",
    "engine": "The step loop itself.",
    "debug": "How much the engine checks itself.",
    "experiment": "Presets that set several keys at once.",
    "attention": "How keys and values lie in memory, and attention over them.",
    "scheduler": "Who gets how many tokens in each step.",
    "scheduler.victim": "Who gives memory back when blocks run out.",
    "cache": "KV memory, and which computed blocks can be found again.",
    "cache.eviction": "Which cached block is given up first.",
    "spec_decode": "Proposes tokens that the model verifies several at a time.",
    "spec_decode.policy": "How many tokens are worth proposing.",
    "quant": "How weights are stored and multiplied.",
    "executor": "Where the model runs.",
    "logits_processor": "Changes logits before a token is chosen; each request names those that it wants.",
}
"""One line for each group and block of settings."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A documented key and who has it: plugins ("scheduler=fcfs"), a command ("tokenloom bench") or nobody."""

    doc: KeyDoc
    owners: tuple[str, ...]


@click.command()
@click.argument("key")
def explain(key: str) -> None:
    """Explain a key (scheduler.max_num_seqs, max_num_seqs), a group (cache.eviction) or an option (scheduler=fcfs)."""
    registry = default_registry()
    group, _, name = key.replace("/", ".").partition("=")
    group = KEYWORDS.get(group, group)
    entries = _all_entries(registry)
    exact = [entry for entry in entries if entry.doc.key == group]
    if name and group not in CONTRACT_VERSIONS:
        _explain_option(registry, group, name)
    elif name:
        _explain_plugin(registry, group, name, entries)
    elif group in GROUP_DOCS:
        _explain_group(registry, group, entries)
    elif exact:
        for entry in exact:
            _explain_key(entry)
    else:
        raise _unknown(key, [entry.doc.key for entry in entries])


def _unknown(key: str, known: Sequence[str]) -> ConfigError:
    near = near_keys(key, [*known, *GROUP_DOCS])
    hint = f"did you mean {' or '.join(near)}?" if near else f"groups are {', '.join(GROUP_DOCS)}"
    return ConfigError(f"there is no key or group {key!r}; {hint}")


def _all_entries(registry: Registry) -> list[_Entry]:
    """Every key there is; keys that several plugins share, with equal documentation, are one entry."""
    owners: dict[KeyDoc, list[str]] = {}
    for block, model in settings_models().items():
        for doc in document_model(block, model):
            owners[doc] = []
    for plugin in registry.plugins():
        if plugin.refusal is None:
            try:
                config_class = registry.load_config_class(plugin.info.kind, plugin.info.name)
            except PluginError as error:
                click.echo(f"warning: {error}", err=True)
                continue
            for doc in document_model(plugin.info.kind, config_class):
                owners.setdefault(_hashable(doc), []).append(plugin.label)
    for command, entry in COMMANDS.items():
        if entry.schema is not None:
            for doc in document_model("", load_target(entry.schema)):
                owners.setdefault(_hashable(doc), []).append(f"tokenloom {command}")
    return [_Entry(doc, tuple(names)) for doc, names in owners.items()]


def _hashable(doc: KeyDoc) -> KeyDoc:
    return (
        doc
        if doc.default is None or isinstance(doc.default, str | int | float)
        else replace(doc, default=value_word(doc.default))
    )


def _explain_key(entry: _Entry) -> None:
    doc = entry.doc
    click.echo(doc.key)
    click.echo(f"  {doc.doc or '(no description)'}")
    keywords = [word for word, key in KEYWORDS.items() if key == doc.key]
    facts = {
        "type": doc.type,
        "default": _default_text(doc),
        "choices": ", ".join(doc.choices),
        "of": ", ".join(entry.owners),
        "in Python": ", ".join(f"LLM({word}=...)" for word in keywords),
    }
    for name, text in facts.items():
        if text:
            click.echo(f"  {name:<11}{text}")


def _explain_group(registry: Registry, group: str, entries: Iterable[_Entry]) -> None:
    click.echo(f"{group}: {GROUP_DOCS[group]}")
    if group in CONTRACT_VERSIONS:
        version = ".".join(str(part) for part in CONTRACT_VERSIONS[group])
        usage = "logits_processors={NAME:{...}} beside the sampling keys" if group in REQUEST_KINDS else f"{group}=NAME"
        click.echo(f"Contract version {version}. Choose with {usage}.")
        rows = [(p.info.name, p.package, p.info.summary) for p in registry.plugins(group)]
        print_table(("name", "package", "summary"), rows)
        parts = [sub_kind for sub_kind in SUB_KINDS if sub_kind.startswith(f"{group}.")]
        if parts:
            click.echo(f"Plugins may have parts that are chosen alike: {', '.join(parts)}.")
    else:
        options = group_options(conf_folders(registry, None)).get(group, [])
        if options:
            click.echo(f"Choose with {group}=NAME: {', '.join(options)}.")
    _print_keys(entry for entry in entries if entry.doc.key.rpartition(".")[0] == group)


def _explain_plugin(registry: Registry, kind: str, name: str, entries: Iterable[_Entry]) -> None:
    plugin = registry.get(kind, name)
    info = plugin.info
    click.echo(f"{plugin.label}: {info.summary}")
    click.echo(f"  package       {plugin.package} {plugin.version}")
    click.echo(f"  capabilities  {info.capabilities.summary()}")
    for sub_kind, default in info.sub_kinds.items():
        click.echo(f"  part          {sub_kind}, by default {default}")
    _print_keys(entry for entry in entries if plugin.label in entry.owners)


def _explain_option(registry: Registry, group: str, name: str) -> None:
    """Shows the file of an option that is no plugin: a preset or a model."""
    folders = conf_folders(registry, None)
    options = group_options(folders).get(group, [])
    if name not in options:
        raise ConfigError(
            f"{group}={name}: no such {group}; choose one of {', '.join(options)}.{did_you_mean(name, options)}"
        )
    for folder in folders:
        path = folder.path / group.replace(".", "/") / f"{name}.yaml"
        if path.is_file():
            click.echo(f"{display_path(folder, f'{group}/{name}')}\n\n{path.read_text(encoding='utf-8')}", nl=False)


def _print_keys(entries: Iterable[_Entry]) -> None:
    rows = [
        (entry.doc.key, entry.doc.type, _default_text(entry.doc), ", ".join(entry.owners), entry.doc.doc)
        for entry in entries
    ]
    if rows:
        print_table(("key", "type", "default", "of", "meaning"), rows)


def _default_text(doc: KeyDoc) -> str:
    return "(must be given)" if doc.is_required else value_word(doc.default)
