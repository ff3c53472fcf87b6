// What Python sees: Backend (sizes), Work (one step of one KV group).
//
// torch/extension.h would bring all of this, and take four times as long to compile.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <optional>

#include <tokenloom/parallel.h>

#include "attention.h"
#include "kv_store.h"
#include "plan.h"

namespace tl::attention {
namespace {

using Tensors = std::vector<at::Tensor>;

// Fewer bytes of keys and values are not worth waking other threads for.
constexpr int64_t kWorthThreads = 1 << 16;

// 64-byte aligned memory of the calling thread; grows, and stays for the next step.
char* scratch_of(size_t bytes) {
  thread_local std::vector<char> memory;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (-address & 63);
}

class Work {
 public:
  Work(const Sizes& sizes, bool is_deterministic, at::Tensor cu_seqlens, at::Tensor seq_lens, at::Tensor positions,
       at::Tensor block_table, at::Tensor slot_mapping, std::optional<at::Tensor> tree_mask,
       std::optional<int64_t> window)
      : is_deterministic_(is_deterministic), held_{cu_seqlens, seq_lens, positions, block_table, slot_mapping} {
    TORCH_CHECK(block_table.stride(1) == 1 || block_table.size(1) <= 1, "rows of the block table must be contiguous");
    work_.sizes = sizes;
    Step& step = work_.step;
    step = {positions.size(0), seq_lens.size(0), block_table.stride(0), 0, window.value_or(kNoWindow),
            cu_seqlens.data_ptr<int32_t>(), seq_lens.data_ptr<int32_t>(), positions.data_ptr<int64_t>(),
            block_table.data_ptr<int32_t>(), nullptr};
    if (tree_mask.has_value()) {
      TORCH_CHECK(tree_mask->stride(1) == 1 || tree_mask->size(1) <= 1, "rows of the tree mask must be contiguous");
      held_.push_back(*tree_mask);
      step.tree_mask = tree_mask->data_ptr<bool>();
      step.tree_stride = tree_mask->stride(0);
    }
    slots_ = slot_mapping.data_ptr<int64_t>();
    at::get_num_threads();  // tells OpenMP what torch.set_num_threads() said, should this be a new Python thread
    plan_ = make_plan(sizes, step, max_threads(), is_deterministic);
    work_.rows = plan_.rows.data();
    work_.token_request = plan_.token_request.data();
    work_.partial_begin = plan_.partial_begin.data();
    const int64_t num_floats = plan_.partial_begin.back() * int64_t{sizes.num_heads} * (sizes.padded_dim + 2);
    workspace_ = at::empty({num_floats}, at::kFloat);
  }

  void write_kv(const Tensors& kv, const at::Tensor& key, const at::Tensor& value) const {
    const Sizes& sizes = work_.sizes;
    const NewTokens tokens{static_cast<const char*>(key.data_ptr()), static_cast<const char*>(value.data_ptr()),
                           key.stride(0), key.stride(1), value.stride(0), value.stride(1), slots_};
    const Cache cache = cache_of(kv);
    const int64_t count = work_.step.num_tokens;
    parallel(count * sizes.num_kv_heads * sizes.head_dim * 8 > kWorthThreads, [&](int thread, int num_threads) {
      const Part part = part_of(count, thread, num_threads);
      for (int64_t token = part.begin; token < part.end; ++token) write_token(sizes, cache, tokens, token);
    });
  }

  int64_t num_keys() const { return plan_.num_keys; }

  at::Tensor forward(const at::Tensor& query, const Tensors& kv, double softmax_scale, double soft_cap) const {
    at::Tensor out = at::empty(query.sizes(), query.options());
    Attention work = work_;
    work.may_use_tiles = !is_deterministic_ && current_isa() == Isa::amx;
    const Sizes& sizes = work.sizes;
    const Cache cache = cache_of(kv);
    work.layer = {query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr(), cache.keys, cache.values,
                  cache.key_scales, cache.value_scales, static_cast<float>(softmax_scale),
                  static_cast<float>(soft_cap), workspace_.data_ptr<float>()};
    const size_t row_bytes = static_cast<size_t>(sizes.num_heads) * sizes.head_dim * query.element_size();
    for (const int32_t token : plan_.blank) {
      std::memset(static_cast<char*>(out.data_ptr()) + token * row_bytes, 0, row_bytes);
    }
    const int64_t bytes = plan_.num_keys * sizes.num_kv_heads * sizes.head_dim * 8 / sizes.pack();
    run(work, bytes > kWorthThreads);
    return out;
  }

 private:
  void run(const Attention& work, bool is_worth_it) const {
    const auto attend = attend_item_kernel();
    const auto combine = combine_token_kernel();
    const int num_heads = work.sizes.num_kv_heads;
    const int64_t num_units = static_cast<int64_t>(plan_.items.size()) * num_heads;
    const int64_t num_combined = static_cast<int64_t>(plan_.combined.size());
    const size_t scratch = scratch_bytes(work.sizes);
    std::atomic<int64_t> next{0};
    parallel(is_worth_it, [&](int thread, int num_threads) {
      char* const memory = scratch_of(scratch);
      const auto take = [&] {
        const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= num_units) return Unit{};
        return Unit{&plan_.items[index / num_heads], static_cast<int>(index % num_heads)};
      };
      for (Unit unit = take(); unit.item != nullptr;) {
        // One unit ahead, so that its keys can be asked for; but the last ones are left to threads that have nothing.
        const bool is_plenty = next.load(std::memory_order_relaxed) + num_threads <= num_units;
        const Unit following = is_plenty ? take() : Unit{};
        attend(work, unit, following, memory);
        unit = following.item != nullptr ? following : take();
      }
      if (num_combined == 0) return;
#pragma omp barrier
      const Part part = part_of(num_combined, thread, num_threads);
      for (int64_t i = part.begin; i < part.end; ++i) combine(work, plan_.combined[i]);
    });
  }

 public:
  static Cache cache_of(const Tensors& kv) {
    return {static_cast<char*>(kv[0].data_ptr()), static_cast<char*>(kv[1].data_ptr()),
            kv.size() > 2 ? kv[2].data_ptr<float>() : nullptr, kv.size() > 2 ? kv[3].data_ptr<float>() : nullptr};
  }

 private:
  bool is_deterministic_;
  Tensors held_;
  at::Tensor workspace_;
  const int64_t* slots_ = nullptr;
  Attention work_{};
  Plan plan_;
};

// The sizes that all steps share.
class Backend {
 public:
  Backend(int num_heads, int num_kv_heads, int head_dim, int padded_dim, int block_size, int pack, bool is_bf16,
          bool is_deterministic)
      : sizes_{num_heads, num_kv_heads, head_dim, padded_dim, block_size,
               pack == 1 ? Stored::fp32 : pack == 2 ? Stored::bf16 : Stored::int8, is_bf16},
        is_deterministic_(is_deterministic) {}

  std::shared_ptr<Work> prepare(at::Tensor cu_seqlens, at::Tensor seq_lens, at::Tensor positions,
                                at::Tensor block_table, at::Tensor slot_mapping, std::optional<at::Tensor> tree_mask,
                                std::optional<int64_t> window) const {
    return std::make_shared<Work>(sizes_, is_deterministic_, cu_seqlens, seq_lens, positions, block_table,
                                  slot_mapping, tree_mask, window);
  }

  void copy_slots(const Tensors& kv, const at::Tensor& source, const at::Tensor& target) const {
    const at::Tensor from = source.contiguous(), to = target.contiguous();
    attention::copy_slots(sizes_, Work::cache_of(kv), from.data_ptr<int64_t>(), to.data_ptr<int64_t>(), from.size(0));
  }

 private:
  Sizes sizes_;
  bool is_deterministic_;
};

}  // namespace

size_t scratch_bytes(const Sizes& sizes) {
  const size_t rows = sizes.max_rows();
  const size_t per_row = 64 + 4 * (size_t{kChunk} + sizes.head_dim + sizes.padded_dim + 7);
  const size_t per_chunk = 4 * size_t{kChunk} * (sizes.head_dim + sizes.padded_dim + 2);
  return rows * per_row + per_chunk + 18 * 64;
}

}  // namespace tl::attention

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace tl::attention;
  namespace py = pybind11;
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<Work, std::shared_ptr<Work>>(m, "Work")
      .def("write_kv", &Work::write_kv, no_gil)
      .def("forward", &Work::forward, no_gil)
      .def_property_readonly("num_keys", &Work::num_keys);
  py::class_<Backend>(m, "Backend")
      .def(py::init<int, int, int, int, int, int, bool, bool>())
      .def("prepare", &Backend::prepare, no_gil)
      .def("copy_slots", &Backend::copy_slots, no_gil);
  m.def("set_isa", [](const std::string& name) { return tl::set_isa(name.c_str()); });
  m.def("current_isa", [] { return std::string(tl::isa_name(tl::current_isa())); });
}
