"""ONNX Runtime GenAI as one of the engines of `cpu_peers.py`; `extra` holds the folder that its model builder wrote.

    python -m onnxruntime_genai.models.builder -i MODEL_FOLDER -o ONNX_FOLDER -p int4 -e cpu -c CACHE_FOLDER

It has no continuous batching here: requests run one after the other.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from peer_worker import Item, Peer, Score, Settings, serve


class Ort(Peer):
    """A generator for each request."""

    name = "onnxruntime-genai"

    def __init__(self, settings: Settings) -> None:
        import onnxruntime_genai  # type: ignore[import-not-found, unused-ignore]

        self.version = version("onnxruntime-genai")
        self._genai = onnxruntime_genai
        self._model = onnxruntime_genai.Model(settings.extra[0])

    def run(self, items: list[Item]) -> list[list[int]]:
        return [self._run_one(item) for item in items]

    def _run_one(self, item: Item) -> list[int]:
        import numpy as np

        length = len(item["prompt"]) + item["max_tokens"]
        generator = self._generator(length)
        generator.append_tokens(np.array([item["prompt"]], dtype=np.int32))
        while not generator.is_done() and len(generator.get_sequence(0)) < length:
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[len(item["prompt"]) :]]

    def _generator(self, length: int) -> Any:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=1)
        return self._genai.Generator(self._model, params)

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        return [self._score_one(ids) for ids in windows]

    def _score_one(self, ids: list[int]) -> list[Score]:
        """It shows the logits behind the last token only, so tokens go in one by one."""
        import numpy as np

        generator, scores = self._generator(len(ids) + 1), []
        for at in range(1, len(ids)):
            generator.append_tokens(np.array([[ids[at - 1]]], dtype=np.int32))
            logits = np.asarray(generator.get_logits(), dtype=np.float64).reshape(-1)  # [V]
            largest = logits.max()
            logprob = logits[ids[at]] - largest - np.log(np.exp(logits - largest).sum())
            scores.append(Score(at, int(logits.argmax()), float(logprob)))
        return scores

    def reset(self) -> bool:
        return True


if __name__ == "__main__":
    serve(Ort)
