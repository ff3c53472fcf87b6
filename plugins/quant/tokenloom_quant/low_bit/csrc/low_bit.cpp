#include "steps.h"

namespace tl::TL_ISA {
namespace {

#if TL_HAS_AVX512
constexpr int kMaxRows = 6;
constexpr int64_t kPrefetch = 1536;  // bytes ahead; the hardware's own prefetcher stops at pages
#elif TL_HAS_AVX2
constexpr int kMaxRows = 3;
#else
constexpr int kMaxRows = 1;
#endif

// What has groups: nothing, the activations only (then a sum has one scale of the weights, at its end), or both.
enum class Groups { none, of_rows, of_both };

// Vectors of a tile: sums of the group and of all groups must both stay in registers.
template <Groups kGroups>
constexpr int wide_of(int num_rows) {
  constexpr bool has_one_sum = kGroups == Groups::none;
#if TL_HAS_AVX512
  if (num_rows == 1) return 8;
  return num_rows == 2 || has_one_sum ? 4 : 2;
#else
  return num_rows == 1 && has_one_sum ? 4 : 2;
#endif
}

// Weights that are wanted next are asked for while the present ones are multiplied, so that neither memory nor the
// arithmetic waits for the other: a line for each one that is read, which lies so many bytes behind it, for the first
// half of a tile's vectors and for the second. 0 asks for what is there already, which costs next to nothing.
struct Ahead {
  int64_t first = 0, second = 0;

  // For the t-th of num_tiles tiles of rows that read the same weights: the first two share the asking.
  TL_INLINE static Ahead of_tile(int64_t t, int64_t num_tiles, int64_t distance) {
    return {t == 0 ? distance : 0, t == 1 || num_tiles == 1 ? distance : 0};
  }
};

// Where vector v of the columns from `column` on lies, in a plane or row of each panel `stride` apart.
TL_INLINE int64_t at_vector(int64_t column, int v, int64_t stride) {
  const int64_t own = column + v * Vec::kLanes;
  return own / kPanel * stride + own % kPanel;
}

TL_INLINE Vec load_scale(const LowBitWeights& w, const void* from, int64_t at) {
  return w.has_half_scales ? load_half(static_cast<const uint16_t*>(from) + at)
                           : Vec::load(static_cast<const float*>(from) + at);
}

TL_INLINE void put(const LowBitArgs& a, int64_t row, int64_t column, Vec value) {
  const int64_t count = a.weights.out_features - column, at = row * a.y_stride + column;
  if (count <= 0) return;
  if (a.weights.bias != nullptr) value = value + Vec::load(a.weights.bias + column);
  if (a.is_half_out) {
    bf16* to = static_cast<bf16*>(a.y) + at;
    count >= Vec::kLanes ? value.store(to) : value.store_part(to, count);
  } else {
    float* to = static_cast<float*>(a.y) + at;
    count >= Vec::kLanes ? value.store(to) : value.store_part(to, count);
  }
}

// Adds a group's sums, times its scales, to those of the groups before.
template <int kBits, Form kForm, int kRows, int kVectors>
TL_INLINE void add_group(
    const LowBitArgs& a, int64_t row, int64_t column, int64_t group,
    const typename Step<kBits, kForm>::Sum (&sums)[kRows][kVectors], Vec (&totals)[kRows][kVectors]) {
  using Own = Step<kBits, kForm>;
  const LowBitWeights& w = a.weights;
  TL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = group * kPanel + at_vector(column, v, w.num_groups * kPanel);
    const Vec scale = load_scale(w, w.scales, at);
    const Vec minimum = w.minima == nullptr ? Vec::zero() : load_scale(w, w.minima, at);
    TL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int64_t x_at = (row + r) * w.num_groups + group;
      Vec sum = Own::result(sums[r][v]);
      if constexpr (kForm == Form::as_int8) {
        sum = w.minima == nullptr ? sum * scale : Vec::fma(sum, scale, minimum * Own::sum_of_x(a, x_at));
        totals[r][v] = Vec::fma(sum, Vec::all(a.rows.scales[x_at]), totals[r][v]);
      } else {
        totals[r][v] = Vec::fma(sum, scale, totals[r][v]);
        if (w.minima != nullptr) totals[r][v] = Vec::fma(minimum, Own::sum_of_x(a, x_at), totals[r][v]);
      }
    }
  }
}

// Adds a group's sums to those of the groups before; the zero of the weights and their scale come at the end.
template <class Own, int kRows, int kVectors>
TL_INLINE void add_row_group(
    const LowBitArgs& a, int64_t row, int64_t group, const typename Own::Sum (&sums)[kRows][kVectors],
    Vec (&totals)[kRows][kVectors]) {
  TL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = Vec::all(a.rows.scales[(row + r) * a.weights.num_row_groups + group]);
    TL_UNROLL
    for (int v = 0; v < kVectors; ++v) totals[r][v] = Vec::fma(Own::result(sums[r][v]), scale, totals[r][v]);
  }
}

template <int kBits, int kRows, int kVectors>
TL_INLINE void scale_totals(const LowBitArgs& a, int64_t row, int64_t column, Vec (&totals)[kRows][kVectors]) {
  const LowBitWeights& w = a.weights;
  TL_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = at_vector(column, v, kPanel);
    const Vec scale = load_scale(w, w.scales, at);
    const Vec minimum = w.minima == nullptr ? scale * Vec::all(-kZero<kBits>) : load_scale(w, w.minima, at);
    TL_UNROLL
    for (int r = 0; r < kRows; ++r)
      totals[r][v] = Vec::fma(totals[r][v], scale, minimum * Vec::all(a.rows.row_sums[row + r]));
  }
}

// Rows [row, row + kRows) of kVectors vectors of columns.
template <int kBits, Form kForm, Groups kGroups, int kRows, int kVectors>
void tile(const LowBitArgs& a, int64_t row, int64_t column, Ahead ahead) {
  using Own = Step<kBits, kForm>;
  const LowBitWeights& w = a.weights;
  const int64_t num_groups = kGroups == Groups::none ? 1 : kGroups == Groups::of_rows ? w.num_row_groups : w.num_groups;
  const int64_t planes_per_group = w.num_planes() / num_groups;
  const bool is_signed = w.minima == nullptr;
  const uint8_t* planes[kVectors];
  TL_UNROLL
  for (int v = 0; v < kVectors; ++v) planes[v] = w.codes + 4 * at_vector(column, v, w.num_planes() * kPanel);
  const typename Own::Value* x[kRows];
  TL_UNROLL
  for (int r = 0; r < kRows; ++r)
    x[r] = static_cast<const typename Own::Value*>(a.rows.values) + (row + r) * a.rows.values_stride;
  Vec totals[kRows][kVectors];
  TL_UNROLL
  for (int r = 0; r < kRows; ++r)
    TL_UNROLL
    for (int v = 0; v < kVectors; ++v) totals[r][v] = Vec::zero();

  for (int64_t group = 0; group < num_groups; ++group) {
    typename Own::Sum sums[kRows][kVectors];
    TL_UNROLL
    for (int r = 0; r < kRows; ++r)
      TL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kGroups == Groups::of_rows) {
          sums[r][v] = Own::Sum::all(0);
        } else {
          sums[r][v] = Own::start(a, (row + r) * num_groups + group);
        }
      }
    for (int64_t plane = group * planes_per_group; plane < (group + 1) * planes_per_group; ++plane) {
#if TL_HAS_AVX512
      if (kRows <= 2) {
        TL_UNROLL
        for (int v = 0; v < kVectors; ++v)
          _mm_prefetch(reinterpret_cast<const char*>(planes[v] + plane * kPlaneBytes) + kPrefetch, _MM_HINT_T0);
      } else {
        TL_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          const int64_t distance = 2 * v < kVectors ? ahead.first : ahead.second;
          _mm_prefetch(reinterpret_cast<const char*>(planes[v] + plane * kPlaneBytes) + distance, _MM_HINT_T0);
        }
      }
#endif
      Own::add(planes, x, plane, is_signed, sums);
    }
    if constexpr (kGroups == Groups::of_rows) {
      add_row_group<Own>(a, row, group, sums, totals);
    } else {
      add_group<kBits, kForm>(a, row, column, group, sums, totals);
    }
  }
  if constexpr (kGroups == Groups::of_rows) scale_totals<kBits>(a, row, column, totals);
  TL_UNROLL
  for (int r = 0; r < kRows; ++r)
    TL_UNROLL
    for (int v = 0; v < kVectors; ++v) put(a, row + r, column + v * Vec::kLanes, totals[r][v]);
}

// Columns [column, end) of `num_rows` <= kMaxRows rows.
template <int kBits, Form kForm, Groups kGroups, int kRows = kMaxRows>
void tiles_of_rows(
    const LowBitArgs& a, int64_t row, int64_t num_rows, int64_t column, int64_t end, Ahead ahead = {}) {
  if constexpr (kRows > 0) {
    if (num_rows != kRows) {
      return tiles_of_rows<kBits, kForm, kGroups, kRows - 1>(a, row, num_rows, column, end, ahead);
    }
    constexpr int kWide = wide_of<kGroups>(kRows), kNarrow = 2;
    for (; column + kWide * Vec::kLanes <= end; column += kWide * Vec::kLanes)
      tile<kBits, kForm, kGroups, kRows, kWide>(a, row, column, ahead);
    for (; column < end; column += kNarrow * Vec::kLanes)
      tile<kBits, kForm, kGroups, kRows, kNarrow>(a, row, column, ahead);
  }
}

template <int kBits, Form kForm, Groups kGroups>
void all_rows(const LowBitArgs& a, int64_t first, int64_t end) {
  constexpr int kWide = wide_of<kGroups>(kMaxRows);
  constexpr int64_t kStep = kWide * Vec::kLanes > kPanel ? kWide * Vec::kLanes : kPanel;
  const int64_t num_rows = a.rows.num_rows;
  if (num_rows <= 2 && num_rows <= kMaxRows) {  // which read weights once, and ask for them by themselves
    return tiles_of_rows<kBits, kForm, kGroups>(a, 0, num_rows, first * kPanel, end * kPanel);
  }
  const int64_t panel_bytes = a.weights.num_planes() * kPlaneBytes;
  for (int64_t start = 0; start < num_rows; start += kRowsInCache) {
    const int64_t count = num_rows - start < kRowsInCache ? num_rows - start : kRowsInCache;
    const int64_t num_tiles = (count + kMaxRows - 1) / kMaxRows;
    for (int64_t column = first * kPanel; column < end * kPanel; column += kStep) {
      const int64_t stop = column + kStep < end * kPanel ? column + kStep : end * kPanel;
      const int64_t distance = stop < end * kPanel ? (stop - column) / kPanel * panel_bytes : 0;
      for (int64_t t = 0; t < num_tiles; ++t) {  // of nearly equal height; the columns stay in the cache meanwhile
        const int64_t row = start + count * t / num_tiles, row_end = start + count * (t + 1) / num_tiles;
        const Ahead ahead = Ahead::of_tile(t, num_tiles, distance);
        tiles_of_rows<kBits, kForm, kGroups>(a, row, row_end - row, column, stop, ahead);
      }
    }
  }
}

template <int kBits, Form kForm>
void of_form(const LowBitArgs& a, int64_t first, int64_t end) {
  if (a.weights.num_groups > 1) return all_rows<kBits, kForm, Groups::of_both>(a, first, end);
  if constexpr (kForm == Form::as_int8) {
    if (a.weights.num_row_groups > 1) return all_rows<kBits, kForm, Groups::of_rows>(a, first, end);
  }
  all_rows<kBits, kForm, Groups::none>(a, first, end);
}

template <int kBits>
void of_bits(const LowBitArgs& a, int64_t first, int64_t end) {
  if (a.rows.form == Form::as_int8) return of_form<kBits, Form::as_int8>(a, first, end);
#if TL_HAS_AVX512
  if (a.rows.form == Form::as_bf16) return of_form<kBits, Form::as_bf16>(a, first, end);
#endif
  of_form<kBits, Form::as_float>(a, first, end);
}

}  // namespace

void low_bit_panels(const LowBitArgs& args, int64_t first, int64_t end) {
  args.weights.bits == 4 ? of_bits<4>(args, first, end) : of_bits<8>(args, first, end);
}

}  // namespace tl::TL_ISA
