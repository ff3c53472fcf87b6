// What one thread works with, and where the keys and values of a chunk are.
#pragma once

#include "attention.h"
#include "products.h"

namespace tl::TL_ISA {
namespace {

using attention::Attention;
using attention::kChunk;
using attention::Sizes;
using attention::Step;

constexpr int kMostPieces = 256;  // that memory is asked for in; more are left to the processor

// One query row: its token, head and request, and the slots that it can see (but for a tree's own mask).
struct Row {
  int32_t token, head, begin, end;
  int32_t num_computed, first_token;
  const bool* tree;  // null: no tree

  bool sees_node(const Step& step, int node) const {
    return tree[node] && step.positions[first_token + node] > step.positions[token] - step.window;
  }
};

// A row's query where an int8 cache is multiplied as whole numbers (codes.h): bytes `high` and `low` with
// scale * (256 high + low) = q. Keys become unsigned by adding 128; the sums begin with what that adds.
struct QueryCodes {
  float scale;
  int32_t high_start, low_start;
};

// What one thread works with, cut out of the scratch memory.
struct Desk {
  Row* rows;
  Rows query, scores, out;
  float *maxima, *sums, *factors, *weight_scales;
  QueryCodes* query_codes;
  const uint32_t* tiles[kChunk / kLanes];
  Run runs[kChunk + 1];
  uint32_t *packed_keys, *packed_values;
  float *key_scales, *value_scales;
  const char *value_pieces[kMostPieces], *key_pieces[kMostPieces];
};

Desk lay_out(const Sizes& sizes, char* scratch) {
  Desk desk{};
  const int64_t rows = sizes.max_rows();
  const auto take = [&](int64_t bytes) {
    char* const taken = scratch;
    scratch += (bytes + 63) / 64 * 64;
    return taken;
  };
  desk.rows = reinterpret_cast<Row*>(take(rows * static_cast<int64_t>(sizeof(Row))));
  desk.query = {take(rows * sizes.head_dim * 4), sizes.head_dim * 4};
  desk.scores = {take(rows * kChunk * 4), kChunk * 4};
  desk.out = {take(rows * sizes.padded_dim * 4), sizes.padded_dim * 4};
  desk.maxima = reinterpret_cast<float*>(take(rows * 4));
  desk.sums = reinterpret_cast<float*>(take(rows * 4));
  desk.factors = reinterpret_cast<float*>(take(rows * 4));
  desk.weight_scales = reinterpret_cast<float*>(take(rows * 4));
  desk.query_codes = reinterpret_cast<QueryCodes*>(take(rows * static_cast<int64_t>(sizeof(QueryCodes))));
  desk.key_scales = reinterpret_cast<float*>(take(kChunk * 4));
  desk.value_scales = reinterpret_cast<float*>(take(kChunk * 4));
  desk.packed_keys = reinterpret_cast<uint32_t*>(take(int64_t{4} * kChunk * sizes.head_dim));
  desk.packed_values = reinterpret_cast<uint32_t*>(take(int64_t{4} * kChunk * sizes.padded_dim));
  return desk;
}

// The chunk [begin, end) of an item's keys and values; begin is aligned to kLanes, and first is the first slot that may
// be read.
struct Chunk {
  int32_t begin, end, first;
  int64_t key_step;
  Runs values;

  int num_tiles() const { return (end - begin + kLanes - 1) / kLanes; }
};

struct Blocks {
  const Sizes& sizes;
  const int32_t* table;
  int kv_head;

  int64_t index(int32_t slot) const {
    return static_cast<int64_t>(table[slot / sizes.block_size]) * sizes.num_kv_heads + kv_head;
  }
};

// Points at keys and values where they lie.
template <class Kind>
void point_at(const Attention& work, const Blocks& blocks, Desk& desk, Chunk& chunk) {
  const Sizes& sizes = work.sizes;
  const int block_size = sizes.block_size;
  const uint32_t* keys = static_cast<const uint32_t*>(work.layer.keys);
  const uint32_t* values = static_cast<const uint32_t*>(work.layer.values);
  int num_tiles = 0, num_runs = 0;
  for (int32_t slot = chunk.begin; slot < chunk.end;) {
    const int64_t block = blocks.index(slot);
    const int offset = slot % block_size;
    const int left = block_size - offset, want = chunk.end - slot, count = left < want ? left : want;
    const uint32_t* key_words = keys + block * sizes.key_words();
    for (int i = 0; i < count; i += kLanes) desk.tiles[num_tiles++] = key_words + sizes.key_word(offset + i);
    desk.runs[num_runs++] = {values + block * sizes.value_words() + (offset / Kind::kPack) * sizes.padded_dim,
                             count / Kind::kPack};
    slot += count;
  }
  chunk.key_step = sizes.key_tile();
  chunk.values = {desk.runs, num_runs, sizes.padded_dim, 0};
}

// Blocks lie scattered, and the processor's own prefetching ends with each of them: what is wanted soon is asked for, a
// chunk's values while its scores are computed, and the next chunk's keys from its softmax on. Memory is kept busy all
// the time so, also by the softmax, which reads none itself.
Ahead values_ahead(const Blocks& blocks, const void* memory, int32_t begin, int32_t end, const char** pieces) {
  const Sizes& sizes = blocks.sizes;
  const int block_size = sizes.block_size, tile = sizes.key_tile(), pack = sizes.pack();
  const int step = tile < kChunk ? tile : kChunk;
  int count = 0;
  for (int32_t slot = begin / step * step; slot < end && count < kMostPieces; slot += step) {
    const int64_t word = blocks.index(slot) * sizes.value_words() + slot % block_size / pack * sizes.padded_dim;
    pieces[count++] = static_cast<const char*>(memory) + word * 4;
  }
  return {pieces, pieces + count, int64_t{4} * ((step + pack - 1) / pack) * sizes.padded_dim, 0};
}

Ahead keys_ahead(const Blocks& blocks, const void* memory, int32_t begin, int32_t end, const char** pieces) {
  const Sizes& sizes = blocks.sizes;
  const int tile = sizes.key_tile();
  if (tile > kChunk) return {};  // a size that has its keys copied together
  int count = 0;
  for (int32_t slot = begin / tile * tile; slot < end && count < kMostPieces; slot += tile) {
    const int64_t word = blocks.index(slot) * sizes.key_words() + sizes.key_word(slot % sizes.block_size);
    pieces[count++] = static_cast<const char*>(memory) + word * 4;
  }
  return {pieces, pieces + count, int64_t{4} * tile * (sizes.head_dim / sizes.pack()), 0};
}

// The scales of the slots [begin, end).
void ask_for_scales(const Attention& work, const Blocks& blocks, int32_t begin, int32_t end) {
  constexpr int32_t kLine = 16;
  const int32_t block_size = work.sizes.block_size, step = block_size < kLine ? block_size : kLine;
  for (int32_t slot = begin / step * step; slot < end; slot += step) {
    const int64_t index = blocks.index(slot) * block_size + slot % block_size;
    __builtin_prefetch(work.layer.key_scales + index);
    __builtin_prefetch(work.layer.value_scales + index);
  }
}

// Copies keys and values into tiles, for block sizes that are no multiple of a vector. Slow, and right.
template <class Kind>
void pack(const Attention& work, const Blocks& blocks, Desk& desk, Chunk& chunk) {
  const Sizes& sizes = work.sizes;
  constexpr int kBytes = 4 / Kind::kPack;
  const int count = chunk.end - chunk.begin, num_words = (count + Kind::kPack - 1) / Kind::kPack;
  char* const packed = reinterpret_cast<char*>(desk.packed_values);
  __builtin_memset(packed, 0, static_cast<size_t>(num_words) * sizes.padded_dim * 4);
  for (int32_t slot = chunk.first > chunk.begin ? chunk.first : chunk.begin; slot < chunk.end; ++slot) {
    const int64_t block = blocks.index(slot);
    const int offset = slot % sizes.block_size, k = slot - chunk.begin;
    const uint32_t* key =
        static_cast<const uint32_t*>(work.layer.keys) + block * sizes.key_words() + sizes.key_word(offset);
    for (int i = 0; i < sizes.head_dim / Kind::kPack; ++i) desk.packed_keys[i * kChunk + k] = key[i * sizes.key_tile()];
    const char* value = static_cast<const char*>(work.layer.values) +
                        (block * sizes.value_words() + (offset / Kind::kPack) * sizes.padded_dim) * 4;
    char* target = packed + static_cast<int64_t>(k / Kind::kPack) * sizes.padded_dim * 4;
    for (int d = 0; d < sizes.head_dim; ++d) {
      __builtin_memcpy(target + d * 4 + (k % Kind::kPack) * kBytes, value + d * 4 + (offset % Kind::kPack) * kBytes,
                       kBytes);
    }
  }
  for (int t = 0; t < chunk.num_tiles(); ++t) desk.tiles[t] = desk.packed_keys + t * kLanes;
  desk.runs[0] = {desk.packed_values, count / Kind::kPack};
  chunk.key_step = kChunk;
  chunk.values = {desk.runs, 1, sizes.padded_dim, 0};
}

// Scales of a chunk's keys and values; 0 where there are none.
void load_scales(const Attention& work, const Blocks& blocks, Desk& desk, const Chunk& chunk) {
  const int block_size = work.sizes.block_size;
  const auto clear = [&](int from, int to) {
    for (int k = from; k < to; ++k) desk.key_scales[k] = desk.value_scales[k] = 0.0f;
  };
  int32_t slot = chunk.first > chunk.begin ? chunk.first : chunk.begin;
  clear(0, slot - chunk.begin);
  while (slot < chunk.end) {
    const int offset = slot % block_size, left = block_size - offset, want = chunk.end - slot;
    const size_t bytes = sizeof(float) * static_cast<size_t>(left < want ? left : want);
    const int64_t index = blocks.index(slot) * block_size + offset;
    __builtin_memcpy(desk.key_scales + (slot - chunk.begin), work.layer.key_scales + index, bytes);
    __builtin_memcpy(desk.value_scales + (slot - chunk.begin), work.layer.value_scales + index, bytes);
    slot += left < want ? left : want;
  }
  clear(chunk.end - chunk.begin, kChunk);
}

#if TL_HAS_AVX512
// A word of four int8 as two words of bf16, which hold them exactly.
void store_as_bf16(Words word, uint32_t* first, uint32_t* second) {
  const StoredInt8::Unpacked of = StoredInt8::unpack(word);
  const Words low = ((Words)of.values[0] >> 16) | (Words)of.values[1];
  const Words high = ((Words)of.values[2] >> 16) | (Words)of.values[3];
  __builtin_memcpy(first, &low, sizeof low);
  __builtin_memcpy(second, &high, sizeof high);
}

// Tiles multiply bf16 only: copies int8 keys as such, and points at the copy.
void widen_keys(const Sizes& sizes, Desk& desk, Chunk& chunk) {
  for (int t = 0; t < chunk.num_tiles(); ++t) {
    uint32_t* const packed = desk.packed_keys + t * kLanes;
    for (int i = 0; i < sizes.head_dim / 4; ++i) {
      store_as_bf16(load(desk.tiles[t] + i * chunk.key_step), packed + 2 * i * kChunk, packed + (2 * i + 1) * kChunk);
    }
    desk.tiles[t] = packed;
  }
  chunk.key_step = kChunk;
}

// Brings a chunk's values together in packed_values as num_words words of bf16; what is not there is zero.
template <class Kind>
void gather_values(Desk& desk, const Runs& values, int num_words) {
  const int64_t width = values.row_words;
  uint32_t* target = desk.packed_values;
  for (int n = 0; n < values.num_runs; ++n) {
    const Run& run = values.runs[n];
    const bool has_part = n == values.num_runs - 1 && values.last_mask != 0;
    for (int i = 0; i < run.count + has_part; ++i) {
      const uint32_t mask = i < run.count ? ~uint32_t{0} : values.last_mask;
      for (int64_t d = 0; d < width; d += kLanes) {
        const Words words = load(run.words + i * width + d) & (Words{} + mask);
        if constexpr (Kind::kPack == 4) {
          store_as_bf16(words, target + d, target + width + d);
        } else {
          __builtin_memcpy(target + d, &words, sizeof words);
        }
      }
      target += Kind::kPack / 2 * width;
    }
  }
  uint32_t* const end = desk.packed_values + num_words * width;
  if (target < end) __builtin_memset(target, 0, reinterpret_cast<char*>(end) - reinterpret_cast<char*>(target));
}

#endif

}  // namespace
}  // namespace tl::TL_ISA
