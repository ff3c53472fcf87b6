"""Sampling operations: they launch the kernels. Signatures and meanings are those of `tokenloom.sampling`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
from torch import Tensor

from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_sampling.kernels import GREEDY, PLAIN, RANKED, choose_kernel, verify_kernel
from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.verify import Verification

__all__ = ["choose_launches", "choose_tokens", "verify_chain", "verify_launch", "verify_tree"]

_BLOCK = 4096
"""Logits that a program holds at once: 16 for each of 256 threads."""
_DRAFTS = 64


def choose_tokens(processed: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """`tokenloom.sampling.sampler.choose_tokens`: one launch for each kind of rows, and no copy of the host's.

    Args:
        processed: fp32 [R, V] of `process_logits`; rows may be strided.
        batch: settings of the R rows.

    Returns:
        (token ids int64 [R], 0 in invalid rows; invalid bool [R]).
    """
    token_ids = torch.empty(processed.shape[0], dtype=torch.int64, device=processed.device)
    is_invalid = torch.empty(processed.shape[0], dtype=torch.bool, device=processed.device)
    for launch in choose_launches(token_ids, is_invalid, processed, batch):
        launch.run()
    return token_ids, is_invalid


def verify_chain(sampled_token_ids: Tensor, draft_token_ids: Tensor, cu_num_rows: Tensor) -> Verification:
    """`tokenloom.sampling.verify.verify_chain` in one launch."""
    return _verify(sampled_token_ids, draft_token_ids, None, cu_num_rows)


def verify_tree(
    sampled_token_ids: Tensor, draft_token_ids: Tensor, draft_parents: Tensor, cu_num_rows: Tensor
) -> Verification:
    """`tokenloom.sampling.verify.verify_tree` in one launch."""
    return _verify(sampled_token_ids, draft_token_ids, draft_parents, cu_num_rows)


def choose_launches(
    token_ids: Tensor, is_invalid: Tensor, processed: Tensor, batch: SamplingBatch
) -> Iterator[KernelLaunch]:
    """Of `choose_tokens`: into token_ids int64 [R] and is_invalid bool [R]."""
    vocab_size = batch.vocab_size
    assert processed.shape == (batch.num_rows, vocab_size), f"{processed.shape} for a batch of {batch.num_rows} rows"
    assert processed.dtype == torch.float32, f"logits of {processed.dtype}"
    assert processed.stride(1) == 1, f"logits with strides {processed.stride()}"
    groups = batch.groups
    log_min_p = batch.min_p.log()  # fp32 [R, 1]
    for kind, rows in ((GREEDY, groups.greedy_rows), (PLAIN, groups.plain_rows), (RANKED, groups.ranked_rows)):
        if len(rows) == 0:
            continue
        scores = None
        if kind != GREEDY:
            scores = torch.empty((len(rows), vocab_size), dtype=torch.float32, device=processed.device)
        yield KernelLaunch(
            choose_kernel,
            (len(rows),),
            arguments={
                "token_ids": token_ids,
                "is_invalid": is_invalid.view(torch.uint8),
                "logits": processed,
                "scores": scores,
                "rows": rows,
                "temperature": batch.temperature,
                "log_min_p": log_min_p,
                "top_k": batch.top_k,
                "top_p": batch.top_p,
                "seeds": batch.seeds,
                "choice": batch.choice,
                "position": batch.position,
                "stride_logits": processed.stride(0),
                "vocab_size": vocab_size,
            },
            constants={"KIND": kind, "BLOCK": min(_BLOCK, max(16, triton.next_power_of_2(vocab_size)))},
            num_warps=8,
            num_stages=1,
        )


def verify_launch(
    result: Verification, draft_token_ids: Tensor, draft_parents: Tensor | None, cu_num_rows: Tensor
) -> KernelLaunch:
    """Of `verify_chain` and `verify_tree`: fills all but the tokens of `result`."""
    num_requests = cu_num_rows.shape[0] - 1
    return KernelLaunch(
        verify_kernel,
        (num_requests,),
        arguments={
            "is_emitted": result.is_emitted.view(torch.uint8),
            "num_accepted": result.num_accepted_tokens,
            "last_row": result.last_row,
            "sampled": result.token_ids,
            "drafts": draft_token_ids,
            "parents": draft_parents,
            "cu_num_rows": cu_num_rows,
        },
        constants={"BLOCK": _DRAFTS},
        num_warps=2,
        num_stages=1,
    )


def _verify(sampled: Tensor, drafts: Tensor, parents: Tensor | None, cu_num_rows: Tensor) -> Verification:
    num_requests = cu_num_rows.shape[0] - 1
    assert drafts.shape[0] == sampled.shape[0] - num_requests, f"{drafts.shape[0]} drafts in {sampled.shape[0]} rows"
    result = Verification(
        token_ids=sampled,
        is_emitted=torch.empty(sampled.shape, dtype=torch.bool, device=sampled.device),
        num_accepted_tokens=torch.empty(num_requests, dtype=torch.int64, device=sampled.device),
        last_row=torch.empty(num_requests, dtype=torch.int64, device=sampled.device),
    )
    verify_launch(result, drafts, parents, cu_num_rows).run()
    return result
