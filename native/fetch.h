// What is asked for ahead of its use. Included by products.h and matrix.h.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace {

#if defined(__AMX_INT8__)
// These processors look ahead less far than their memory is away, even with one token: weights are asked for once, into the
// first cache.
constexpr int NEAR = 6144, FAR = 0, FETCH_FROM = 1;
#else
// With one token the processor looks ahead by itself, and better than anything that follows. With more, its window is full of
// arithmetic: weights are asked for twice, far ahead into the second cache and then into the first. Either alone is slower by a
// tenth to a third.
constexpr int NEAR = 4096, FAR = 16384, FETCH_FROM = 2;
#endif

// For N tokens. Only the first tokens that see weights find them fresh, and ask far ahead.
template <int N, bool FRESH> TM void fetch(const void* near, const void* far) {
  if (N < FETCH_FROM) return;
  if (FRESH && FAR) TM_FETCH(far, 2);
  TM_FETCH(near, 3);
}
template <int N, bool FRESH> TM void fetch(const void* weights) {
  fetch<N, FRESH>((const uint8_t*)weights + NEAR, (const uint8_t*)weights + FAR);
}

// A block of 64 inputs in each of R tiles that lie one behind the other, `size` bytes each, and are read side by side.
template <int R, int N, bool FRESH, int BLOCK> class Reading {
 public:
  Reading(const uint8_t* tiles, int64_t size, int block)
      : block_(tiles + (int64_t)block * BLOCK),
        near_(tiles + ahead(NEAR, size, block)),
        far_(tiles + ahead(FAR, size, block)),
        size_(size) {}
  const uint8_t* at(int r, int offset) const { return block_ + r * size_ + offset; }
  void fetch_ahead(int offset) const {
    for (int r = 0; r < R; r++) fetch<N, FRESH>(near_ + r * size_ + offset, far_ + r * size_ + offset);
  }

 private:
  // What is read so many bytes later lies in the same tiles, or in the R that follow them.
  static int64_t ahead(int bytes, int64_t size, int block) {
    if (R == 1) return (int64_t)block * BLOCK + bytes;
    int64_t at = (int64_t)(block + (bytes + R * BLOCK - 1) / (R * BLOCK)) * BLOCK, passed = 0;
    for (; at >= size; at -= size) passed += R * size;
    return passed + at;
  }

  const uint8_t *block_, *near_, *far_;
  int64_t size_;
};

// With eight tokens, integer schemes leave memory idle: what comes next is fetched into the second cache.
template <bool COMES> TM void fetch_coming(const uint8_t*& at) {
  if (!COMES) return;
  for (int i = 0; i < COMING; i += 64) TM_FETCH(at + i, 2);
  at += COMING;
}

}  // namespace
