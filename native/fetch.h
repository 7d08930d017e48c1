// What is asked for ahead of its use. Included by products.h and matrix.h.
#pragma once
#include "kernels.h"
#include "vec.h"

namespace {

#if defined(__AMX_INT8__)
// These processors look ahead less far than their memory is away, even with one token: weights are asked for once, into the
// first cache.
constexpr int NEAR = 6144;
template <int N, bool FRESH> TM void fetch(const void* weights) { __builtin_prefetch((const char*)weights + NEAR, 0, 3); }
#else
// With one token the processor looks ahead by itself, and better than anything that follows. With more, its window is full of
// arithmetic: weights are asked for twice, far ahead into the second cache and then into the first. Either alone is slower by a
// tenth to a third.
constexpr int NEAR = 4096, FAR = 16384;
template <int N, bool FRESH> TM void fetch(const void* weights) {
#if defined(__GNUC__)
  if (N >= 2 && FRESH) __builtin_prefetch((const char*)weights + FAR, 0, 2);
  if (N >= 2) __builtin_prefetch((const char*)weights + NEAR, 0, 3);
#endif
}
#endif

// With eight tokens, integer schemes leave memory idle: what comes next is fetched into the second cache.
template <bool COMES> TM void fetch_coming(const uint8_t*& at) {
#if defined(__GNUC__)
  if (!COMES) return;
  for (int i = 0; i < COMING; i += 64) __builtin_prefetch(at + i, 0, 2);
  at += COMING;
#endif
}

}  // namespace
