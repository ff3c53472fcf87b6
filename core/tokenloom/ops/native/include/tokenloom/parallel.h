// One parallel region on torch's own threads. Each region costs a few microseconds of waiting: few and large ones win.
#pragma once

#include <omp.h>

#include <cstdint>

namespace tl {

// The threads of a region: what torch.set_num_threads() chose.
static inline int max_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

// Calls body(thread, num_threads) on every thread. The number is never changed per region: libgomp would then end and
// start threads. body must not throw. With too little to do, pass is_worth_it = false: one call, no region.
template <class Body>
static void parallel(bool is_worth_it, const Body& body) {
  if (!is_worth_it || max_threads() == 1) {
    body(0, 1);
    return;
  }
#pragma omp parallel
  body(omp_get_thread_num(), omp_get_num_threads());
}

// The half-open part [begin, end) of `count` items that belongs to one of `num_threads` threads; parts differ by one.
struct Part {
  int64_t begin, end;
};
static inline Part part_of(int64_t count, int thread, int num_threads) {
  return {count * thread / num_threads, count * (thread + 1) / num_threads};
}

}  // namespace tl
