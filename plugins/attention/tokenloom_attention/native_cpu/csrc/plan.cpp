#include "plan.h"

#include <algorithm>
#include <numeric>

namespace tl::attention {
namespace {

constexpr int kItemsPerThread = 4;  // finer cuts even out the load, coarser ones leave less to put together
constexpr int kFixedRows = 4;       // reading a key is taken to cost as much as multiplying it with so many rows
constexpr int64_t kWorthSharing = 256;  // keys saved; fewer are not worth putting results together

int32_t item_tokens(const Sizes& sizes) { return std::max(1, kTargetRows / sizes.group()); }

// Requests whose block tables begin with the same blocks, up to slot `length`, which all of their tokens see.
struct Shared {
  int32_t length;
  std::vector<int32_t> requests;
};

struct Planner {
  const Sizes& sizes;
  const Step& step;
  int num_threads;
  bool is_deterministic;
  Plan plan;
  int64_t most = 0;  // cost that an item may have

  int32_t num_new(int32_t request) const { return step.cu_seqlens[request + 1] - step.cu_seqlens[request]; }
  int32_t num_computed(int32_t request) const { return step.seq_lens[request] - num_new(request); }
  const int32_t* table(int32_t request) const { return step.block_table + request * step.table_stride; }

  int64_t cost_of(const Item& item) const {
    const int64_t rows = static_cast<int64_t>(item.row_end - item.row_begin) * sizes.group();
    return (item.kv_end - item.kv_begin) * (rows + kFixedRows);
  }

  // Slots, in whole chunks, that two requests have computed and keep in the same blocks.
  int32_t shared_slots(int32_t a, int32_t b) const {
    const int32_t most_blocks = std::min(num_computed(a), num_computed(b)) / sizes.block_size;
    int32_t blocks = 0;
    while (blocks < most_blocks && table(a)[blocks] == table(b)[blocks]) ++blocks;
    return blocks * sizes.block_size / kChunk * kChunk;
  }

  // Of requests that begin with the same block, those that save most by sharing; none if that is little. Rows of
  // prompts share their reads among themselves.
  Shared share(const std::vector<int32_t>& candidates) const {
    std::vector<std::pair<int32_t, int32_t>> found;  // (slots shared with the first candidate, request)
    for (const int32_t request : candidates) found.emplace_back(shared_slots(candidates[0], request), request);
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    size_t best = 0;
    int64_t saved = kWorthSharing - 1;
    for (size_t i = 1; i < found.size(); ++i) {
      const int64_t saves = static_cast<int64_t>(i) * found[i].first;
      if (saves > saved) saved = saves, best = i;
    }
    if (best == 0) return {0, {}};
    Shared shared{found[best].first, {}};
    for (size_t i = 0; i <= best; ++i) shared.requests.push_back(found[i].second);
    return shared;
  }

  std::vector<Shared> find_shared() const {
    std::vector<Shared> result;
    if (is_deterministic || step.window < kNoWindow) return result;
    std::vector<int32_t> order;
    for (int32_t request = 0; request < step.num_requests; ++request) {
      if (num_new(request) <= item_tokens(sizes) / 2 + 1 && num_computed(request) >= kChunk) order.push_back(request);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return table(a)[0] < table(b)[0]; });
    for (size_t begin = 0; begin < order.size();) {
      size_t end = begin;
      while (end < order.size() && table(order[end])[0] == table(order[begin])[0]) ++end;
      Shared shared = share({order.begin() + begin, order.begin() + end});
      if (!shared.requests.empty()) result.push_back(std::move(shared));
      begin = end;
    }
    return result;
  }

  // Items for a request's new tokens, against the slots that they see from kv_begin on.
  std::vector<Item> own_items(int32_t request, int32_t kv_begin) const {
    const int32_t first = step.cu_seqlens[request], count = num_new(request), size = item_tokens(sizes);
    const bool is_tree = step.tree_mask != nullptr && count > 1;
    std::vector<Item> items;
    for (int32_t begin = 0; begin < count; begin += size) {
      const int32_t end = std::min(count, begin + size);
      // A tree node's position is at least num_computed, wherever its slot lies.
      const int64_t low = num_computed(request) + (is_tree ? 0 : begin) - step.window + 1;
      const int32_t high = is_tree ? step.seq_lens[request] : num_computed(request) + end;
      items.push_back({first + begin, first + end, request,
                       static_cast<int32_t>(std::max<int64_t>(low, kv_begin)), high, -1});
    }
    return items;
  }

  std::vector<Item> shared_items(const Shared& shared) {
    const int32_t first = static_cast<int32_t>(plan.rows.size()), size = item_tokens(sizes);
    for (const int32_t request : shared.requests) {
      for (int32_t token = step.cu_seqlens[request]; token < step.cu_seqlens[request + 1]; ++token) {
        plan.rows.push_back(token);
      }
    }
    const int32_t end = static_cast<int32_t>(plan.rows.size());
    std::vector<Item> items;
    for (int32_t begin = first; begin < end; begin += size) {
      items.push_back({begin, std::min(end, begin + size), shared.requests[0], 0, shared.length, -1});
    }
    return items;
  }

  // Into how many parts an item is split, so that it does not keep one thread busy while the others have nothing left.
  int64_t num_parts(const Item& item) const {
    if (num_threads == 1 || is_deterministic) return 1;
    const int64_t num_chunks = (item.kv_end + kChunk - 1) / kChunk - item.kv_begin / kChunk;
    return std::max<int64_t>(1, std::min((cost_of(item) + most - 1) / most, num_chunks));
  }

  void add_parts(const Item& item, int64_t count, int32_t first_partial) {
    const int64_t first = item.kv_begin / kChunk, num_chunks = (item.kv_end + kChunk - 1) / kChunk - first;
    for (int64_t i = 0; i < count; ++i) {
      Item part = item;
      part.partial = first_partial < 0 ? -1 : first_partial + static_cast<int32_t>(i);
      if (i > 0) part.kv_begin = static_cast<int32_t>((first + num_chunks * i / count) * kChunk);
      if (i < count - 1) part.kv_end = static_cast<int32_t>((first + num_chunks * (i + 1) / count) * kChunk);
      plan.items.push_back(part);
    }
  }

  void add_items() {
    const std::vector<Shared> shared = find_shared();
    std::vector<int32_t> first_slot(step.num_requests, 0), first_partial(step.num_requests, 0);
    std::vector<std::vector<Item>> groups;  // of shared items, then of each request's own
    for (const Shared& group : shared) {
      for (const int32_t request : group.requests) first_slot[request] = group.length;
      groups.push_back(shared_items(group));
    }
    for (int32_t request = 0; request < step.num_requests; ++request) {
      groups.emplace_back();
      if (step.seq_lens[request] > 0) groups.back() = own_items(request, first_slot[request]);
    }
    int64_t total = 0;
    for (const auto& group : groups) {
      for (const Item& item : group) total += cost_of(item);
    }
    most = std::max<int64_t>(1, total * sizes.num_kv_heads / (num_threads * kItemsPerThread));
    for (size_t i = 0; i < shared.size(); ++i) {
      const int64_t count = num_parts(groups[i][0]);  // the same for all, as a request's own parts are numbered behind
      for (const Item& item : groups[i]) add_parts(item, count, 0);
      for (const int32_t request : shared[i].requests) first_partial[request] = static_cast<int32_t>(count);
    }
    for (int32_t request = 0; request < step.num_requests; ++request) {
      for (const Item& item : groups[shared.size() + request]) {
        const int64_t count = num_parts(item);
        const bool is_whole = count == 1 && first_partial[request] == 0;
        add_parts(item, count, is_whole ? -1 : first_partial[request]);
      }
    }
  }

  void number_partials() {
    std::vector<int32_t> counts(step.num_tokens, 0);
    for (const Item& item : plan.items) {
      for (int32_t i = item.row_begin; i < item.row_end; ++i) {
        counts[plan.rows[i]] = std::max(counts[plan.rows[i]], item.partial + 1);
      }
    }
    plan.partial_begin.assign(step.num_tokens + 1, 0);
    for (int64_t token = 0; token < step.num_tokens; ++token) {
      plan.partial_begin[token + 1] = plan.partial_begin[token] + counts[token];
      if (counts[token] > 0) plan.combined.push_back(static_cast<int32_t>(token));
    }
  }

  void describe_tokens() {
    plan.rows.resize(step.num_tokens);
    std::iota(plan.rows.begin(), plan.rows.end(), 0);
    plan.token_request.resize(step.num_tokens);
    for (int32_t request = 0; request < step.num_requests; ++request) {
      for (int32_t token = step.cu_seqlens[request]; token < step.cu_seqlens[request + 1]; ++token) {
        plan.token_request[token] = request;
        if (step.seq_lens[request] == 0) plan.blank.push_back(token);
      }
    }
  }
};

}  // namespace

Plan make_plan(const Sizes& sizes, const Step& step, int num_threads, bool is_deterministic) {
  Planner planner{sizes, step, num_threads, is_deterministic, {}};
  planner.describe_tokens();
  planner.add_items();
  planner.number_partials();
  Plan plan = std::move(planner.plan);
  for (const Item& item : plan.items) plan.num_keys += item.kv_end - item.kv_begin;
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [&](const Item& a, const Item& b) { return planner.cost_of(a) > planner.cost_of(b); });
  return plan;
}

}  // namespace tl::attention
