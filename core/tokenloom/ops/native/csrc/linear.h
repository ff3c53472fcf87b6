// y = x W^T + bias in bf16 with fp32 sums, W packed in panels.
#pragma once

#include <tokenloom/isa.h>
#include <tokenloom/vec.h>

#include "gate.h"

namespace tl {

// Columns of one panel of packed weights, and the multiple that K is filled up to: two AMX tiles, and the depth of one.
constexpr int64_t kPanel = 32;
constexpr int64_t kDepth = 32;
// Activations of so many rows stay in the second-level cache.
constexpr int64_t kRowsInCache = 256;
// Panels whose gates are computed before their partners, and the floats that these need.
constexpr int64_t kGatedPanels = 4;
constexpr int64_t kGatedScratch = kRowsInCache * 2 * kGatedPanels * kPanel;

// Packed W: [num_panels, num_pairs, kPanel, 2], the two elements being those of k = 2j and 2j + 1; what lies beyond N and
// K is 0. It is the order that vdpbf16ps and AMX take.
struct LinearArgs {
  const bf16* x;  // [num_rows, in_features], rows x_stride apart
  int64_t x_stride;
  const bf16* packed;
  const bf16* bias;  // [out_features] or null
  bf16* y;           // [num_rows, out_features], rows y_stride apart; or null, and then
  float* y_fp32;     // the same, not rounded
  int64_t y_stride;
  int64_t num_rows, in_features, out_features;
  const bf16* after = nullptr;  // the panel that will be wanted after the last one, if that is known

  TL_INLINE int64_t num_pairs() const { return (in_features + kDepth - 1) / kDepth * (kDepth / 2); }
  TL_INLINE int64_t num_panels() const { return (out_features + kPanel - 1) / kPanel; }
};

}  // namespace tl

// Columns of the panels [first, end), all rows. Each element is one sum over k in rising order, whatever the number of
// rows: a row's result does not depend on the others.
TL_DECLARE_KERNEL(void, linear_panels, (const LinearArgs& args, int64_t first, int64_t end))

// act(gate) * up, where the first half of W's rows yields the gate and the second half `up`: columns of the panels
// [first, end) of the gate, all rows, y being [num_rows, out_features / 2]. Half of out_features must fill its panels.
TL_DECLARE_KERNEL(
    void, linear_gated_panels,
    (const LinearArgs& args, Gate gate, bool use_tiles, float* scratch, int64_t first, int64_t end))

// linear_panels with AMX tiles; only at Isa::amx, and in_features must be a multiple of kDepth.
TL_DECLARE_KERNEL(void, linear_panels_amx, (const LinearArgs& args, int64_t first, int64_t end))
