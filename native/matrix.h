// The same products sixteen tokens at a time, by the matrix unit of processors that have one (AMX). Included by products.h and
// attend_matrix.h.
//
// Integer dot products are exact, and what becomes of them is done in the order of products.h: the bits are the same.
#pragma once
#include "fetch.h"
#include "kernels.h"
#include "vec.h"

#if defined(__AMX_INT8__)
#define TM_AMX 1

namespace {

constexpr int TOKENS = 16;  // of one tile
constexpr int AT_ONCE = 8;  // groups whose codes are spread out for all tokens

// Tiles are numbered. Of bytes: 0 sums [16 tokens][16 rows], 1 activations [16 tokens][32], 2 codes [8][16 rows][4 inputs]. Of
// bfloat16: 0 activations [16 tokens][32], 3 weights [16][16 rows][2 inputs], 4 to 7 sums [16 tokens][16 rows].
// Not on a stack: gcc 12 thinks that only 8 bytes of them are read.
struct Shapes {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
alignas(64) const Shapes SHAPES = {1, 0, {}, {64, 32, 64, 64, 64, 64, 64, 64}, {16, 16, 8, 16, 16, 16, 16, 16}};

void begin_step() { _tile_loadconfig(&SHAPES); }

void end_step() { _tile_release(); }

// A group's codes as signed bytes [8][16 rows][4 inputs]; those of 4 bits with minimums stay what they are.
template <int BITS, bool MINIMUM> TM void spread(const uint8_t* codes, uint8_t* out) {
  const __m512i middle = _mm512_set1_epi8(BITS == 8 ? (char)128 : MINIMUM ? 0 : 8);
  for (int i = 0; i < BITS; i++) {
    const Line line = load_line(codes + 64 * i);
    if (BITS == 8) {
      _mm512_store_si512(out + 64 * i, _mm512_sub_epi8(line, middle));
    } else {
      _mm512_store_si512(out + 64 * i, _mm512_sub_epi8(low_nibbles(line), middle));
      _mm512_store_si512(out + 64 * (i + 4), _mm512_sub_epi8(high_nibbles(line), middle));
    }
  }
}

// The sums of a group, [16 tokens][16 rows].
TM void multiply_tile(const uint8_t* codes, const int8_t* bytes, int k, int32_t* dots) {
  settle();
  _tile_loadd(2, codes, 64);
  _tile_loadd(1, bytes, k);
  _tile_zero(0);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, dots, 64);
}

// Layouts are those of products.h. The unit is two groups ahead of what becomes of its sums.
template <int BITS, int HEADER, bool MINIMUM, bool WIDE, bool PAIR>
void tile_matrix(const uint8_t* w, const Act& x, int first, int count, float* out, int64_t stride, const uint8_t* coming) {
  alignas(64) uint8_t codes[AT_ONCE][512];
  alignas(64) float scales[AT_ONCE][16], minimums[AT_ONCE][16];
  alignas(64) int32_t dots[4][256];
  const int groups = x.k / GROUP;
  constexpr int PAIR_BYTES = HEADER + 2 * 64 * BITS;
  for (int from = 0; from < groups; from += AT_ONCE) {
    const int size = groups - from < AT_ONCE ? groups - from : AT_ONCE;  // even
    const uint8_t* block = w;
    for (int i = 0; i < size; i++) {
      const int g = i % 2;
      spread<BITS, MINIMUM>(w + HEADER + 64 * BITS * g, codes[i]);
      store(scales[i], WIDE ? load((const float*)(w + 64 * g)) : half((const uint16_t*)(w + (PAIR ? 0 : 32 * g))));
      if (MINIMUM)
        store(minimums[i], WIDE ? load((const float*)(w + 128 + 64 * g)) : half((const uint16_t*)(w + (PAIR ? 32 : 64 + 32 * g))));
      if (g) w += PAIR_BYTES;
    }
    for (int token = 0; token < count; token += TOKENS) {
      const int8_t* bytes = x.bytes + (int64_t)(first + token) * x.k + GROUP * from;
      const int64_t at = (int64_t)(first + token) * groups + from;
      float* to = out + token * stride;
      F sums[TOKENS];
      TM_UNROLL for (int t = 0; t < TOKENS; t++) sums[t] = from ? load(to + t * stride) : set1(0);
      multiply_tile(codes[0], bytes, x.k, dots[0]);
      multiply_tile(codes[1], bytes + GROUP, x.k, dots[1]);
      for (int pair = 0; pair < size; pair += 2) {
        const int here = pair & 2, next = here ^ 2;
        for (int line = 0; !token && line < PAIR_BYTES; line += 64) fetch<TOKENS, true>(block + pair / 2 * PAIR_BYTES + line);
        if (pair + 2 < size) {
          multiply_tile(codes[pair + 2], bytes + GROUP * (pair + 2), x.k, dots[next]);
          multiply_tile(codes[pair + 3], bytes + GROUP * (pair + 3), x.k, dots[next + 1]);
        }
        for (int i = pair; i < pair + 2; i++) {
          if (coming) fetch_coming<true>(coming), fetch_coming<true>(coming);  // for eight tokens, and eight
          const F scale = load(scales[i]);
          TM_UNROLL for (int t = 0; t < TOKENS; t++) {
            const F dot = from_int({_mm512_load_si512(dots[here + i - pair] + 16 * t)});
            sums[t] = fma(dot, mul(scale, set1(x.scales[at + i + t * (int64_t)groups])), sums[t]);
          }
          if (!MINIMUM) continue;
          const F minimum = load(minimums[i]);
          TM_UNROLL for (int t = 0; t < TOKENS; t++) sums[t] = fma(minimum, set1(x.moments[at + i + t * (int64_t)groups]), sums[t]);
        }
      }
      TM_UNROLL for (int t = 0; t < TOKENS; t++) store(to + t * stride, sums[t]);
    }
  }
}

// bfloat16, for any count: a unit that sums in another order than the rest of the processor has to do it all. 32 inputs at a
// time: even ones one after the other, odd ones likewise, both together, and that to the sum. Rows behind the last token are
// read and multiplied, and nobody sees what came out.
template <int TILES>
void tile_bfloat_matrix(const uint8_t* w, const uint16_t* rows, int k, int count, float* out, int stride) {
  const int64_t next = (int64_t)TOKENS * k;
  alignas(64) float sums[TILES][256];
  settle();
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int at = 0; at < k; at += 32, w += 1024, rows += 32) {
    for (int i = 0; i < 16; i++) fetch<TILES, true>(w + 64 * i);
    _tile_loadd(3, w, 64);
    _tile_loadd(0, rows, 2 * k);
    _tile_dpbf16ps(4, 0, 3);
    if (TILES > 1) {
      _tile_loadd(0, rows + next, 2 * k);
      _tile_dpbf16ps(5, 0, 3);
    }
    if (TILES > 2) {
      _tile_loadd(0, rows + 2 * next, 2 * k);
      _tile_dpbf16ps(6, 0, 3);
    }
    if (TILES > 3) {
      _tile_loadd(0, rows + 3 * next, 2 * k);
      _tile_dpbf16ps(7, 0, 3);
    }
  }
  _tile_stored(4, sums[0], 64);
  if (TILES > 1) _tile_stored(5, sums[1], 64);
  if (TILES > 2) _tile_stored(6, sums[2], 64);
  if (TILES > 3) _tile_stored(7, sums[3], 64);
  for (int t = 0; t < count; t++) store(out + t * (int64_t)stride, load(sums[0] + 16 * t));
}

void any_bfloat(const uint8_t* w, const Act& x, int first, int count, float* out, int stride) {
  for (; count > 0; count -= 64, first += 64, out += 64 * (int64_t)stride) {
    const uint16_t* rows = x.bfloats + (int64_t)first * x.k;
    if (count > 48) tile_bfloat_matrix<4>(w, rows, x.k, count < 64 ? count : 64, out, stride);
    else if (count > 32) tile_bfloat_matrix<3>(w, rows, x.k, count, out, stride);
    else if (count > 16) tile_bfloat_matrix<2>(w, rows, x.k, count, out, stride);
    else tile_bfloat_matrix<1>(w, rows, x.k, count, out, stride);
  }
}

void bfloat_matrix(const uint8_t* w, int tiles, const Act& x, int first, int count, float* out, int stride) {
  for (int r = 0; r < tiles; r++, w += 32 * (int64_t)x.k, out += TILE) any_bfloat(w, x, first, count, out, stride);
}

}  // namespace

#else

namespace {

void begin_step() {}
void end_step() {}

}  // namespace

#endif
