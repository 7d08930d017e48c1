// Rows of a table as GGUF stores them, decoded one by one. A block of 32 or 256 numbers has its scales, then its codes; products of
// codes and scales are exact in float32, so that the order of the factors does not matter.
#pragma once
#include <cstring>

#include "vector/half.h"

// llama.cpp's numbers of types; PLAIN: numbers of a TmOp's `scheme`.
enum TableType { PLAIN = 0, T_Q4_0 = 2, T_Q4_1 = 3, T_Q5_0 = 6, T_Q5_1 = 7, T_Q8_0 = 8, T_Q4_K = 12, T_Q5_K = 13, T_Q6_K = 14 };

// Bytes of a block, and its numbers; 0 for types that are not decoded.
inline int block_numbers(int type) { return type >= T_Q4_K ? 256 : 32; }
inline int block_bytes(int type) {
  switch (type) {
    case T_Q4_0: return 18;
    case T_Q4_1: return 20;
    case T_Q5_0: return 22;
    case T_Q5_1: return 24;
    case T_Q8_0: return 34;
    case T_Q4_K: return 144;
    case T_Q5_K: return 176;
    case T_Q6_K: return 210;
    default: return 0;
  }
}

inline float half_at(const uint8_t* at) {
  uint16_t bits;
  memcpy(&bits, at, 2);
  return half_value(bits);
}

// 4 or 5 bits: the low halves of the bytes, then their high halves; a fifth bit lies in 32 bits before them.
inline void decode_small(const uint8_t* block, int type, float* out) {
  const bool has_minimum = type == T_Q4_1 || type == T_Q5_1, is_five = type >= T_Q5_0;
  const float scale = half_at(block), minimum = has_minimum ? half_at(block + 2) : 0;
  const uint8_t* codes = block + (has_minimum ? 4 : 2);
  uint32_t high = 0;
  if (is_five) memcpy(&high, codes, 4), codes += 4;
  const int zero = has_minimum ? 0 : is_five ? 16 : 8;
  for (int i = 0; i < 32; i++) {
    const int low = i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
    const float product = scale * (float)((low | (int)(high >> i & 1) << 4) - zero);
    out[i] = has_minimum ? product + minimum : product;
  }
}

// Eight groups of 32 with a scale and a minimum of 6 bits each; of Q5_K bit g of 32 bytes is the fifth bit of group g.
inline void decode_k(const uint8_t* block, bool is_five, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  const uint8_t *packed = block + 4, *high = block + 16, *codes = block + (is_five ? 48 : 16);
  for (int g = 0; g < 8; g++) {
    const int low = g % 4, top = packed[8 + low];
    const int factor = g < 4 ? packed[low] & 63 : (top & 15) | (packed[low] >> 6) << 4;
    const int below = g < 4 ? packed[4 + low] & 63 : top >> 4 | (packed[4 + low] >> 6) << 4;
    const float step = scale * (float)factor, least = minimum * (float)below;
    for (int i = 0; i < 32; i++) {
      const uint8_t both = codes[g / 2 * 32 + i];
      const int fifth = is_five ? (high[i] >> g & 1) << 4 : 0;
      out[g * 32 + i] = step * (float)((g % 2 ? both >> 4 : both & 15) | fifth) - least;
    }
  }
}

// Each half of a block has 64 bytes of low bits, in four groups of 32 the low halves first, and 32 bytes of two high bits each.
inline void decode_q6_k(const uint8_t* block, float* out) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; i++) {
    const int side = i / 128, group = i % 128 / 32, at = i % 32;
    const uint8_t both = block[side * 64 + group % 2 * 32 + at];
    const int low = group < 2 ? both & 15 : both >> 4, high = block[128 + side * 32 + at] >> 2 * group & 3;
    out[i] = scale * (float)(int8_t)block[192 + i / 16] * (float)((low | high << 4) - 32);
  }
}

// `width` numbers, a multiple of the numbers of a block.
inline void decode_row(const uint8_t* row, int type, int width, float* out) {
  const int count = block_numbers(type), bytes = block_bytes(type);
  for (int first = 0; first < width; first += count, row += bytes, out += count) {
    if (type == T_Q8_0)
      for (int i = 0; i < 32; i++) out[i] = half_at(row) * (float)(int8_t)row[2 + i];
    else if (type == T_Q6_K)
      decode_q6_k(row, out);
    else if (type >= T_Q4_K)
      decode_k(row, type == T_Q5_K, out);
    else
      decode_small(row, type, out);
  }
}
