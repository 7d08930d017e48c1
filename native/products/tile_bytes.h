// Size of a weight tile in each scheme. The layouts are described in products.h.
#pragma once
#include "kernels/kernels.h"

// Bytes of one tile of 16 rows and k inputs.
inline int64_t tile_bytes(int scheme, int k) {
  const int64_t padded = rounded(k, PAD);
  switch (scheme) {
    case FLOAT32: return padded * TILE * 4;
    case BFLOAT16:
    case FLOAT16: return padded * TILE * 2;
    case Q8: return padded / PAD * (64 + 1024);
    case Q4:
    case Q4_PAIR: return padded / PAD * (64 + 512);
    case Q4_INTS:
    case Q4_MIN: return padded / PAD * (128 + 512);
    case Q8_WIDE: return padded / PAD * (128 + 1024);
    case Q5_INTS:
    case Q5_MIN: return padded / PAD * (128 + 640);
    case Q5_WIDE: return padded / PAD * (256 + 640);
    case Q6_HALVES: return padded / PAD * (128 + 768);
    default: return padded / PAD * (256 + 512);
  }
}
