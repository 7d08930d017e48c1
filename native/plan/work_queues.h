// Work of one step that threads take from each other. Every operation has one queue per thread: the owner takes from its front,
// and threads of the same rank and memory node whose own queue is empty take from its back.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "threads/nodes.h"

// An entry of a thread's queue; owner -1 where all queues are empty.
struct WorkItem {
  int owner;
  uint32_t index;
};

class WorkQueues {
 public:
  // counters [num_ops]: of take_shared, in memory that all ranks share; null for one rank.
  WorkQueues(size_t num_ops, int num_threads, std::atomic<int>* counters, const Nodes& nodes)
      : num_ops_(num_ops), num_threads_(num_threads), nodes_(nodes), own_counters_(counters ? 0 : num_ops),
        counters_(counters ? counters : own_counters_.data()), left_(num_ops * (size_t)num_threads) {}

  // Before the threads start: `count` entries for this thread.
  void fill(size_t op, size_t thread, uint64_t count) {
    left_[thread * num_ops_ + op].store(count << 32, std::memory_order_relaxed);
  }
  // Before the threads start, and by rank 0 alone: the counter of take_shared at 0.
  void reset(size_t op) { counters_[op].store(0, std::memory_order_relaxed); }

  // The next entry of this thread's own queue, or else the last of another thread's. The very last is left to its owner, who
  // begins it sooner than another thread could load its data.
  WorkItem take(size_t op, int thread) {
    for (int i = 0; i < num_threads_; i++) {
      const int owner = (thread + i) % num_threads_;
      if (!nodes_.share(thread, owner)) continue;
      std::atomic<uint64_t>& left = left_[(size_t)owner * num_ops_ + op];
      uint64_t now = left.load(std::memory_order_relaxed);
      while ((uint32_t)now + (i ? 1 : 0) < (uint32_t)(now >> 32)) {
        const uint64_t then = i ? now - (1ull << 32) : now + 1;
        if (left.compare_exchange_weak(now, then, std::memory_order_relaxed))
          return {owner, i ? (uint32_t)(then >> 32) : (uint32_t)now};
      }
    }
    return {-1, 0};
  }

  // For work that is not divided beforehand: 0, 1, 2, … to whichever thread asks next.
  size_t take_shared(size_t op) { return (size_t)counters_[op].fetch_add(1, std::memory_order_relaxed); }

 private:
  size_t num_ops_;
  int num_threads_;
  Nodes nodes_;
  std::vector<std::atomic<int>> own_counters_;
  std::atomic<int>* counters_;                // [op]
  std::vector<std::atomic<uint64_t>> left_;   // [thread][op]: entries [low 32 bits, high 32 bits) that nobody has taken
};
