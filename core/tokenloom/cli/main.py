"""Entry point of the command line: the table of commands, and how errors reach the user."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import click

from tokenloom.cli.lazy_group import LazyCommand, LazyGroup, load_target
from tokenloom.collector_pause import collector_paused
from tokenloom.errors import (
    EngineDeadError,
    OutOfMemoryError,
    PluginContractError,
    RemoteServerError,
    TokenloomError,
)
from tokenloom.openmp import choose_spin

__all__ = ["COMMANDS", "TRACEBACK_VARIABLE", "main"]

COMMANDS: Mapping[str, LazyCommand] = {
    "generate": LazyCommand(
        "tokenloom.cli.generate:generate",
        "Complete a prompt, streaming.",
        "tokenloom.cli.sampling_settings:SamplingSettings",
    ),
    "chat": LazyCommand(
        "tokenloom.cli.chat:chat",
        "Talk to the model in the terminal.",
        "tokenloom.cli.sampling_settings:SamplingSettings",
    ),
    "serve": LazyCommand(
        "tokenloom.cli.serve:serve",
        "Serve the model over HTTP, as OpenAI's API does.",
        "tokenloom.server.settings:ServeSettings",
    ),
    "bench": LazyCommand("tokenloom.cli.bench:bench", "Measure an engine on this machine, or a server."),
    "eval": LazyCommand("tokenloom.cli.eval:evaluate", "Judge a model's answers, or compare variants of it."),
    "simulate": LazyCommand(
        "tokenloom.cli.simulate:simulate",
        "Replay a workload in virtual time, without a model.",
        "tokenloom.cli.simulate:SimulateSettings",
    ),
    "experiment": LazyCommand(
        "tokenloom.cli.experiment:experiment",
        "Run every combination of a sweep, real or simulated, and compare.",
        "tokenloom.cli.experiment:ExperimentSettings",
    ),
    "calibrate": LazyCommand(
        "tokenloom.cli.calibrate:calibrate",
        "Measure steps of a model, for simulations of this machine.",
        "tokenloom.cli.calibrate:CalibrateSettings",
    ),
    "calibrate-kv": LazyCommand(
        "tokenloom.cli.calibrate_kv:calibrate_kv",
        "Find fixed scales for a rounded KV cache, on a text.",
        "tokenloom.cli.calibrate_kv:CalibrateKVSettings",
    ),
    "train-drafter": LazyCommand(
        "tokenloom.cli.train_drafter:train_drafter",
        "Train a drafter's head for a model, on what the model says.",
        "tokenloom.cli.train_drafter:TrainDrafterSettings",
    ),
    "profile": LazyCommand(
        "tokenloom.cli.profile:profile",
        "Time the phases of an engine's steps, as a Chrome trace.",
        "tokenloom.cli.profile:ProfileSettings",
    ),
    "trace": LazyCommand("tokenloom.cli.trace:trace", "Replay and compare recorded decisions."),
    "plugins": LazyCommand(
        "tokenloom.cli.plugins:plugins", "List the installed plugins, or check them against their contracts."
    ),
    "config": LazyCommand(
        "tokenloom.cli.config:config", "Show the resolved configuration and where each value came from."
    ),
    "explain": LazyCommand("tokenloom.cli.explain:explain", "Explain a configuration key, a group or a plugin."),
    "plan": LazyCommand(
        "tokenloom.cli.plan:plan",
        "Work out memory before a model is loaded.",
        "tokenloom.cli.plan:PlanMemorySettings",
    ),
    "doctor": LazyCommand("tokenloom.cli.doctor:doctor", "Examine this machine: what can run here, and why not."),
    "models": LazyCommand("tokenloom.cli.models:models", "List, fetch and remove models; list what can run."),
    "export": LazyCommand(
        "tokenloom.cli.export:export", "Write a model as a Hugging Face folder.", "tokenloom.cli.export:ExportSettings"
    ),
    "quantize": LazyCommand(
        "tokenloom.cli.quantize:quantize",
        "Write a model as a quantized checkpoint: rtn, gptq, awq, smoothquant.",
        "tokenloom.cli.quantize_settings:QuantizeSettings",
    ),
    "new": LazyCommand("tokenloom.cli.new:new", "Write the skeleton of a plugin package."),
}
"""Every command. A new one is a module with a click command, and a line here."""

TRACEBACK_VARIABLE = "TOKENLOOM_TRACEBACK"
_TRACEBACK_OPTION = "--traceback"
_FAILED, _MISUSED, _INTERRUPTED = 1, 2, 130
_RUNTIME_ERRORS = (EngineDeadError, OutOfMemoryError, PluginContractError, RemoteServerError)
"""What is not the fault of whoever typed the command."""

cli = LazyGroup(
    COMMANDS,
    name="tokenloom",
    help="A plugin-based modular runtime for LLM inference.",
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            [_TRACEBACK_OPTION],
            is_flag=True,
            expose_value=False,
            help=f"Show the traceback of an error; anywhere in the line, or {TRACEBACK_VARIABLE}=1.",
        )
    ],
)
cli = click.version_option(package_name="tokenloom", message="%(prog)s %(version)s")(cli)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after the program's name; those of this process by default.

    Returns:
        The exit code: 0, 1 for a failure while running, 2 for a mistake in what was asked, 130 if interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    choose_spin()
    shows_traceback = _take_traceback_option(words) or os.environ.get(TRACEBACK_VARIABLE) == "1"
    try:
        if argv is None:
            _import_ahead(words)
        result = cli.main(args=words, prog_name="tokenloom", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (`| head`) is gone; without this, the interpreter complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except OSError as error:
        if shows_traceback:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return _FAILED
    except TokenloomError as error:
        if shows_traceback:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return _FAILED if isinstance(error, _RUNTIME_ERRORS) else _MISUSED
    return result if isinstance(result, int) else 0


def _import_ahead(words: Sequence[str]) -> None:
    """Imports the command that a process has begun with; click would do so with the collector at work."""
    entry = COMMANDS.get(words[0]) if words else None
    if entry is not None:
        with collector_paused():
            load_target(entry.target)


def _take_traceback_option(words: list[str]) -> bool:
    """Removes --traceback wherever it stands before a "--", so that it may follow a command, too."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word == _TRACEBACK_OPTION]
    words[:end] = [word for word in words[:end] if word != _TRACEBACK_OPTION]
    return bool(options)
