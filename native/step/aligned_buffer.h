// Memory that begins on a cache line and is zero when it is new. It grows and never shrinks; growing loses its contents. Memory
// that ranks share does not grow.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/kernels.h"
#include "ranks/shared_memory.h"

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(const AlignedBuffer&) = delete;
  ~AlignedBuffer() {
    if (!is_shared_) std::free(memory_);
  }

  // Room for at least `count` elements.
  void reserve(int64_t count) {
    if (count <= count_) return;
    if (is_shared_) throw std::runtime_error("a step needs more memory than the ranks share");
    const size_t bytes = (size_t)rounded(count * (int64_t)sizeof(T), 64);
    T* fresh = (T*)std::aligned_alloc(64, bytes);
    if (!fresh) throw std::bad_alloc();
    memset((void*)fresh, 0, bytes);
    std::free(memory_), memory_ = fresh, count_ = count;
  }
  // Called once, to use this memory and not its own.
  void lie_in(SharedMemory& memory, int64_t count) { memory_ = memory.take<T>(count), count_ = count, is_shared_ = true; }
  T* get() const { return memory_; }

 private:
  T* memory_ = nullptr;
  int64_t count_ = 0;
  bool is_shared_ = false;
};
