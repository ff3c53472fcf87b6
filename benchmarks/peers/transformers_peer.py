"""Transformers' `generate` in static batches as one of the engines of `cpu_peers.py`; reads the model's folder."""

from __future__ import annotations

from typing import Any

from peer_worker import Item, Peer, Score, Settings, serve

BATCH_SIZE = 32


class Transformers(Peer):
    """Left-padded batches in bf16; each runs to the longest `max_tokens` of its requests, as a static batch must."""

    name = "transformers"

    def __init__(self, settings: Settings) -> None:
        import torch
        import transformers

        self.version = transformers.__version__
        self._torch = torch
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(settings.folder, dtype=torch.bfloat16)

    def run(self, items: list[Item]) -> list[list[int]]:
        outputs: list[list[int]] = []
        for first in range(0, len(items), BATCH_SIZE):
            outputs += self._run_batch(items[first : first + BATCH_SIZE])
        return outputs

    def _run_batch(self, items: list[Item]) -> list[list[int]]:
        torch = self._torch
        longest = max(len(item["prompt"]) for item in items)
        count = max(item["max_tokens"] for item in items)
        padding = [longest - len(item["prompt"]) for item in items]
        ids = torch.tensor([[0] * pad + item["prompt"] for pad, item in zip(padding, items)])  # [B, longest]
        mask = torch.tensor([[0] * pad + [1] * len(item["prompt"]) for pad, item in zip(padding, items)])
        with torch.inference_mode():
            made = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
            )
        return [row[longest : longest + item["max_tokens"]].tolist() for row, item in zip(made, items)]

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        return [self._score_one(ids) for ids in windows]

    def _score_one(self, ids: list[int]) -> list[Score]:
        torch = self._torch
        with torch.inference_mode():
            logits = self._model(torch.tensor([ids])).logits[0, :-1].float()  # [T - 1, V]
            logprobs = logits.log_softmax(dim=-1)
        likeliest = logprobs.argmax(dim=-1).tolist()
        told = logprobs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).tolist()
        return [Score(at, *place) for at, place in enumerate(zip(likeliest, told), start=1)]

    def reset(self) -> bool:
        return True


if __name__ == "__main__":
    serve(Transformers)
