// Weights times activations, tile by tile. Included by kernels.cpp, once per instruction set.
#pragma once
#include "kernels.h"
#include "matrix.h"
#include "vec.h"

namespace {

template <bool COMES> TM const uint8_t* coming_at(const Act& x, int first) {
  return COMES ? x.coming + (int64_t)(first / 8) * (x.k / GROUP) * COMING : nullptr;
}

// float32: [k][16 rows]. Four sums, k mod 4 each, folded in pairs.
template <int N, bool, bool FRESH>
void tile_float(const uint8_t* weights, const Act& x, int first, float* out, int stride) {
  const float* w = (const float*)weights;
  F sums[N][2];
  for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
  for (int k = 0; k < x.k; k += 2) {
    const F w0 = load(w + 16 * k), w1 = load(w + 16 * k + 16);
    fetch<N, FRESH>(w + 16 * k), fetch<N, FRESH>(w + 16 * k + 16);
    for (int t = 0; t < N; t++) {
      const float* row = x.floats + (int64_t)(first + t) * x.k + k;
      sums[t][0] = fma(w0, set1(row[0]), sums[t][0]);
      sums[t][1] = fma(w1, set1(row[1]), sums[t][1]);
    }
  }
  for (int t = 0; t < N; t++) store(out + t * stride, add(sums[t][0], sums[t][1]));
}

// bfloat16: [k / 2][16 rows][2].
template <int N, bool, bool FRESH>
void tile_bfloat(const uint8_t* weights, const Act& x, int first, float* out, int stride) {
  const uint16_t* w = (const uint16_t*)weights;
  F sums[N][2];
  for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
  for (int k = 0; k < x.k; k += 4) {
    fetch<N, FRESH>(w + 16 * k), fetch<N, FRESH>(w + 16 * k + 32);
    for (int t = 0; t < N; t++) {
      const uint16_t* row = x.bfloats + (int64_t)(first + t) * x.k + k;
      sums[t][0] = dot2(sums[t][0], w + 16 * k, row);
      sums[t][1] = dot2(sums[t][1], w + 16 * k + 32, row + 2);
    }
  }
  for (int t = 0; t < N; t++) store(out + t * stride, add(sums[t][0], sums[t][1]));
}

// Integer schemes: per 64 inputs a header and two groups. The integer dot product of a group is exact; its float product is
// added in the order of the groups.
template <int N, bool COMES, bool FRESH>
void tile_q8(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  const uint8_t* coming = coming_at<COMES>(x, first);
  const int groups = x.k / GROUP;
  F sums[N];
  for (int t = 0; t < N; t++) sums[t] = set1(0);
  for (int pair = 0; pair < x.k / PAD; pair++, w += 64 + 2 * 512)
    for (int g = 0; g < 2; g++) {
      const int group = 2 * pair + g;
      const uint8_t* codes = w + 64 + 512 * g;
      fetch_coming<COMES>(coming);
      I dots[N];
      for (int t = 0; t < N; t++) dots[t] = iset1(-128 * x.sums[(int64_t)(first + t) * groups + group]);
      for (int i = 0; i < 8; i++) {
        const Line line = load_line(codes + 64 * i);
        fetch<N, FRESH>(codes + 64 * i);
        for (int t = 0; t < N; t++)
          dots[t] = dot4_byte(dots[t], line, x.bytes + (int64_t)(first + t) * x.k + 32 * group + 4 * i);
      }
      const F scale = half((const uint16_t*)(w + 32 * g));
      for (int t = 0; t < N; t++)
        sums[t] = fma(from_int(dots[t]), mul(scale, set1(x.scales[(int64_t)(first + t) * groups + group])), sums[t]);
    }
  for (int t = 0; t < N; t++) store(out + t * stride, sums[t]);
}

// HEADER: bytes before the nibbles of two groups. Scales are half floats, or floats where wide; so are minimums. In a PAIR both
// groups have the same.
template <int N, bool COMES, bool FRESH, int HEADER, bool MINIMUM, bool WIDE, bool PAIR = false>
void tile_q4(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  const uint8_t* coming = coming_at<COMES>(x, first);
  const int groups = x.k / GROUP;
  F sums[N];
  for (int t = 0; t < N; t++) sums[t] = set1(0);
  for (int pair = 0; pair < x.k / PAD; pair++, w += HEADER + 2 * 256)
    for (int g = 0; g < 2; g++) {
      const int group = 2 * pair + g;
      const uint8_t* codes = w + HEADER + 256 * g;
      fetch_coming<COMES>(coming);
      const int8_t* bytes = x.bytes + (int64_t)first * x.k + 32 * group;
      const int64_t at = (int64_t)first * groups + group;
      I dots[N];
      for (int t = 0; t < N; t++) dots[t] = iset1(MINIMUM ? 0 : -8 * x.sums[at + (int64_t)t * groups]);
      for (int i = 0; i < 4; i++) {
        fetch<N, FRESH>(codes + 64 * i);
        const Line line = load_line(codes + 64 * i), low = low_nibbles(line), high = high_nibbles(line);
        for (int t = 0; t < N; t++) dots[t] = dot4(dots[t], low, bytes + (int64_t)t * x.k + 4 * i);
        for (int t = 0; t < N; t++) dots[t] = dot4(dots[t], high, bytes + (int64_t)t * x.k + 16 + 4 * i);
      }
      const F scale = WIDE ? load((const float*)(w + 64 * g)) : half((const uint16_t*)(w + (PAIR ? 0 : 32 * g)));
      for (int t = 0; t < N; t++)
        sums[t] = fma(from_int(dots[t]), mul(scale, set1(x.scales[at + (int64_t)t * groups])), sums[t]);
      if (MINIMUM) {
        const F minimum = WIDE ? load((const float*)(w + 128 + 64 * g)) : half((const uint16_t*)(w + (PAIR ? 32 : 64 + 32 * g)));
        for (int t = 0; t < N; t++) sums[t] = fma(minimum, set1(x.moments[at + (int64_t)t * groups]), sums[t]);
      }
    }
  for (int t = 0; t < N; t++) store(out + t * stride, sums[t]);
}

template <int N, bool COMES, bool FRESH> void tile_q4_plain(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, COMES, FRESH, 64, false, false>(w, x, first, out, stride);
}
template <int N, bool COMES, bool FRESH> void tile_q4_min(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, COMES, FRESH, 128, true, false>(w, x, first, out, stride);
}
template <int N, bool COMES, bool FRESH> void tile_q4_pair(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, COMES, FRESH, 64, true, false, true>(w, x, first, out, stride);
}
template <int N, bool COMES, bool FRESH> void tile_q4_wide(const uint8_t* w, const Act& x, int first, float* out, int stride) {
  tile_q4<N, COMES, FRESH, 256, true, true>(w, x, first, out, stride);
}

// By the matrix unit, as many tokens as fill its tiles.
#if defined(TM_AMX)
#define TM_MATRIX(...)                                                                                                 \
  if (const int whole = count / TOKENS * TOKENS) {                                                                     \
    tile_matrix<__VA_ARGS__>(w, x, first, whole, out, stride);                                                         \
    count -= whole, first += whole, out += whole * (int64_t)stride, fresh = false;                                     \
  }
#else
#define TM_MATRIX(...)
#endif

// Any number of tokens, eight at a time. Weights are fresh to the first of them.
#define TM_ANY(NAME, OF, BEFORE)                                                                                       \
  void NAME(const uint8_t* w, const Act& x, int first, int count, float* out, int stride) {                            \
    bool fresh = true;                                                                                                 \
    BEFORE                                                                                                             \
    for (; count >= 8; count -= 8, first += 8, out += 8 * (int64_t)stride, fresh = false)                              \
      if (x.coming)                                                                                                    \
        fresh ? OF<8, true, true>(w, x, first, out, stride) : OF<8, true, false>(w, x, first, out, stride);            \
      else                                                                                                             \
        fresh ? OF<8, false, true>(w, x, first, out, stride) : OF<8, false, false>(w, x, first, out, stride);          \
    if (count >= 4) OF<4, false, true>(w, x, first, out, stride), count -= 4, first += 4, out += 4 * (int64_t)stride; \
    if (count == 3) OF<3, false, true>(w, x, first, out, stride);                                                      \
    if (count == 2) OF<2, false, true>(w, x, first, out, stride);                                                      \
    if (count == 1) OF<1, false, true>(w, x, first, out, stride);                                                      \
  }
TM_ANY(any_float, tile_float, )
#if !defined(TM_AMX)
TM_ANY(any_bfloat, tile_bfloat, )
#endif
TM_ANY(any_q8, tile_q8, TM_MATRIX(8, 64, false, false, false))
TM_ANY(any_q4, tile_q4_plain, TM_MATRIX(4, 64, false, false, false))
TM_ANY(any_q4_min, tile_q4_min, TM_MATRIX(4, 128, true, false, false))
TM_ANY(any_q4_wide, tile_q4_wide, TM_MATRIX(4, 256, true, true, false))
TM_ANY(any_q4_pair, tile_q4_pair, TM_MATRIX(4, 64, true, false, true))

}  // namespace
