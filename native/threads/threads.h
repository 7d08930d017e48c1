// Threads that run one function together and meet at barriers. The calling thread is number 0 of them.
//
// A barrier costs 50 ns while every thread has a processor. A thread that waits spins, then yields, and between steps it finally
// sleeps, so that a busy machine gets its processors back.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "threads/barrier.h"
#include "threads/changes.h"

// One thread's part [from, to) of `count` things.
inline std::pair<int, int> share_of(int count, int thread, int num_threads) {
  const int64_t n = num_threads;
  return {(int)(count * (int64_t)thread / n), (int)(count * (int64_t)(thread + 1) / n)};
}

class Threads {
 public:
  // Throws std::system_error where the system cannot start a thread.
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;

  int count() const { return count_; }
  // Calls work(thread) on every thread at once; returns when all are done. `work` must not throw.
  void run(const std::function<void(int)>& work);
  // A barrier, called by every thread from within run: no thread goes on before all have arrived. lost: see Barrier; once it is set,
  // `run` still waits for all threads, and nothing else does.
  void meet(const std::atomic<uint32_t>* lost = nullptr) { barrier_.meet(count_, lost); }

 private:
  void serve(int thread);
  void stop();

  const int count_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  Changes runs_;  // grows with every run; threads wait for its growth
  Barrier barrier_, ends_;
  std::atomic<bool> stopping_{false};
};
