// A number that grows, and threads that wait for it: awake for a while, because the next change mostly comes soon, then asleep.
#pragma once
#include "threads/barrier.h"
#include "threads/futex.h"

// A thread stays awake this long between steps: Python needs less time than that between two steps.
constexpr auto AWAKE = std::chrono::milliseconds(2);

struct Changes {
  alignas(64) std::atomic<uint32_t> count{0};
  alignas(64) std::atomic<int> num_sleeping{0};

  // shared: the threads that wait may belong to other processes.
  void add(bool shared = false) {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleeping.load(std::memory_order_seq_cst)) wake_all(count, shared);
  }

  void wait_while(uint32_t seen, bool shared = false) {
    const auto until = std::chrono::steady_clock::now() + AWAKE;
    while (count.load(std::memory_order_acquire) == seen) {
      for (int spins = 0; spins < 200 && count.load(std::memory_order_acquire) == seen; spins++) relax();
      std::this_thread::yield();  // torch's threads may want the processor between two steps
      if (std::chrono::steady_clock::now() < until) continue;
      num_sleeping.fetch_add(1, std::memory_order_seq_cst);
      while (count.load(std::memory_order_seq_cst) == seen) sleep_while(count, seen, shared);
      num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }
  }
};
