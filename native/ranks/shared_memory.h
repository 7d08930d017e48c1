// Memory that several processes map, given out piece by piece: the same pieces at the same offsets in each of them.
#pragma once
#include <cstdint>

#include "kernels/kernels.h"

class SharedMemory {
 public:
  // base: null where the pieces are only counted.
  explicit SharedMemory(void* base) : base_((uint8_t*)base) {}

  // The next piece, which begins on a cache line; null where pieces are only counted.
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = num_bytes_;
    num_bytes_ += rounded(count * (int64_t)sizeof(T), 64);
    return base_ ? (T*)(base_ + at) : nullptr;
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  uint8_t* const base_;
  int64_t num_bytes_ = 0;
};
