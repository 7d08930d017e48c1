// Vectors as arrays, for any processor and compiler. Included by vector.h, which describes the functions.
#pragma once
#include "vector/half.h"

struct F { float v[16]; };
struct I { int32_t v[16]; };
#define TM_EACH for (int i = 0; i < 16; i++)
TM_INLINE F load(const float* p) { F r; memcpy(r.v, p, 64); return r; }
TM_INLINE void store(float* p, F a) { memcpy(p, a.v, 64); }
TM_INLINE F set1(float x) { F r; TM_EACH r.v[i] = x; return r; }
TM_INLINE F add(F a, F b) { TM_EACH a.v[i] += b.v[i]; return a; }
TM_INLINE F sub(F a, F b) { TM_EACH a.v[i] -= b.v[i]; return a; }
TM_INLINE F mul(F a, F b) { TM_EACH a.v[i] *= b.v[i]; return a; }
TM_INLINE F div(F a, F b) { TM_EACH a.v[i] /= b.v[i]; return a; }
// Rounded once where the processor can, as in the other builds, so that all of them compute the same bits.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
TM_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
TM_INLINE float fma1(float a, float b, float c) { return a * b + c; }
#endif
TM_INLINE F fma(F a, F b, F c) { TM_EACH c.v[i] = fma1(a.v[i], b.v[i], c.v[i]); return c; }
TM_INLINE F max(F a, F b) { TM_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
TM_INLINE F min(F a, F b) { TM_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
TM_INLINE F abs(F a) { TM_EACH a.v[i] = std::fabs(a.v[i]); return a; }
TM_INLINE F round(F a) { TM_EACH a.v[i] = std::nearbyintf(a.v[i]); return a; }
TM_INLINE F from_int(I a) { F r; TM_EACH r.v[i] = (float)a.v[i]; return r; }
TM_INLINE I to_int(F a) { I r; TM_EACH r.v[i] = (int32_t)std::nearbyintf(a.v[i]); return r; }
TM_INLINE I iset1(int x) { I r; TM_EACH r.v[i] = x; return r; }
TM_INLINE I times16(I a) { I r; TM_EACH r.v[i] = 16 * a.v[i]; return r; }
TM_INLINE I iadd(I a, I b) { TM_EACH a.v[i] += b.v[i]; return a; }
TM_INLINE I imul(I a, I b) { TM_EACH a.v[i] *= b.v[i]; return a; }
TM_INLINE I from_bytes(const int8_t* p) { I r; TM_EACH r.v[i] = p[i]; return r; }
TM_INLINE float bfloat1(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
TM_INLINE F where_less(F a, F b, F yes, F no) { F r; TM_EACH r.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; return r; }
TM_INLINE float to_half1(float x) {  // |x| at most 65504
  if (std::fabs(x) < 0x1p-14f) return std::nearbyintf(x * 0x1p24f) * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = (bits + 0xfff + ((bits >> 13) & 1)) & ~0x1fffu;
  memcpy(&x, &bits, 4);
  return x;
}
TM_INLINE F to_half(F a) { TM_EACH a.v[i] = to_half1(a.v[i]); return a; }
TM_INLINE F half(const uint16_t* p) { F r; TM_EACH r.v[i] = half_value(p[i]); return r; }
TM_INLINE void store_half(uint16_t* p, F a) { TM_EACH p[i] = half_bits(a.v[i]); }
TM_INLINE F bfloat(const uint16_t* p) { F r; TM_EACH r.v[i] = bfloat1(p[i]); return r; }
TM_INLINE F scale2(F a, F n) { TM_EACH a.v[i] = std::ldexp(a.v[i], (int)n.v[i]); return a; }

struct Bytes64 { alignas(64) uint8_t v[64]; };
constexpr bool SIGNED_BYTES = false;
TM_INLINE Bytes64 load_bytes64(const uint8_t* p) { Bytes64 r; memcpy(r.v, p, 64); return r; }
TM_INLINE void store_bytes64(uint8_t* p, Bytes64 x) { memcpy(p, x.v, 64); }
TM_INLINE Bytes64 low_nibbles(Bytes64 a) { for (int i = 0; i < 64; i++) a.v[i] &= 15; return a; }
TM_INLINE Bytes64 high_nibbles(Bytes64 a) { for (int i = 0; i < 64; i++) a.v[i] >>= 4; return a; }
template <int LEFT> TM_INLINE Bytes64 with_bits(Bytes64 nibbles, Bytes64 bits, int mask) {
  for (int i = 0; i < 64; i++) nibbles.v[i] |= (LEFT < 0 ? bits.v[i] >> (LEFT < 0 ? -LEFT : 0) : bits.v[i] << (LEFT < 0 ? 0 : LEFT)) & mask;
  return nibbles;
}
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) {
  TM_EACH for (int j = 0; j < 4; j++) sums.v[i] += (int)w.v[4 * i + j] * x[j];
  return sums;
}
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) { return dot4(sums, w, x); }
TM_INLINE F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  TM_EACH sums.v[i] = fma1(bfloat1(w[2 * i + 1]), bfloat1(x[1]), sums.v[i]);
  TM_EACH sums.v[i] = fma1(bfloat1(w[2 * i]), bfloat1(x[0]), sums.v[i]);
  return sums;
}
