// Sizes and places in a weight tile of each scheme. The layouts are described in products.h.
#pragma once
#include "kernels/kernels.h"

constexpr int HEAD = 64;  // bytes before the blocks of SUPER inputs, where these share numbers

// Where a block of PAD inputs begins in a tile, and the head that it shares with others, which lies before the first of them.
inline constexpr int64_t block_at(int index, int block_bytes, bool is_super) {
  return (int64_t)index * block_bytes + (is_super ? (index / (SUPER / PAD) + 1) * HEAD : 0);
}
inline constexpr int64_t head_at(int index, int block_bytes) {
  return block_at(index / (SUPER / PAD) * (SUPER / PAD), block_bytes, true) - HEAD;
}

// The size of a tile with k inputs, a multiple of PAD.
inline constexpr int64_t size_of_blocks(int64_t k, int block_bytes, bool is_super) {
  return k / PAD * block_bytes + (is_super ? k / SUPER * HEAD : 0);
}

// Bytes of one tile of 16 rows and k inputs, a multiple of SUPER where these share numbers; PAD is a block without a head.
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
    case Q4_SUPER: return size_of_blocks(padded, 64 + 512, true);
    case Q5_SUPER: return size_of_blocks(padded, 64 + 640, true);
    case Q6_SUPER: return size_of_blocks(padded, 64 + 768, true);
    default: return padded / PAD * (256 + 512);
  }
}
