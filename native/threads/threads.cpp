#include "threads/threads.h"

#include <chrono>
#include <climits>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int MAX_SPINS = 1000;  // about 15 µs at a barrier; yielding afterwards costs less than a microsecond
// A thread stays awake this long between steps: Python needs less time than that between two steps.
constexpr auto AWAKE = std::chrono::milliseconds(2);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(100));
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

}  // namespace

Threads::Threads(int count) : count_(count) {
  try {
    for (int thread = 1; thread < count; thread++) threads_.emplace_back([this, thread] { serve(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() { stop(); }

void Threads::stop() {
  stopping_ = true;
  runs_++;
  wake_all(runs_);
  for (auto& thread : threads_) thread.join();
}

void Threads::run(const std::function<void(int)>& work) {
  work_ = &work;
  runs_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst)) wake_all(runs_);
  work(0);
  meet();  // all other threads have returned from work
}

void Threads::meet() {
  const uint32_t now = barriers_.load(std::memory_order_acquire);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    barriers_.fetch_add(1, std::memory_order_release);
    return;
  }
  for (int spins = 0; barriers_.load(std::memory_order_acquire) == now; spins++)
    if (spins < MAX_SPINS)
      relax();
    else
      std::this_thread::yield();
}

void Threads::serve(int thread) {
  for (uint32_t runs_seen = 0;;) {
    wait_for_work(runs_seen);
    runs_seen++;
    if (stopping_.load()) return;
    (*work_)(thread);
    meet();
  }
}

void Threads::wait_for_work(uint32_t runs_seen) {
  const auto until = std::chrono::steady_clock::now() + AWAKE;
  while (runs_.load(std::memory_order_acquire) == runs_seen) {
    for (int spins = 0; spins < 200 && runs_.load(std::memory_order_acquire) == runs_seen; spins++) relax();
    std::this_thread::yield();  // torch's threads may want the processor between two steps
    if (std::chrono::steady_clock::now() < until) continue;
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    while (runs_.load(std::memory_order_seq_cst) == runs_seen) sleep_while(runs_, runs_seen);
    num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }
}
