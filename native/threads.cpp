// Spin, then yield, then sleep: a barrier costs 50 ns while all threads have a processor, and a busy machine gets its
// processors back.
#include "threads.h"

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

constexpr int SPINS = 1000;  // about 15 µs; who waits longer yields, which costs less than a microsecond
constexpr auto AWAKE = std::chrono::milliseconds(2);  // between steps; the host's share of a step is shorter

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
    for (int number = 1; number < count; number++)
      threads_.emplace_back([this, number] { serve(number); });
  } catch (...) {
    leaving_ = true;
    round_++;
    wake_all(round_);
    for (auto& thread : threads_) thread.join();
    throw;
  }
}

Threads::~Threads() {
  leaving_ = true;
  round_++;
  wake_all(round_);
  for (auto& thread : threads_) thread.join();
}

void Threads::run(const std::function<void(int)>& work) {
  work_ = &work;
  round_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) wake_all(round_);
  work(0);
  meet();  // the workers' last word
}

void Threads::meet() {
  const uint32_t now = meeting_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    meeting_.fetch_add(1, std::memory_order_release);
    return;
  }
  for (int spins = 0; meeting_.load(std::memory_order_acquire) == now; spins++)
    if (spins < SPINS)
      relax();
    else
      std::this_thread::yield();
}

void Threads::serve(int number) {
  for (uint32_t seen = 0;;) {
    wait_for_work(seen);
    seen++;
    if (leaving_.load()) return;
    (*work_)(number);
    meet();
  }
}

void Threads::wait_for_work(uint32_t seen) {
  const auto until = std::chrono::steady_clock::now() + AWAKE;
  while (round_.load(std::memory_order_acquire) == seen) {
    for (int spins = 0; spins < 200 && round_.load(std::memory_order_acquire) == seen; spins++) relax();
    std::this_thread::yield();  // torch's threads may want the processor between two steps
    if (std::chrono::steady_clock::now() < until) continue;
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    while (round_.load(std::memory_order_seq_cst) == seen) sleep_while(round_, seen);
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }
}
