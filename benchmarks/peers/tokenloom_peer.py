"""tokenloom as one of the engines of `cpu_peers.py`; `extra` are its settings."""

from __future__ import annotations

from importlib.metadata import version

from peer_worker import Item, Peer, Settings, serve

from tokenloom import SamplingParams
from tokenloom.openmp import choose_spin


class Tokenloom(Peer):
    """The offline `LLM`."""

    name = "tokenloom"
    version = version("tokenloom")

    def __init__(self, settings: Settings) -> None:
        overrides = [
            f"scheduler.max_num_seqs={settings.max_num_seqs}",
            f"scheduler.max_num_batched_tokens={settings.max_num_batched_tokens}",
            f"model.max_model_len={settings.max_model_len}",
            f"cache={'hash' if settings.prefix_caching else 'none'}",
        ]
        choose_spin()
        # Imported here: torch comes with it, and must find that choice.
        from tokenloom import LLM

        self._llm = LLM(overrides=[*overrides, *settings.extra])

    def run(self, items: list[Item]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=item["max_tokens"], ignore_eos=True) for item in items]
        outputs = self._llm.generate([item["prompt"] for item in items], params)
        return [output.outputs[0].token_ids for output in outputs]

    def reset(self) -> bool:
        self._llm.engine.reset_prefix_cache()
        return True


if __name__ == "__main__":
    serve(Tokenloom)
