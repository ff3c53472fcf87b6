// Facts that the planner, the kernels and the binding exchange. No torch here: kernels are compiled once per level of
// instructions (see tokenloom/isa.h).
//
// A *word* is 32 bits: kPack = 1 fp32, 2 bf16 or 4 int8 elements. In a block of one KV head lie
//
//     keys     [block_size / tile][head_dim / kPack][tile] words    word (t, i, s): elements kPack * i ... of the key in
//                                                                   slot tile * t + s
//     values   [ceil(block_size / kPack)][padded_dim]               word (i, d): element d of the values in slots
//                                                                   kPack * i ...
//
// so that one vector holds the same piece of many keys, or many columns of the same few values, and what a block holds
// lies in one piece, however much of it is filled.
#pragma once

#include <tokenloom/isa.h>

#include <cstddef>
#include <cstdint>

namespace tl::attention {

constexpr int kChunk = 128;      // keys between two corrections of the running maximum
constexpr int kKeyTile = 16;      // slots of a tile; blocks of other sizes are one tile
constexpr int kTargetRows = 48;  // query rows (tokens x heads of one KV head) that share a pass over the keys
constexpr int64_t kNoWindow = INT64_C(1) << 40;
constexpr int kMaxInt8HeadDim = 512;

enum class Stored : int { fp32, bf16, int8 };

inline int pack_of(Stored stored) { return stored == Stored::fp32 ? 1 : stored == Stored::bf16 ? 2 : 4; }

struct Sizes {
  int num_heads, num_kv_heads, head_dim, padded_dim, block_size;
  Stored stored;
  bool is_bf16;  // dtype of queries and results, else fp32

  int group() const { return num_heads / num_kv_heads; }
  int pack() const { return pack_of(stored); }
  int64_t key_words() const { return static_cast<int64_t>(head_dim / pack()) * block_size; }
  int key_tile() const { return block_size % kKeyTile == 0 ? kKeyTile : block_size; }
  // The first word of the key in a block's slot; the others follow, key_tile() words apart.
  int64_t key_word(int slot) const {
    const int tile = key_tile();
    return static_cast<int64_t>(slot / tile) * tile * (head_dim / pack()) + slot % tile;
  }
  int64_t value_words() const { return static_cast<int64_t>((block_size + pack() - 1) / pack()) * padded_dim; }
  // Rows of scratch memory: what an item may have, rounded up to AMX tiles.
  int max_rows() const { return ((group() > kTargetRows ? group() : kTargetRows) + 15) / 16 * 16; }
};

// One step of one KV group; see AttentionBatch. tree_mask may be null.
struct Step {
  int64_t num_tokens, num_requests, table_stride, tree_stride, window;
  const int32_t* cu_seqlens;
  const int32_t* seq_lens;
  const int64_t* positions;
  const int32_t* block_table;
  const bool* tree_mask;
};

// Some tokens against the slots [kv_begin, kv_end) of one request's block table, for each KV head.
//
// The tokens are rows[row_begin:row_end]. partial < 0: the item computes their results. Otherwise it is one of several
// that do, and leaves its part in the workspace at partial_begin[token] + partial.
struct Item {
  int32_t row_begin, row_end, request, kv_begin, kv_end, partial;
};

// An item for one KV head: what a thread takes at a time.
struct Unit {
  const Item* item;
  int kv_head;
};

// One layer's operands. Strides count elements; scales are null unless int8 is stored.
struct Layer {
  const void* query;
  int64_t query_token_stride, query_head_stride;
  void* out;  // [T, Hq, D], contiguous
  const void* keys;
  const void* values;
  const float* key_scales;    // [num_blocks, Hkv, BS]
  const float* value_scales;  // the same
  float softmax_scale, soft_cap;  // soft_cap 0: none
  float* workspace;               // [num_partials, Hq, padded_dim + 2]: unnormed result, maximum, sum
};

struct Attention {
  Sizes sizes;
  bool may_use_tiles;  // AMX is there, and results may depend on the number of rows
  Step step;
  Layer layer;
  const int32_t* rows;
  const int32_t* token_request;  // [T]
  const int32_t* partial_begin;  // [T + 1]
};

// Bytes of the scratch memory that attend_item takes; 64-byte alignment is the caller's.
size_t scratch_bytes(const Sizes& sizes);

}  // namespace tl::attention

// Attention of one unit. The thread goes on with the next one, whose keys are asked for at the end; its item may be
// null.
TL_DECLARE_KERNEL(void, attend_item,
                  (const attention::Attention& work, attention::Unit unit, attention::Unit next, char* scratch))

// Puts a token's partial results together, for all heads.
TL_DECLARE_KERNEL(void, combine_token, (const attention::Attention& work, int64_t token))
