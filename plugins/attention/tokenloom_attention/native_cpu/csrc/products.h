// Products with stored words: scores (query . key) and weighted sums of values, a few rows at a time in registers.
//
// A kind of storage says what an operand (the query's or the weights' side of a word) is, and how a vector of words is
// unpacked, once for all rows that meet it. A row's sums are taken in an order that no other row changes.
#pragma once

#include "attention.h"
#include "vectors.h"

namespace tl::TL_ISA {
namespace {

#if TL_HAS_AVX512
constexpr int kMostRows = 6;
#else
constexpr int kMostRows = 4;
#endif

struct StoredFp32 {
  static constexpr int kPack = 1;
  static constexpr int kVectors = TL_HAS_AVX512 ? 4 : 2;
  struct Operand {
    float value;
  };
  struct Unpacked {
    Floats value;
  };
  static Unpacked unpack(Words words) { return {as_floats(words)}; }
  static Floats add(Floats sum, const Unpacked& with, Operand by) { return sum + with.value * splat(by.value); }
};

#if TL_HAS_AVX512
struct StoredBf16 {
  static constexpr int kPack = 2;
  static constexpr int kVectors = 4;
  struct Operand {
    int32_t pair;
  };
  struct Unpacked {
    Words value;
  };
  static Unpacked unpack(Words words) { return {words}; }
  static Floats add(Floats sum, const Unpacked& with, Operand by) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)with.value, (__m512bh)_mm512_set1_epi32(by.pair));
  }
};
#else
struct StoredBf16 {
  static constexpr int kPack = 2;
  static constexpr int kVectors = 2;
  struct Operand {
    float low, high;
  };
  struct Unpacked {
    Floats low, high;
  };
  static Unpacked unpack(Words words) {
    return {as_floats(words << 16), as_floats(words & (Words{} + 0xffff0000u))};
  }
  static Floats add(Floats sum, const Unpacked& with, Operand by) {
    sum = sum + with.low * splat(by.low);
    return sum + with.high * splat(by.high);
  }
};
#endif

struct StoredInt8 {
  static constexpr int kPack = 4;
  static constexpr int kVectors = TL_HAS_AVX512 ? 2 : 1;
  struct Operand {
    float values[4];
  };
  struct Unpacked {
    Floats values[4];
  };
  static Unpacked unpack(Words words) {
    const Ints bytes = (Ints)words;
    return {{__builtin_convertvector((Ints)(words << 24) >> 24, Floats),
             __builtin_convertvector((Ints)(words << 16) >> 24, Floats),
             __builtin_convertvector((Ints)(words << 8) >> 24, Floats), __builtin_convertvector(bytes >> 24, Floats)}};
  }
  static Floats add(Floats sum, const Unpacked& with, Operand by) {
    for (int i = 0; i < 4; ++i) sum = sum + with.values[i] * splat(by.values[i]);
    return sum;
  }
};

template <class Kind>
inline typename Kind::Operand operand(const char* row, int64_t index) {
  typename Kind::Operand value;
  __builtin_memcpy(&value, row + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// Rows of operands, or of floats: the first, and the distance to the next in bytes.
struct Rows {
  char* first;
  int64_t stride;

  char* row(int64_t index) const { return first + index * stride; }
  float* floats(int64_t index) const { return reinterpret_cast<float*>(row(index)); }
};

// Memory that is wanted soon, in pieces of one size: products ask for a cache line of it whenever they read one, so that
// it comes while they compute. Asked for all at once it would only be waited for.
struct Ahead {
  static constexpr int64_t kLine = 64;
  const char* const* piece;
  const char* const* end;
  int64_t piece_bytes, at;

  void ask() {
    if (piece == end) return;
    __builtin_prefetch(*piece + at);
    at += kLine;
    if (at < piece_bytes) return;
    at = 0;
    ++piece;
  }
  void ask_all() {
    while (piece != end) ask();
  }
};

// scores[r][0 : kVectors * kLanes] = query r . keys, for vectors of keys at tiles[...], whose words are `step` apart.
template <class Kind, int kRows, int kVectors>
void score(Rows query, int num_words, const uint32_t* const* tiles, int64_t step, Rows scores, Ahead& ahead) {
  Floats sums[kRows][kVectors] = {};
  for (int i = 0; i < num_words; ++i) {
    typename Kind::Unpacked keys[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      keys[j] = Kind::unpack(load(tiles[j] + i * step));
      ahead.ask();
    }
    for (int r = 0; r < kRows; ++r) {
      const auto by = operand<Kind>(query.row(r), i);
      for (int j = 0; j < kVectors; ++j) sums[r][j] = Kind::add(sums[r][j], keys[j], by);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(scores.floats(r) + j * kLanes, sums[r][j]);
  }
}

// Words of values that lie one behind the other, `row_words` apart.
struct Run {
  const uint32_t* words;
  int count;
};

// Stretches of one chunk's values. The last word may hold fewer than kPack of them: last_mask keeps what is there,
// since what is not may be NaN, and a weight of 0 would not silence it. 0 when all words are full.
struct Runs {
  const Run* runs;
  int num_runs;
  int64_t row_words;
  uint32_t last_mask;
};

// out[r] = out[r] * factors[r] + weights r . values, for kVectors vectors of columns.
template <class Kind, int kRows, int kVectors>
void weigh(Rows weights, const Runs& values, int64_t column, Rows out, const float* factors, Ahead& ahead) {
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      sums[r][j] = load(out.floats(r) + column + j * kLanes) * splat(factors[r]);
    }
  }
  int64_t index = 0;
  for (int n = 0; n < values.num_runs; ++n) {
    const uint32_t* words = values.runs[n].words + column;
    for (int i = 0; i < values.runs[n].count; ++i, ++index, words += values.row_words) {
      typename Kind::Unpacked stored[kVectors];
      for (int j = 0; j < kVectors; ++j) {
        stored[j] = Kind::unpack(load(words + j * kLanes));
        ahead.ask();
      }
      for (int r = 0; r < kRows; ++r) {
        const auto by = operand<Kind>(weights.row(r), index);
        for (int j = 0; j < kVectors; ++j) sums[r][j] = Kind::add(sums[r][j], stored[j], by);
      }
    }
    if (n == values.num_runs - 1 && values.last_mask != 0) {
      for (int j = 0; j < kVectors; ++j) {
        const auto stored = Kind::unpack(load(words + j * kLanes) & (Words{} + values.last_mask));
        for (int r = 0; r < kRows; ++r) {
          sums[r][j] = Kind::add(sums[r][j], stored, operand<Kind>(weights.row(r), index));
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(out.floats(r) + column + j * kLanes, sums[r][j]);
  }
}

// Calls body.template run<n>(first) for groups of at most kMostRows rows.
template <class Body>
void for_row_groups(int num_rows, const Body& body) {
  int first = 0;
  for (; num_rows - first > kMostRows; first += kMostRows) body.template run<kMostRows>(first);
  switch (num_rows - first) {
    case 1: return body.template run<1>(first);
    case 2: return body.template run<2>(first);
    case 3: return body.template run<3>(first);
    case 4: return body.template run<4>(first);
    case 5: return body.template run<(kMostRows >= 5 ? 5 : 1)>(first);
    case 6: return body.template run<(kMostRows >= 6 ? 6 : 1)>(first);
  }
}

template <class Kind, int kVectors>
struct ScoreBody {
  Rows query, scores;
  int num_words;
  const uint32_t* const* tiles;
  int64_t step;
  Ahead& ahead;

  template <int kRows>
  void run(int first) const {
    score<Kind, kRows, kVectors>({query.row(first), query.stride}, num_words, tiles, step,
                                 {scores.row(first), scores.stride}, ahead);
  }
};

// scores[r][k] for all rows and num_tiles vectors of keys.
template <class Kind>
void score_all(Rows query, int num_rows, int num_words, const uint32_t* const* tiles, int num_tiles, int64_t step,
               Rows scores, Ahead& ahead) {
  int tile = 0;
  const auto at = [&](int t) { return Rows{scores.first + t * kLanes * 4, scores.stride}; };
  for (; tile + Kind::kVectors <= num_tiles; tile += Kind::kVectors) {
    for_row_groups(num_rows, ScoreBody<Kind, Kind::kVectors>{query, at(tile), num_words, tiles + tile, step, ahead});
  }
  for (; tile < num_tiles; ++tile) {
    for_row_groups(num_rows, ScoreBody<Kind, 1>{query, at(tile), num_words, tiles + tile, step, ahead});
  }
  ahead.ask_all();
}

template <class Kind, int kVectors>
struct WeighBody {
  Rows weights, out;
  const Runs& values;
  int64_t column;
  const float* factors;
  Ahead& ahead;

  template <int kRows>
  void run(int first) const {
    weigh<Kind, kRows, kVectors>({weights.row(first), weights.stride}, values, column, {out.row(first), out.stride},
                                 factors + first, ahead);
  }
};

template <class Kind>
void weigh_all(Rows weights, int num_rows, const Runs& values, int num_columns, Rows out, const float* factors,
               Ahead& ahead) {
  int64_t column = 0;
  for (; column + Kind::kVectors * kLanes <= num_columns; column += Kind::kVectors * kLanes) {
    for_row_groups(num_rows, WeighBody<Kind, Kind::kVectors>{weights, out, values, column, factors, ahead});
  }
  for (; column < num_columns; column += kLanes) {
    for_row_groups(num_rows, WeighBody<Kind, 1>{weights, out, values, column, factors, ahead});
  }
  ahead.ask_all();
}

}  // namespace
}  // namespace tl::TL_ISA
