// The product that opens a gated feed-forward network, with its activation: sums never leave the cache, nor are rounded.
#include "linear.h"

namespace tl::TL_ISA {
namespace {

constexpr int64_t kHalf = kGatedPanels * kPanel;
constexpr int64_t kWidth = 2 * kHalf;  // of the scratch: gates on the left, their partners on the right

void sums_of(const LinearArgs& a, bool use_tiles, int64_t panel, int64_t count, int64_t after, float* to) {
  LinearArgs own = a;
  own.y = nullptr;
  own.y_fp32 = to - panel * kPanel;  // where column 0 would be
  own.y_stride = kWidth;
  own.after = a.packed + after * a.num_pairs() * kPanel * 2;
  use_tiles ? linear_panels_amx(own, panel, panel + count) : linear_panels(own, panel, panel + count);
}

}  // namespace

void linear_gated_panels(
    const LinearArgs& args, Gate gate, bool use_tiles, float* scratch, int64_t first, int64_t end) {
  const int64_t num_gate_panels = args.num_panels() / 2;
  for (int64_t start = 0; start < args.num_rows; start += kRowsInCache) {
    LinearArgs rows = args;
    rows.x += start * args.x_stride;
    rows.num_rows = args.num_rows - start < kRowsInCache ? args.num_rows - start : kRowsInCache;
    for (int64_t panel = first; panel < end; panel += kGatedPanels) {
      const int64_t count = end - panel < kGatedPanels ? end - panel : kGatedPanels;
      const int64_t next = panel + count < end ? panel + count : panel;
      sums_of(rows, use_tiles, panel, count, num_gate_panels + panel, scratch);
      sums_of(rows, use_tiles, num_gate_panels + panel, count, next, scratch + kHalf);
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        const float* from = scratch + r * kWidth;
        bf16* to = args.y + (start + r) * args.y_stride + panel * kPanel;
        for (int64_t n = 0; n < count * kPanel; n += Vec::kLanes) {
          (activate(gate, Vec::load(from + n)) * Vec::load(from + kHalf + n)).store(to + n);
        }
      }
    }
  }
}

}  // namespace tl::TL_ISA
