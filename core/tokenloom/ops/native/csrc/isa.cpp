// Part of every extension: what the processor can run, found once.
#include <tokenloom/isa.h>

#include <atomic>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tl {
namespace {

#if TL_X86
bool has_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  // The kernel grants the eight kilobytes of tile registers only to those that ask.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() {
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!has_avx2) return Isa::portable;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  if (!has_avx512) return Isa::avx2;
  return has_tiles() ? Isa::amx : Isa::avx512;
}
#else
Isa detect() { return Isa::portable; }
#endif

std::atomic<int>& limit() {
  static std::atomic<int> level{static_cast<int>(detected_isa())};
  return level;
}

}  // namespace

Isa detected_isa() {
  static const Isa level = detect();
  return level;
}

Isa current_isa() { return static_cast<Isa>(limit().load(std::memory_order_relaxed)); }

bool set_isa(const char* name) {
  for (int level = 0; level <= static_cast<int>(detected_isa()); ++level) {
    if (std::strcmp(name, isa_name(static_cast<Isa>(level))) == 0) {
      limit().store(level, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::amx: return "amx";
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "portable";
  }
}

}  // namespace tl
