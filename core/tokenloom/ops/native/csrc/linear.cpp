#include "linear_finish.h"

namespace tl::TL_ISA {
namespace {

// The pair x[2j], x[2j + 1] as it lies in memory; beyond an odd K there is 0, not the next row.
inline uint32_t pair_at(const bf16* x, int64_t j, int64_t in_features) {
  uint32_t pair = 0;
  if (2 * j + 1 < in_features) {
    std::memcpy(&pair, x + 2 * j, sizeof pair);
  } else {
    pair = x[2 * j].bits;
  }
  return pair;
}

// Weights that are wanted next, and how many of their bytes to ask for in each step of the present tile: with many rows,
// memory would else have nothing to do while the cores compute. Nothing if `from` is null.
struct Ahead {
  const char* from = nullptr;
  int64_t step = 0;
};

#if TL_HAS_AVX512

constexpr int kMaxRows = 6;
constexpr int64_t kPrefetch = 1536;  // bytes ahead; the hardware's own prefetcher stops at pages

// Rows [row, row + kRows) of the panels [panel, panel + kPanels): 2 * kPanels * kRows sums in registers.
template <int kRows, int kPanels>
void tile(const LinearArgs& a, int64_t row, int64_t panel, Ahead ahead) {
  constexpr int kVectors = 2 * kPanels;
  const int64_t num_pairs = a.num_pairs(), whole = a.in_features / 2;
  const bf16* weights[kPanels];
  for (int p = 0; p < kPanels; ++p) weights[p] = a.packed + (panel + p) * num_pairs * kPanel * 2;
  const bf16* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = a.x + (row + r) * a.x_stride;
  __m512 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();

  const auto step = [&](int64_t j, const auto& pair) __attribute__((always_inline)) {
    __m512bh w[kVectors];
    if (kRows > 2 && ahead.from != nullptr) _mm_prefetch(ahead.from + j * ahead.step, _MM_HINT_T1);
    for (int v = 0; v < kVectors; ++v) {
      const bf16* from = weights[v / 2] + j * kPanel * 2 + (v % 2) * kPanel;
      if (kRows <= 2) _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetch, _MM_HINT_T0);
      w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512bh xs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair(x[r]))));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], xs, w[v]);
    }
  };
  for (int64_t j = 0; j < whole; ++j) {
    step(j, [&](const bf16* from) {
      uint32_t pair;
      std::memcpy(&pair, from + 2 * j, sizeof pair);
      return pair;
    });
  }
  if (2 * whole < a.in_features) step(whole, [&](const bf16* from) { return pair_at(from, whole, a.in_features); });
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) finish(a, row + r, panel + v / 2, (v % 2) * 16, Vec{sums[r][v]});
}

constexpr int kMaxPanels = 4;

#elif TL_HAS_AVX2

constexpr int kMaxRows = 3;

// A bf16 is the upper half of an fp32: of each pair, a shift yields the first element and a mask the second.
template <int kRows, int kPanels>
void tile(const LinearArgs& a, int64_t row, int64_t panel, Ahead) {
  static_assert(kPanels == 1, "registers hold the sums of one panel");
  constexpr int kVectors = 4;
  const int64_t num_pairs = a.num_pairs();
  const bf16* weights = a.packed + panel * num_pairs * kPanel * 2;
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_setzero_ps();
  for (int64_t j = 0; 2 * j < a.in_features; ++j) {
    __m256 first[kRows], second[kRows];
    for (int r = 0; r < kRows; ++r) {
      const uint32_t pair = pair_at(a.x + (row + r) * a.x_stride, j, a.in_features);
      first[r] = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(pair << 16)));
      second[r] = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(pair & 0xffff0000u)));
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + j * kPanel * 2 + v * 16));
      const __m256 w_first = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
      const __m256 w_second = _mm256_castsi256_ps(_mm256_and_si256(w, upper));
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = _mm256_fmadd_ps(w_first, first[r], sums[r][v]);
        sums[r][v] = _mm256_fmadd_ps(w_second, second[r], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) finish(a, row + r, panel, v * 8, Vec{sums[r][v]});
}

constexpr int kMaxPanels = 1;

#else

constexpr int kMaxRows = 2;

template <int kRows, int kPanels>
void tile(const LinearArgs& a, int64_t row, int64_t panel, Ahead) {
  static_assert(kPanels == 1, "one panel at a time");
  const int64_t num_pairs = a.num_pairs();
  const bf16* weights = a.packed + panel * num_pairs * kPanel * 2;
  float sums[kRows][kPanel] = {};
  for (int64_t j = 0; 2 * j < a.in_features; ++j) {
    const bf16* w = weights + j * kPanel * 2;
    for (int r = 0; r < kRows; ++r) {
      const uint32_t pair = pair_at(a.x + (row + r) * a.x_stride, j, a.in_features);
      const float first = to_float(bf16{static_cast<uint16_t>(pair)});
      const float second = to_float(bf16{static_cast<uint16_t>(pair >> 16)});
      for (int64_t n = 0; n < kPanel; ++n) {
        sums[r][n] += to_float(w[2 * n]) * first;
        sums[r][n] += to_float(w[2 * n + 1]) * second;
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int64_t n = 0; n < kPanel; n += Vec::kLanes) finish(a, row + r, panel, n, Vec::load(sums[r] + n));
}

constexpr int kMaxPanels = 1;

#endif

// A tile of `num_rows` <= kMaxRows rows: from the number at run time to the one in the template.
template <int kPanels, int kRows = kMaxRows>
void tile_of_rows(const LinearArgs& a, int64_t num_rows, int64_t row, int64_t panel, Ahead ahead = {}) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) return tile<kRows, kPanels>(a, row, panel, ahead);
    return tile_of_rows<kPanels, kRows - 1>(a, num_rows, row, panel, ahead);
  }
}

// The rows [start, end) of kPanels panels, which stay in the cache meanwhile; `next` (or null) is read after them.
template <int kPanels>
void rows_of(const LinearArgs& a, int64_t start, int64_t end, int64_t panel, const bf16* next) {
  const int64_t num_rows = end - start, num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  const int64_t num_steps = num_tiles * (a.in_features / 2), num_bytes = kPanels * a.num_pairs() * kPanel * 4;
  Ahead ahead{reinterpret_cast<const char*>(next), num_steps > 0 ? (num_bytes + num_steps - 1) / num_steps : 0};
  if (ahead.step > 64) ahead.from = nullptr;  // few rows: memory is busy with the present panels
  for (int64_t t = 0; t < num_tiles; ++t) {   // of nearly equal height
    const int64_t row = start + num_rows * t / num_tiles, tile_end = start + num_rows * (t + 1) / num_tiles;
    tile_of_rows<kPanels>(a, tile_end - row, row, panel, ahead);
    if (ahead.from != nullptr) ahead.from += a.in_features / 2 * ahead.step;
  }
}

}  // namespace

void linear_panels(const LinearArgs& args, int64_t first, int64_t end) {
  const auto packed_at = [&](int64_t panel) { return args.packed + panel * args.num_pairs() * kPanel * 2; };
  for (int64_t start = 0; start < args.num_rows; start += kRowsInCache) {
    const int64_t stop = args.num_rows - start < kRowsInCache ? args.num_rows : start + kRowsInCache;
    const auto after = [&](int64_t panel) { return panel < end ? packed_at(panel) : args.after; };
    int64_t panel = first;
    if constexpr (kMaxPanels == 4) {
      // Few rows are a question of memory: four panels at a time keep enough loads under way.
      for (; args.num_rows <= 2 && panel + 4 <= end; panel += 4) tile_of_rows<4, 2>(args, args.num_rows, 0, panel);
      for (; panel + 2 <= end; panel += 2) rows_of<2>(args, start, stop, panel, after(panel + 2));
    }
    for (; panel < end; ++panel) rows_of<1>(args, start, stop, panel, after(panel + 1));
  }
}

}  // namespace tl::TL_ISA
