// Attention of one item: online softmax over chunks of keys, for all query rows of one KV head at once. README.md has
// the maths. What a row meets depends on its own slot alone: chunks begin at multiples of kChunk.
#include "attention.h"
#include "chunk.h"
#include "codes.h"
#include "products.h"
#include "tiles.h"

namespace tl::TL_ISA {
namespace {

using attention::Item;
using attention::Layer;
using attention::Stored;
using attention::Unit;

constexpr float kInfinity = __builtin_inff();
constexpr int kMostColumnTiles = 16;
constexpr int kAsksInSoftmax = 2;  // cache lines for each vector of scores

Row describe_row(const Attention& work, int32_t token, int32_t head) {
  const Step& step = work.step;
  const int32_t request = work.token_request[token], first = step.cu_seqlens[request];
  const int32_t num_new = step.cu_seqlens[request + 1] - first, seq_len = step.seq_lens[request];
  Row row{token, head, 0, 0, seq_len - num_new, first, nullptr};
  if (step.tree_mask != nullptr && num_new > 1) row.tree = step.tree_mask + token * step.tree_stride;
  row.end = row.tree != nullptr ? seq_len : row.num_computed + (token - first) + 1;
  const int64_t position = row.tree != nullptr ? step.positions[token] : row.end - 1;
  const int64_t begin = position - step.window + 1;
  row.begin = begin > 0 ? static_cast<int32_t>(begin) : 0;
  return row;
}

// Queries as operands: bf16 pairs where the processor multiplies them, else floats.
void load_query(const Attention& work, const Row& row, char* target, bool in_pairs) {
  const Sizes& sizes = work.sizes;
  const int64_t offset = row.token * work.layer.query_token_stride + row.head * work.layer.query_head_stride;
  if (!sizes.is_bf16) {
    __builtin_memcpy(target, static_cast<const float*>(work.layer.query) + offset, sizes.head_dim * 4);
    return;
  }
  const uint16_t* source = static_cast<const uint16_t*>(work.layer.query) + offset;
  if (in_pairs) {
    __builtin_memcpy(target, source, sizes.head_dim * 2);
    return;
  }
  float* floats = reinterpret_cast<float*>(target);
  for (int d = 0; d < sizes.head_dim; ++d) floats[d] = from_bf16(source[d]);
}

// Another thread may have written them.
void ask_for_queries(const Attention& work, Unit unit) {
  const Layer& layer = work.layer;
  const int group = work.sizes.group(), size = work.sizes.is_bf16 ? 2 : 4, bytes = work.sizes.head_dim * size;
  for (int32_t i = unit.item->row_begin; i < unit.item->row_end; ++i) {
    const int64_t first = work.rows[i] * layer.query_token_stride + unit.kv_head * group * layer.query_head_stride;
    for (int head = 0; head < group; ++head) {
      const char* query = static_cast<const char*>(layer.query) + (first + head * layer.query_head_stride) * size;
      for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(query + byte);
    }
  }
}

// Scale, soft cap and mask. Returns the largest score; beside NaN it may be any of them, as the sum of weights is NaN.
float finish_scores(const Attention& work, const Row& row, const Chunk& chunk, float* scores, const float* key_scales,
                    Ahead& values) {
  const int count = chunk.num_tiles() * kLanes;
  const int begin = row.begin - chunk.begin, end = row.end - chunk.begin;
  const Floats scale = splat(work.layer.softmax_scale), hidden = splat(-kInfinity);
  const float cap = work.layer.soft_cap;
  Floats top = hidden;
  Ints lanes = lane_numbers();
  for (int k = 0; k < count; k += kLanes, lanes += kLanes) {
    Floats x = load(scores + k) * scale;
    if (key_scales != nullptr) x = x * load(key_scales + k);
    if (cap > 0) x = tanh_of(x * splat(1.0f / cap)) * splat(cap);
    if (k < begin || k + kLanes > end) x = (lanes >= begin) & (lanes < end) ? x : hidden;
    store(scores + k, x);
    for (int i = 0; i < kAsksInSoftmax; ++i) values.ask();
    top = larger(top, x);
  }
  if (row.tree == nullptr || row.num_computed >= chunk.end) return largest(top);
  const int first_node = row.num_computed > chunk.begin ? row.num_computed : chunk.begin;
  for (int slot = first_node; slot < chunk.end; ++slot) {
    if (!row.sees_node(work.step, slot - row.num_computed)) scores[slot - chunk.begin] = -kInfinity;
  }
  float best = -kInfinity;
  for (int k = 0; k < chunk.end - chunk.begin; ++k) best = scores[k] > best ? scores[k] : best;
  return best;
}

// Turns scores into weights, as operands and in their place. Returns their sum.
template <class Kind>
float exponentiate(float* scores, int count, float maximum, const float* value_scales, Ahead& keys) {
  const float shift = maximum == -kInfinity ? 0.0f : maximum;  // a row that has seen nothing yet
  Floats total{};
  for (int k = 0; k < count; k += kLanes) {
    Floats p = exp_of_negative(load(scores + k) - splat(shift));
    total += p;
    for (int i = 0; i < kAsksInSoftmax; ++i) keys.ask();
    if (value_scales != nullptr) p = p * load(value_scales + k);
#if TL_HAS_AVX512
    if constexpr (Kind::kPack == 2) {  // the pairs take half the space; they never overtake the scores
      const auto halves = _mm512_cvtneps_pbh((__m512)p);
      __builtin_memcpy(reinterpret_cast<char*>(scores) + k * 2, &halves, sizeof halves);
      continue;
    }
#endif
    store(scores + k, p);
  }
  return sum(total);
}

// Scores to weights for all rows, with the corrections of what was summed before. The rest of the chunk's values and the
// first of the next keys are asked for meanwhile.
template <class Kind>
void soften(const Attention& work, Desk& desk, int num_rows, const Chunk& chunk, Ahead& values, Ahead& keys) {
  const bool has_scales = work.sizes.stored == Stored::int8;
  const float* const key_scales = has_scales ? desk.key_scales : nullptr;
  const float* const value_scales = has_scales ? desk.value_scales : nullptr;
  for (int r = 0; r < num_rows; ++r) {
    float* scores = desk.scores.floats(r);
    const float top = finish_scores(work, desk.rows[r], chunk, scores, key_scales, values);
    const float old = desk.maxima[r], now = top > old ? top : old;
    const float sum = exponentiate<Kind>(scores, chunk.num_tiles() * kLanes, now, value_scales, keys);
    const float factor = old == -kInfinity ? 0.0f : old == now ? 1.0f : exp_of_negative(splat(old - now))[0];
    desk.maxima[r] = now;
    desk.sums[r] = desk.sums[r] * factor + sum;
    desk.factors[r] = factor;
  }
}

// What to ask memory for while the chunks of a unit are computed.
struct Asking {
  const Attention& work;
  Unit unit, next;
  Desk& desk;

  Blocks blocks_of(Unit of) const {
    return {work.sizes, work.step.block_table + of.item->request * work.step.table_stride, of.kv_head};
  }
  Ahead values(const Chunk& chunk) {
    return values_ahead(blocks_of(unit), work.layer.values, chunk.begin, chunk.end, desk.value_pieces);
  }
  // Keys; their scales and, of the next unit, queries are so few that they are asked for at once.
  Ahead next_keys(const Chunk& chunk) {
    const bool is_last = chunk.end == unit.item->kv_end;
    if (is_last && next.item == nullptr) return {};
    const Unit of = is_last ? next : unit;
    if (is_last) ask_for_queries(work, of);
    const int32_t begin = is_last ? of.item->kv_begin : chunk.end;
    const int32_t border = (begin / kChunk + 1) * kChunk, end = border < of.item->kv_end ? border : of.item->kv_end;
    if (work.layer.key_scales != nullptr) ask_for_scales(work, blocks_of(of), begin, end);
    return keys_ahead(blocks_of(of), work.layer.keys, begin, end, desk.key_pieces);
  }
};

#if TL_HAS_AVX512
// The same as attend_chunk on AMX tiles, which want values in one piece and whole tiles of weights.
template <class Kind>
void attend_chunk_in_tiles(const Attention& work, Asking& asking, Desk& desk, int num_rows, Chunk& chunk) {
  const int dim = work.sizes.padded_dim;
  Ahead values = asking.values(chunk), keys = asking.next_keys(chunk);
  values.ask_all();
  if (Kind::kPack == 4) widen_keys(work.sizes, desk, chunk);
  multiply_all<false>(desk.query, num_rows, work.sizes.head_dim / 2, desk.tiles, chunk.num_tiles(), chunk.key_step,
                      desk.scores);
  soften<StoredBf16>(work, desk, num_rows, chunk, values, keys);
  keys.ask_all();
  const int count = chunk.end - chunk.begin, num_words = (count + 2 * kTile - 1) / (2 * kTile) * kTile;
  gather_values<Kind>(desk, chunk.values, num_words);
  for (int r = 0; r < num_rows; ++r) {
    char* const rest = desk.scores.row(r) + chunk.num_tiles() * kLanes * 2;
    __builtin_memset(rest, 0, desk.scores.row(r) + num_words * 4 - rest);
    const Floats factor = splat(desk.factors[r]);
    float* const out = desk.out.floats(r);
    for (int d = 0; d < dim; d += kLanes) store(out + d, load(out + d) * factor);
  }
  const uint32_t* columns[kMostColumnTiles];
  for (int first = 0; first < dim; first += kMostColumnTiles * kTile) {
    const int left = (dim - first) / kTile, num_tiles = left < kMostColumnTiles ? left : kMostColumnTiles;
    for (int t = 0; t < num_tiles; ++t) columns[t] = desk.packed_values + first + t * kTile;
    multiply_all<true>(desk.scores, num_rows, num_words, columns, num_tiles, dim,
                       {desk.out.first + first * 4, desk.out.stride});
  }
}
#endif

template <class Kind>
void attend_chunk(const Attention& work, Asking& asking, Desk& desk, int num_rows, const Chunk& chunk) {
  const Sizes& sizes = work.sizes;
  Ahead values = asking.values(chunk), keys = asking.next_keys(chunk);
  score_all<Kind>(desk.query, num_rows, sizes.head_dim / Kind::kPack, desk.tiles, chunk.num_tiles(), chunk.key_step,
                  desk.scores, values);
  soften<Kind>(work, desk, num_rows, chunk, values, keys);
  weigh_all<Kind>(desk.scores, num_rows, chunk.values, sizes.padded_dim, desk.out, desk.factors, keys);
}

#if TL_HAS_AVX512
// The same for an int8 cache, multiplied as it is stored.
void attend_chunk_in_codes(const Attention& work, Asking& asking, Desk& desk, int num_rows, const Chunk& chunk) {
  const Sizes& sizes = work.sizes;
  Ahead values = asking.values(chunk), keys = asking.next_keys(chunk);
  for_code_groups(num_rows, chunk.num_tiles(), ScoreCodes{desk.query, desk.scores, desk.query_codes, sizes.head_dim,
                                                          desk.tiles, chunk.key_step, values});
  soften<StoredInt8>(work, desk, num_rows, chunk, values, keys);
  values.ask_all();
  for (int r = 0; r < num_rows; ++r) {
    desk.weight_scales[r] = round_weights(desk.scores.floats(r), chunk.num_tiles() * kLanes);
  }
  for_code_groups(num_rows, sizes.padded_dim / kLanes,
                  WeighCodes{desk.scores, desk.out, desk.weight_scales, chunk.values, desk.factors, keys});
  keys.ask_all();
}
#endif

void store_result(const Attention& work, const Row& row, const float* values, float factor) {
  const Sizes& sizes = work.sizes;
  const int64_t offset = (static_cast<int64_t>(row.token) * sizes.num_heads + row.head) * sizes.head_dim;
  if (sizes.is_bf16) {
    uint16_t* out = static_cast<uint16_t*>(work.layer.out) + offset;
    for (int d = 0; d < sizes.head_dim; ++d) out[d] = to_bf16(values[d] * factor);
  } else {
    float* out = static_cast<float*>(work.layer.out) + offset;
    for (int d = 0; d < sizes.head_dim; ++d) out[d] = values[d] * factor;
  }
}

// A row that sees nothing is 0; NaN among its scores makes all of it NaN.
float inverse(float total) { return total == 0 ? 0.0f : 1.0f / total; }

float* workspace_of(const Attention& work, int64_t token, int partial, int head) {
  const int64_t index = (work.partial_begin[token] + partial) * static_cast<int64_t>(work.sizes.num_heads) + head;
  return work.layer.workspace + index * (work.sizes.padded_dim + 2);
}

template <class Kind>
bool can_use_tiles(const Attention& work, int num_rows) {
  const Sizes& sizes = work.sizes;
  const bool is_fit = Kind::kPack == 2 || (Kind::kPack == 4 && sizes.is_bf16 && sizes.block_size % kTile == 0);
  return is_fit && work.may_use_tiles && num_rows >= kFewestRows && sizes.head_dim % (2 * kTile) == 0;
}

// Queries of fp32 keep their bits: only those of bf16 are rounded to 16 bits more than they have.
template <class Kind>
bool has_code_products(const Attention& work) {
  return TL_HAS_AVX512 && Kind::kPack == 4 && work.sizes.is_bf16;
}

template <class Kind>
void attend(const Attention& work, Unit unit, Unit next, char* scratch) {
  const Sizes& sizes = work.sizes;
  const Item& item = *unit.item;
  Desk desk = lay_out(sizes, scratch);
  const int group = sizes.group(), num_rows = (item.row_end - item.row_begin) * group;
  const bool in_tiles = can_use_tiles<Kind>(work, num_rows);
  const bool in_codes = has_code_products<Kind>(work) && !in_tiles;
#if TL_HAS_AVX512
  if (in_tiles) begin_tiles();
#endif
  for (int r = 0; r < num_rows; ++r) {
    desk.rows[r] = describe_row(work, work.rows[item.row_begin + r / group], unit.kv_head * group + r % group);
    const bool in_pairs = in_tiles || (TL_HAS_AVX512 && Kind::kPack == 2);
    load_query(work, desk.rows[r], desk.query.row(r), in_pairs);
#if TL_HAS_AVX512
    if (in_codes) desk.query_codes[r] = round_query(desk.query.floats(r), sizes.head_dim);
#endif
    desk.maxima[r] = -kInfinity;
    desk.sums[r] = 0.0f;
  }
  __builtin_memset(desk.out.first, 0, static_cast<size_t>(num_rows) * desk.out.stride);
  Asking asking{work, unit, next, desk};
  const Blocks blocks = asking.blocks_of(unit);
  for (int32_t start = item.kv_begin / kChunk * kChunk; start < item.kv_end; start += kChunk) {
    Chunk chunk{};
    chunk.first = item.kv_begin;
    chunk.begin = start > item.kv_begin ? start : item.kv_begin / kLanes * kLanes;
    chunk.end = start + kChunk < item.kv_end ? start + kChunk : item.kv_end;
    if (sizes.block_size % kLanes == 0) {
      point_at<Kind>(work, blocks, desk, chunk);
    } else {
      pack<Kind>(work, blocks, desk, chunk);
    }
    const int surplus = (chunk.end - chunk.begin) % Kind::kPack;
    if (surplus != 0) chunk.values.last_mask = (uint32_t{1} << (surplus * 32 / Kind::kPack)) - 1;
    if (Kind::kPack == 4) load_scales(work, blocks, desk, chunk);
#if TL_HAS_AVX512
    if constexpr (Kind::kPack > 1) {
      if (in_tiles) {
        attend_chunk_in_tiles<Kind>(work, asking, desk, num_rows, chunk);
        continue;
      }
    }
    if (in_codes) {
      attend_chunk_in_codes(work, asking, desk, num_rows, chunk);
      continue;
    }
#endif
    attend_chunk<Kind>(work, asking, desk, num_rows, chunk);
  }
#if TL_HAS_AVX512
  if (in_tiles) end_tiles();
#endif
  for (int r = 0; r < num_rows; ++r) {
    const Row& row = desk.rows[r];
    const float total = desk.sums[r];
    if (item.partial < 0) {
      store_result(work, row, desk.out.floats(r), inverse(total));
      continue;
    }
    float* part = workspace_of(work, row.token, item.partial, row.head);
    __builtin_memcpy(part, desk.out.row(r), static_cast<size_t>(sizes.padded_dim) * 4);
    part[sizes.padded_dim] = desk.maxima[r];
    part[sizes.padded_dim + 1] = total;
  }
}

}  // namespace

void attend_item(const Attention& work, Unit unit, Unit next, char* scratch) {
  switch (work.sizes.stored) {
    case Stored::fp32: return attend<StoredFp32>(work, unit, next, scratch);
    case Stored::bf16: return attend<StoredBf16>(work, unit, next, scratch);
    case Stored::int8: return attend<StoredInt8>(work, unit, next, scratch);
  }
}

void combine_token(const Attention& work, int64_t token) {
  const Sizes& sizes = work.sizes;
  const int num_parts = work.partial_begin[token + 1] - work.partial_begin[token];
  const int dim = sizes.padded_dim;
  for (int head = 0; head < sizes.num_heads; ++head) {
    float top = -kInfinity;
    for (int i = 0; i < num_parts; ++i) {
      const float maximum = workspace_of(work, token, i, head)[dim];
      top = maximum > top ? maximum : top;
    }
    float* const first = workspace_of(work, token, 0, head);
    float total = 0.0f;
    for (int i = 0; i < num_parts; ++i) {
      float* part = workspace_of(work, token, i, head);
      const float factor = part[dim] == -kInfinity ? 0.0f : exp_of_negative(splat(part[dim] - top))[0];
      total += part[dim + 1] * factor;
      for (int d = 0; d < dim; ++d) first[d] = (i == 0 ? 0.0f : first[d]) + part[d] * factor;
    }
    const Row row{static_cast<int32_t>(token), head, 0, 0, 0, 0, nullptr};
    store_result(work, row, first, inverse(total));
  }
}

}  // namespace tl::TL_ISA
