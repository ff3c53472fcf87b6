// Products on AMX tiles: 16 rows by 16 columns of fp32 sums, 16 words (32 bf16 elements) of depth to an instruction. The
// layout of attention.h is that of a right operand as it is.
#pragma once

#include "products.h"

namespace tl::TL_ISA {
namespace {

constexpr int kTile = 16;
constexpr int kFewestRows = 8;  // with fewer, most of a tile would be idle

#if TL_HAS_AVX512

#define TL_AMX __attribute__((target("amx-tile,amx-bf16")))

TL_AMX void begin_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = kTile;
    config.row_bytes[i] = 64;
  }
  // GCC takes the instruction to read eight bytes, and would not write the others.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

TL_AMX void end_tiles() { _tile_release(); }

// sums[r][c] (+)= left r . right c for one or two tiles of rows, and of columns at right[0] and right[1], whose words
// are `step` apart. num_words is a multiple of kTile.
template <int kRowTiles, int kColumnTiles, bool kAdds>
TL_AMX void multiply_tiles(Rows left, int num_words, const uint32_t* const* right, int64_t step, Rows sums) {
  constexpr bool kHasLower = kRowTiles == 2, kHasNext = kColumnTiles == 2;
  if constexpr (kAdds) {
    _tile_loadd(0, sums.first, sums.stride);
    if constexpr (kHasNext) _tile_loadd(1, sums.first + 64, sums.stride);
    if constexpr (kHasLower) _tile_loadd(2, sums.row(kTile), sums.stride);
    if constexpr (kHasLower && kHasNext) _tile_loadd(3, sums.row(kTile) + 64, sums.stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int i = 0; i < num_words; i += kTile) {
    _tile_loadd(4, left.first + i * 4, left.stride);
    _tile_loadd(6, right[0] + i * step, step * 4);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kHasNext) {
      _tile_loadd(7, right[1] + i * step, step * 4);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kHasLower) {
      _tile_loadd(5, left.row(kTile) + i * 4, left.stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kHasNext) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums.first, sums.stride);
  if constexpr (kHasNext) _tile_stored(1, sums.first + 64, sums.stride);
  if constexpr (kHasLower) _tile_stored(2, sums.row(kTile), sums.stride);
  if constexpr (kHasLower && kHasNext) _tile_stored(3, sums.row(kTile) + 64, sums.stride);
}

// All rows, rounded up to tiles, by num_tiles tiles of columns at right[...].
template <bool kAdds>
void multiply_all(Rows left, int num_rows, int num_words, const uint32_t* const* right, int num_tiles, int64_t step,
                  Rows sums) {
  const auto from = [](Rows rows, int row, int64_t byte) { return Rows{rows.row(row) + byte, rows.stride}; };
  for (int tile = 0; tile < num_tiles; tile += 2) {
    const bool has_next = tile + 1 < num_tiles;
    for (int row = 0; row < num_rows; row += 2 * kTile) {
      const bool has_lower = row + kTile < num_rows;
      const Rows a = from(left, row, 0), c = from(sums, row, tile * int64_t{64});
      if (has_lower && has_next) {
        multiply_tiles<2, 2, kAdds>(a, num_words, right + tile, step, c);
      } else if (has_lower) {
        multiply_tiles<2, 1, kAdds>(a, num_words, right + tile, step, c);
      } else if (has_next) {
        multiply_tiles<1, 2, kAdds>(a, num_words, right + tile, step, c);
      } else {
        multiply_tiles<1, 1, kAdds>(a, num_words, right + tile, step, c);
      }
    }
  }
}

#endif

}  // namespace
}  // namespace tl::TL_ISA
