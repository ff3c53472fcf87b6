// Norms, rotary embedding and gated activations, row by row: bf16 in and out, fp32 between, one rounding at the end.
#pragma once

#include <tokenloom/isa.h>
#include <tokenloom/vec.h>

#include "gate.h"

namespace tl {

// RMS norm of rows of `size`; with a residual, of x + residual, which is rounded and written back first.
struct NormArgs {
  const bf16* x;
  int64_t x_stride;
  bf16* residual;  // or null
  int64_t residual_stride;
  const void* weight;  // [size], bf16 or fp32
  bool has_fp32_weight;
  float eps;
  bf16* y;
  int64_t y_stride;
  int64_t size;
};

// RMS norm of each head of queries and keys; rows of y follow each other without gaps.
struct HeadNormArgs {
  const bf16* x;  // [tokens, num_heads, size]
  int64_t token_stride, head_stride;
  const void* weights;  // [2, size]: of queries, of keys
  bool has_fp32_weight;
  float eps;
  bf16* y;
  int64_t num_heads, num_queries, size;
};

// Rotation of the first `rotary_dim` elements of each head, halves paired; the rest is copied.
struct RotaryArgs {
  const bf16* x;  // [tokens, num_heads, size]
  int64_t token_stride, head_stride;
  const bf16* cos;         // [tokens, rotary_dim]
  const bf16* signed_sin;  // [tokens, rotary_dim]
  int64_t angle_stride;
  bf16* y;  // as x, without gaps
  int64_t num_heads, size, rotary_dim;
};

// act(x[:size]) * x[size:] of each row.
struct GateArgs {
  const bf16* x;
  int64_t x_stride;
  bf16* y;
  int64_t size;
  Gate gate;
};

}  // namespace tl

// Each takes the rows or tokens [first, end).
TL_DECLARE_KERNEL(void, norm_rows, (const NormArgs& args, int64_t first, int64_t end))
TL_DECLARE_KERNEL(void, head_norm_tokens, (const HeadNormArgs& args, int64_t first, int64_t end))
TL_DECLARE_KERNEL(void, rotate_tokens, (const RotaryArgs& args, int64_t first, int64_t end))
TL_DECLARE_KERNEL(void, gate_rows, (const GateArgs& args, int64_t first, int64_t end))
