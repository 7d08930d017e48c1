// Memory that begins on a cache line and is zero when it is new. It grows and never shrinks; growing loses what it held.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/kernels.h"

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(memory_); }

  // Room for at least `count` elements.
  void reserve(int64_t count) {
    if (count <= count_) return;
    const size_t bytes = (size_t)rounded(count * (int64_t)sizeof(T), 64);
    T* fresh = (T*)std::aligned_alloc(64, bytes);
    if (!fresh) throw std::bad_alloc();
    memset((void*)fresh, 0, bytes);
    std::free(memory_), memory_ = fresh, count_ = count;
  }
  T* get() const { return memory_; }

 private:
  T* memory_ = nullptr;
  int64_t count_ = 0;
};
