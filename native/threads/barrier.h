// A point at which threads meet: no thread goes on before all have arrived. It may lie in memory that several processes share.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

// The pause of a waiting thread between two looks at a variable.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int MAX_SPINS = 1000;  // about 15 µs at a barrier; yielding afterwards costs less than a microsecond

struct Barrier {
  alignas(64) std::atomic<int> num_arrived{0};
  alignas(64) std::atomic<uint32_t> passed{0};  // grows by one each time that all have arrived

  // Called by each of `count` threads. False as soon as `lost`, which may be null, is set: a lost rank's threads would never arrive.
  bool meet(int count, const std::atomic<uint32_t>* lost = nullptr) {
    const uint32_t now = passed.load(std::memory_order_acquire);
    if (num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
      num_arrived.store(0, std::memory_order_relaxed);
      passed.fetch_add(1, std::memory_order_release);
      return true;
    }
    for (int spins = 0; passed.load(std::memory_order_acquire) == now; spins++) {
      if (spins < MAX_SPINS) {
        relax();
        continue;
      }
      if (lost && lost->load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }
};
