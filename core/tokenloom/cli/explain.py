"""`tokenloom explain`: what a configuration key, a group or one plugin is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import click

from tokenloom.cli.bench import BENCH_COMMANDS
from tokenloom.cli.console import print_table
from tokenloom.cli.eval import EVAL_COMMANDS
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
    "trace": "A record of what the engine decides.",
    "experiment": "Presets that set several keys at once.",
    "server": "How `tokenloom serve` listens, whom it lets in, and what it does when things go wrong.",
    "attention": "How keys and values lie in memory, and attention over them.",
    "scheduler": "Who gets how many tokens in each step.",
    "scheduler.victim": "Who gives memory back when blocks run out.",
    "scheduler.admission": "Whether memory will last if one more request runs.",
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
    """A documented key and who has it.

    Attributes:
        doc: its `key` as it is written: dotted, but for a setting of what requests choose just its name.
        owners: plugins ("scheduler=fcfs"), commands ("tokenloom bench") or nobody.
        group: the group or block that it belongs to; "" for a command's keys.
    """

    doc: KeyDoc
    owners: tuple[str, ...]
    group: str

    @property
    def full_key(self) -> str:
        """The key with its group, which is how one may ask for it."""
        return f"{self.group}.{self.doc.key.rpartition('.')[2]}" if self.group else self.doc.key


@click.command()
@click.argument("key")
def explain(key: str) -> None:
    """Explain a key (scheduler.max_num_seqs, max_num_seqs), a group (cache.eviction) or an option (scheduler=fcfs)."""
    registry = default_registry()
    group, _, name = key.replace("/", ".").partition("=")
    group = KEYWORDS.get(group, group)
    entries = _all_entries(registry)
    exact = [entry for entry in entries if group in (entry.doc.key, entry.full_key)]
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
    owners: dict[tuple[str, KeyDoc], list[str]] = {}
    for block, model in settings_models().items():
        for doc in document_model(block, model):
            owners[block, doc] = []
    for plugin in registry.plugins():
        if plugin.refusal is None:
            try:
                config_class = registry.load_config_class(plugin.info.kind, plugin.info.name)
            except PluginError as error:
                click.echo(f"warning: {error}", err=True)
                continue
            kind = plugin.info.kind
            for doc in document_model("" if kind in REQUEST_KINDS else kind, config_class):
                owners.setdefault((kind, _hashable(doc)), []).append(plugin.label)
    nested = {"bench": BENCH_COMMANDS, "eval": EVAL_COMMANDS}
    parts = {f"{group} {name}": entry for group, table in nested.items() for name, entry in table.items()}
    for command, entry in {**COMMANDS, **parts}.items():
        if entry.schema is not None:
            for doc in document_model("", load_target(entry.schema)):
                block = doc.key.rpartition(".")[0]
                owners.setdefault((block, _hashable(doc)), []).append(f"tokenloom {command}")
    return [_Entry(doc, tuple(names), group) for (group, doc), names in owners.items()]


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
        "written": _written_by_requests(entry),
        "in Python": ", ".join(f"LLM({word}=...)" for word in keywords),
    }
    for name, text in facts.items():
        if text:
            click.echo(f"  {name:<11}{text}")


def _explain_group(registry: Registry, group: str, entries: Iterable[_Entry]) -> None:
    click.echo(f"{group}: {GROUP_DOCS[group]}")
    if group in CONTRACT_VERSIONS:
        version = ".".join(str(part) for part in CONTRACT_VERSIONS[group])
        usage = f"{group}=NAME"
        if group in REQUEST_KINDS:
            usage = "logits_processors={NAME:{SETTING:VALUE}} beside the sampling keys"
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
    _print_keys(entry for entry in entries if entry.group == group)


def _explain_plugin(registry: Registry, kind: str, name: str, entries: Iterable[_Entry]) -> None:
    plugin = registry.get(kind, name)
    info = plugin.info
    click.echo(f"{plugin.label}: {info.summary}")
    click.echo(f"  package       {plugin.package} {plugin.version}")
    click.echo(f"  capabilities  {info.capabilities.summary()}")
    for sub_kind, default in info.sub_kinds.items():
        click.echo(f"  part          {sub_kind}, by default {default}")
    own = [entry for entry in entries if plugin.label in entry.owners]
    if kind in REQUEST_KINDS:
        settings = ",".join(f"{e.doc.key}:..." for e in own if e.doc.is_required)
        click.echo(f"  written       logits_processors={{{name}:{{{settings}}}}}")
    _print_keys(own)


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


def _written_by_requests(entry: _Entry) -> str:
    """Where a setting of what requests choose goes; "" for the other keys, which are written as they are called."""
    if entry.group not in REQUEST_KINDS:
        return ""
    return ", ".join(
        f"logits_processors={{{owner.partition('=')[2]}:{{{entry.doc.key}:...}}}}" for owner in entry.owners
    )


def _default_text(doc: KeyDoc) -> str:
    return "(must be given)" if doc.is_required else value_word(doc.default)
