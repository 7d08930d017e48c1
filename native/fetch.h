// How weights are asked for ahead of their use. Included by products.h and matrix.h.
#pragma once
#include "vec.h"

namespace {

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

}  // namespace
