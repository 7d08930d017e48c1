// Sleeping until a word of memory is changed, by threads of this process or of others.
#pragma once
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// shared: the word lies in memory that several processes map.
inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value, bool shared = false) {
#if defined(__linux__)
  syscall(SYS_futex, &word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  (void)shared;
  if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(100));
#endif
}

inline void wake_all(std::atomic<uint32_t>& word, bool shared = false) {
#if defined(__linux__)
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  (void)word, (void)shared;
#endif
}
