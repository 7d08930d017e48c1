// Vectors with Advanced SIMD and its dot products (Armv8.2-A): four registers. Included by vector.h, which describes
// the functions.
#pragma once
#include <arm_neon.h>

#include "vector/half.h"

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
#define TM_QUARTERS TM_UNROLL for (int i = 0; i < 4; i++)

TM_INLINE F load(const float* p) { F r; TM_QUARTERS r.v[i] = vld1q_f32(p + 4 * i); return r; }
TM_INLINE void store(float* p, F a) { TM_QUARTERS vst1q_f32(p + 4 * i, a.v[i]); }
TM_INLINE F set1(float x) { F r; TM_QUARTERS r.v[i] = vdupq_n_f32(x); return r; }
TM_INLINE F add(F a, F b) { TM_QUARTERS a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
TM_INLINE F sub(F a, F b) { TM_QUARTERS a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
TM_INLINE F mul(F a, F b) { TM_QUARTERS a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
TM_INLINE F div(F a, F b) { TM_QUARTERS a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
TM_INLINE F fma(F a, F b, F c) { TM_QUARTERS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return c; }
TM_INLINE F where_less(F a, F b, F yes, F no) {
  TM_QUARTERS no.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]);
  return no;
}
// Not vmaxq_f32, which returns NaN where either is NaN: the other builds return b then.
TM_INLINE F max(F a, F b) { return where_less(b, a, a, b); }
TM_INLINE F min(F a, F b) { return where_less(a, b, a, b); }
TM_INLINE F abs(F a) { TM_QUARTERS a.v[i] = vabsq_f32(a.v[i]); return a; }
TM_INLINE F round(F a) { TM_QUARTERS a.v[i] = vrndnq_f32(a.v[i]); return a; }
TM_INLINE F from_int(I a) { F r; TM_QUARTERS r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
TM_INLINE I to_int(F a) { I r; TM_QUARTERS r.v[i] = vcvtnq_s32_f32(a.v[i]); return r; }
TM_INLINE I iset1(int x) { I r; TM_QUARTERS r.v[i] = vdupq_n_s32(x); return r; }
TM_INLINE I times16(I a) { TM_QUARTERS a.v[i] = vshlq_n_s32(a.v[i], 4); return a; }
TM_INLINE I iadd(I a, I b) { TM_QUARTERS a.v[i] = vaddq_s32(a.v[i], b.v[i]); return a; }
TM_INLINE I imul(I a, I b) { TM_QUARTERS a.v[i] = vmulq_s32(a.v[i], b.v[i]); return a; }
TM_INLINE I from_bytes(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
}
TM_INLINE F to_half(F a) { TM_QUARTERS a.v[i] = vcvt_f32_f16(vcvt_f16_f32(a.v[i])); return a; }
TM_INLINE F half(const uint16_t* p) {
  F r;
  TM_QUARTERS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
TM_INLINE void store_half(uint16_t* p, F a) { TM_QUARTERS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))); }
TM_INLINE float32x4_t bfloat4(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
TM_INLINE F bfloat(const uint16_t* p) { F r; TM_QUARTERS r.v[i] = bfloat4(vld1_u16(p + 4 * i)); return r; }
TM_INLINE F scale2(F a, F n) {  // n is an integer from -126 to 127
  TM_QUARTERS {
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23);
    a.v[i] = vmulq_f32(a.v[i], vreinterpretq_f32_s32(exponent));
  }
  return a;
}

struct Bytes64 { uint8x16_t v[4]; };
constexpr bool SIGNED_BYTES = true;
TM_INLINE Bytes64 load_bytes64(const uint8_t* p) { Bytes64 r; TM_QUARTERS r.v[i] = vld1q_u8(p + 16 * i); return r; }
TM_INLINE void store_bytes64(uint8_t* p, Bytes64 x) { TM_QUARTERS vst1q_u8(p + 16 * i, x.v[i]); }
TM_INLINE Bytes64 low_nibbles(Bytes64 a) { TM_QUARTERS a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(15)); return a; }
TM_INLINE Bytes64 high_nibbles(Bytes64 a) { TM_QUARTERS a.v[i] = vshrq_n_u8(a.v[i], 4); return a; }
template <int LEFT> TM_INLINE Bytes64 with_bits(Bytes64 nibbles, Bytes64 bits, int mask) {
  TM_QUARTERS {
    const uint8x16_t moved = vshlq_u8(bits.v[i], vdupq_n_s8(LEFT));  // to the right where LEFT is negative
    nibbles.v[i] = vorrq_u8(nibbles.v[i], vandq_u8(moved, vdupq_n_u8((uint8_t)mask)));
  }
  return nibbles;
}
// Codes below 128 have the same bits with a sign as without. Both factors of the instruction have a sign.
TM_INLINE I dot4(I sums, Bytes64 w, const int8_t* x) {
  int32_t quad;
  memcpy(&quad, x, 4);
  const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(quad));
  TM_QUARTERS sums.v[i] = vdotq_s32(sums.v[i], vreinterpretq_s8_u8(w.v[i]), all);
  return sums;
}
TM_INLINE I dot4_byte(I sums, Bytes64 w, const int8_t* x) {
  TM_QUARTERS w.v[i] = veorq_u8(w.v[i], vdupq_n_u8(128));
  return dot4(sums, w, x);
}
// The odd entries of pairs of bfloat16, and the even entries.
TM_INLINE float32x4_t odd4(uint32x4_t pairs) { return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u))); }
TM_INLINE float32x4_t even4(uint32x4_t pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
TM_INLINE float32x4_t dot2_4(float32x4_t sums, uint32x4_t w, uint32x4_t x) {
  return vfmaq_f32(vfmaq_f32(sums, odd4(w), odd4(x)), even4(w), even4(x));
}
TM_INLINE F dot2(F sums, const uint16_t* w, const uint16_t* x) {
  uint32_t pair;
  memcpy(&pair, x, 4);
  TM_QUARTERS sums.v[i] = dot2_4(sums.v[i], vreinterpretq_u32_u16(vld1q_u16(w + 8 * i)), vdupq_n_u32(pair));
  return sums;
}
