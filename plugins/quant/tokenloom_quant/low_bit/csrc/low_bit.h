// y = x W^T + bias with weights of 4 or 8 bits: w = scale * (code - zero), or scale * code + minimum, where scale and
// minimum belong to an output feature and a group of input features.
#pragma once

#include <tokenloom/isa.h>
#include <tokenloom/vec.h>

namespace tl {

// Output features side by side in packed weights; and bytes of one plane of them: 4 bytes of each.
constexpr int64_t kPanel = 32;
constexpr int64_t kPlaneBytes = 4 * kPanel;
// Input features are filled up to a multiple of a group, and that is one of this.
constexpr int64_t kBlock = 8;
// Activations of so many rows stay in the second-level cache.
constexpr int64_t kRowsInCache = 256;

// What a product reads activations as.
enum class Form {
  as_float = 0,  // fp32
  as_bf16 = 1,   // bf16; only where processors multiply it
  as_int8 = 2,   // rounded: scale * code, a scale for each row and group
};

// Packed weights. A plane holds for each feature of a panel 8 codes of 4 bits, or 4 of 8 bits:
//   codes [num_panels, padded / codes_per_plane, kPanel, 4]; 8 bits: bytes are those of k = 0, 1, 2, 3;
//   4 bits: byte 0 is k = 0 and 2 (upper half), byte 1 k = 4 and 6, byte 2 k = 1 and 3, byte 3 k = 5 and 7.
// So each half word, shifted by 4 i, has the code of k = 2 i or 2 i + 1 lowest; and the lower halves of all bytes are
// k = 0, 4, 1, 5, the upper ones k = 2, 6, 3, 7.
struct LowBitWeights {
  const uint8_t* codes;
  const void* scales;  // [num_panels, num_groups, kPanel], fp32 or fp16
  const void* minima;  // the same, or null: then zero is 8 or 128
  bool has_half_scales;
  const float* bias;  // [num_panels * kPanel] or null
  int bits;
  int64_t in_features, padded, out_features, num_groups;
  int64_t num_row_groups;  // of activations that are rounded: num_groups, or more of them where that is 1

  TL_INLINE int64_t num_panels() const { return (out_features + kPanel - 1) / kPanel; }
  TL_INLINE int64_t num_planes() const { return padded / (bits == 4 ? 8 : 4); }
  TL_INLINE int64_t row_group_size() const { return padded / num_row_groups; }
};

// Activations before and after preparation.
struct LowBitRows {
  const void* x;  // [num_rows, in_features] in bf16 or fp32, rows x_stride elements apart
  bool is_half;
  int64_t x_stride, num_rows;
  Form form;
  // Prepared: [num_rows, padded] of the form; for int8 and 4 bits, each eight in the order of the packed weights.
  void* values;
  int64_t values_stride;  // elements; the original rows where these will do
  float* scales;          // as_int8: [num_rows, num_row_groups]
  // Of each row's group, [num_rows, num_row_groups]: fp32; as_int8: int32 of codes, times -zero without minima.
  void* sums;
  float* row_sums;        // as_int8: of what a row was rounded to, [num_rows]
};

struct LowBitArgs {
  LowBitWeights weights;
  LowBitRows rows;
  void* y;  // [num_rows, out_features], rows y_stride elements apart
  bool is_half_out;
  int64_t y_stride;
};

}  // namespace tl

// Prepares the rows [first, end); `wide` has room for `padded` numbers. A row's group that holds infinities or NaN has a
// scale of NaN.
TL_DECLARE_KERNEL(
    void, prepare_rows, (const LowBitWeights& weights, const LowBitRows& rows, int64_t first, int64_t end, float* wide))

// Columns of the panels [first, end), all rows. Each element is summed in one order, whatever the number of rows.
TL_DECLARE_KERNEL(void, low_bit_panels, (const LowBitArgs& args, int64_t first, int64_t end))
