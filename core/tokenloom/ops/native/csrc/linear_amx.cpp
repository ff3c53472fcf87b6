// The linear product with AMX: tiles of 16 rows by 16 columns in fp32, each instruction taking 32 of K.
#include "linear_finish.h"

namespace tl::TL_ISA {

#if TL_HAS_AVX512

#define TL_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace {

constexpr int64_t kTile = 16;
constexpr int64_t kBlockRows = 2 * kTile;
constexpr int kTileBytes = 64;         // of one row of a tile

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums (upper and lower rows, each left and right), 4 and 5 rows of x, 6 and 7 columns of W.
TL_AMX void configure(int64_t upper, int64_t lower) {
  TileConfig config;
  const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, kTile, kTile};
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(rows[tile]);
    config.row_bytes[tile] = rows[tile] == 0 ? 0 : kTileBytes;
  }
  // GCC takes the instruction to read eight bytes, and need not write the others.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Asks for the panel after the one in work, a little at each step of K: the blocks of rows that go over a panel share
// its successor among them. Tiles are loaded row by row, and the hardware's own prefetcher makes little of that.
struct Ahead {
  const char* from;
  int64_t lines_per_step;
  const char* end;

  Ahead(const bf16* next, int64_t panel_bytes, int64_t block, int64_t num_blocks) {
    const int64_t share = (panel_bytes + num_blocks - 1) / num_blocks;
    const int64_t step = (2 * kTile + num_blocks - 1) / num_blocks;
    lines_per_step = step;
    from = reinterpret_cast<const char*>(next) + share * block;
    end = reinterpret_cast<const char*>(next) + panel_bytes;
  }

  void step() {
    for (int64_t line = 0; line < lines_per_step && from < end; ++line, from += 64) _mm_prefetch(from, _MM_HINT_T1);
  }
};

// `upper` + `lower` rows of one panel into `sums` [kBlockRows, kPanel], the lower ones from row kTile on.
template <bool kHasLower>
TL_AMX void block(const LinearArgs& a, int64_t row, int64_t upper, int64_t panel, Ahead ahead, float* sums) {
  const int64_t x_bytes = a.x_stride * 2;
  const bf16* x = a.x + row * a.x_stride;
  const bf16* x_lower = x + upper * a.x_stride;
  const bf16* w = a.packed + panel * a.num_pairs() * kPanel * 2;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kHasLower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < a.in_features; k += kDepth, w += kDepth * kPanel) {
    ahead.step();
    _tile_loadd(4, x + k, x_bytes);
    _tile_loadd(6, w, kPanel * 4);
    _tile_loadd(7, w + kPanel, kPanel * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kHasLower) {
      _tile_loadd(5, x_lower + k, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + kTile, kPanel * 4);
  if constexpr (kHasLower) {
    _tile_stored(2, sums + kTile * kPanel, kPanel * 4);
    _tile_stored(3, sums + kTile * kPanel + kTile, kPanel * 4);
  }
}

void finish_rows(const LinearArgs& a, int64_t row, int64_t count, int64_t panel, const float* sums) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t n = 0; n < kPanel; n += Vec::kLanes) finish(a, row + r, panel, n, Vec::load(sums + r * kPanel + n));
}

}  // namespace

TL_AMX void linear_panels_amx(const LinearArgs& args, int64_t first, int64_t end) {
  alignas(64) float sums[kBlockRows * kPanel];
  const int64_t panel_size = args.num_pairs() * kPanel * 2;
  int64_t configured = -1;
  for (int64_t start = 0; start < args.num_rows; start += kRowsInCache) {
    const int64_t num_rows = args.num_rows - start < kRowsInCache ? args.num_rows - start : kRowsInCache;
    const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
    for (int64_t panel = first; panel < end; ++panel) {
      for (int64_t b = 0; b < num_blocks; ++b) {  // of nearly equal height
        const int64_t row = start + num_rows * b / num_blocks;
        const int64_t count = start + num_rows * (b + 1) / num_blocks - row;
        const int64_t upper = count <= kTile ? count : (count + 1) / 2, lower = count - upper;
        if (count != configured) configure(upper, lower);
        configured = count;
        const bf16* next = panel + 1 < end ? args.packed + (panel + 1) * panel_size : args.after;
        const Ahead ahead(next, next == nullptr ? 0 : panel_size * 2, b, num_blocks);
        if (lower == 0) {
          block<false>(args, row, upper, panel, ahead, sums);
        } else {
          block<true>(args, row, upper, panel, ahead, sums);
          finish_rows(args, row + upper, lower, panel, sums + kTile * kPanel);
        }
        finish_rows(args, row, upper, panel, sums);
      }
    }
  }
  _tile_release();
}

#else

void linear_panels_amx(const LinearArgs& args, int64_t first, int64_t end) { linear_panels(args, first, end); }

#endif

}  // namespace tl::TL_ISA
