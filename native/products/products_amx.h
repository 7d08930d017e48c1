// The same products by the matrix unit (AMX), sixteen tokens at a time. Included by products.h and attend_amx.h.
//
// Integer dot products are exact, and the sums over groups run in the order of products.h, so that the bits are the same.
// Products of bfloat16 are summed in another order than elsewhere; with this build, all of them are computed by the matrix
// unit.
#pragma once
#include "products/prefetch.h"
#include "kernels/kernels.h"
#include "vector/vector.h"

#if defined(__AMX_INT8__)
#define TM_AMX 1

namespace {

constexpr int AMX_TOKENS = 16;  // of one AMX tile
constexpr int GROUPS_AT_ONCE = 8;  // groups whose codes are expanded once for all tokens

// Configuration of the tile registers. For int8: 0 sums [16 tokens][16 rows], 1 activations [16 tokens][32], 2 codes [8][16
// rows][4 inputs]. For bfloat16: 0 activations [16 tokens][32], 3 weights [16][16 rows][2 inputs], 4 to 7 sums [16 tokens][16
// rows]. It is not on a stack, because gcc 12 assumes that the instruction reads only 8 bytes of it.
struct TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
alignas(64) const TileConfig TILE_CONFIG = {1, 0, {}, {64, 32, 64, 64, 64, 64, 64, 64}, {16, 16, 8, 16, 16, 16, 16, 16}};

void begin_tiles() { _tile_loadconfig(&TILE_CONFIG); }

void end_tiles() { _tile_release(); }

// The codes of a group, lines of 64 bytes, as signed bytes [8][16 rows][4 inputs]. 4-bit codes with minimums stay unsigned.
template <int BITS, bool HAS_MINIMUM> TM_INLINE void expand_codes(const uint8_t* codes, uint8_t* out) {
  const __m512i middle = _mm512_set1_epi8(BITS == 8 ? (char)128 : HAS_MINIMUM ? 0 : 8);
  for (int i = 0; i < BITS; i++) {
    const Bytes64 line = load_bytes64(codes + 64 * i);
    if (BITS == 8) {
      _mm512_store_si512(out + 64 * i, _mm512_sub_epi8(line, middle));
    } else {
      _mm512_store_si512(out + 64 * i, _mm512_sub_epi8(low_nibbles(line), middle));
      _mm512_store_si512(out + 64 * (i + 4), _mm512_sub_epi8(high_nibbles(line), middle));
    }
  }
}

// The integer dot products of a group, [16 tokens][16 rows].
TM_INLINE void dot_amx(const uint8_t* codes, const int8_t* bytes, int k, int32_t* dots) {
  compiler_barrier();
  _tile_loadd(2, codes, 64);
  _tile_loadd(1, bytes, k);
  _tile_zero(0);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, dots, 64);
}

// A tile of `tile_size` bytes from w on; Scheme, of products.h, knows its layout. The matrix unit is one pair of groups ahead of the
// arithmetic on its results.
template <class Scheme>
void integer_tile_amx(const uint8_t* w, int64_t tile_size, const Activations& x, int first, int count, float* out, int64_t stride,
                      const uint8_t* kv_prefetch) {
  using Block = typename Scheme::template BlockOf<1, AMX_TOKENS, true>;
  using Group = typename Scheme::template StoredGroup<Block>;
  alignas(64) uint8_t codes[GROUPS_AT_ONCE][512];
  alignas(64) float scales[GROUPS_AT_ONCE][16], minimums[GROUPS_AT_ONCE][16];
  alignas(64) int32_t dots[4][256];
  const int groups = x.k / GROUP;
  for (int from = 0; from < groups; from += GROUPS_AT_ONCE) {
    const int size = groups - from < GROUPS_AT_ONCE ? groups - from : GROUPS_AT_ONCE;  // even
    for (int i = 0; i < size; i++) {
      const Block block(w, tile_size, (from + i) / 2);
      const Group group{block, i % 2};
      expand_codes<Scheme::CODE_BITS, Scheme::MINIMUMS>(group.line(0, 0), codes[i]);
      store(scales[i], Group::scale(group, 0));
      if constexpr (Scheme::MINIMUMS) store(minimums[i], Group::minimum(group, 0));
    }
    for (int token = 0; token < count; token += AMX_TOKENS) {
      const int8_t* bytes = x.codes + (int64_t)(first + token) * x.k + GROUP * from;
      const int64_t at = (int64_t)(first + token) * groups + from;
      float* to = out + token * stride;
      F sums[AMX_TOKENS];
      TM_UNROLL for (int t = 0; t < AMX_TOKENS; t++) sums[t] = from ? load(to + t * stride) : set1(0);
      dot_amx(codes[0], bytes, x.k, dots[0]);
      dot_amx(codes[1], bytes + GROUP, x.k, dots[1]);
      for (int pair = 0; pair < size; pair += 2) {
        const int here = pair & 2, next = here ^ 2;
        const Block block(w, tile_size, (from + pair) / 2);
        for (int line = 0; !token && line < Scheme::BLOCK; line += 64) block.prefetch_ahead(line);
        if (pair + 2 < size) {
          dot_amx(codes[pair + 2], bytes + GROUP * (pair + 2), x.k, dots[next]);
          dot_amx(codes[pair + 3], bytes + GROUP * (pair + 3), x.k, dots[next + 1]);
        }
        for (int i = pair; i < pair + 2; i++) {
          if (kv_prefetch) prefetch_kv<true>(kv_prefetch), prefetch_kv<true>(kv_prefetch);  // twice, for two times eight tokens
          const F scale = load(scales[i]);
          TM_UNROLL for (int t = 0; t < AMX_TOKENS; t++) {
            const F dot = from_int({_mm512_load_si512(dots[here + i - pair] + 16 * t)});
            sums[t] = fma(dot, mul(scale, set1(x.scales[at + i + t * (int64_t)groups])), sums[t]);
          }
          if (!Scheme::MINIMUMS) continue;
          const F minimum = load(minimums[i]);
          TM_UNROLL for (int t = 0; t < AMX_TOKENS; t++)
            sums[t] = fma(minimum, set1(x.scaled_sums[at + i + t * (int64_t)groups]), sums[t]);
        }
      }
      TM_UNROLL for (int t = 0; t < AMX_TOKENS; t++) store(to + t * stride, sums[t]);
    }
  }
}

// bfloat16 for at most 64 tokens, TILES tiles of 16. The matrix unit sums 32 inputs at a time: even inputs in order, odd inputs
// in order, then both and the previous sum. Rows behind the last token are multiplied too, and their results are not
// stored.
template <int TILES>
void bfloat_tile_amx(const uint8_t* w, const uint16_t* rows, int k, int count, float* out, int stride) {
  const int64_t next = (int64_t)AMX_TOKENS * k;
  alignas(64) float sums[TILES][256];
  compiler_barrier();
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int at = 0; at < k; at += 32, w += 1024, rows += 32) {
    for (int i = 0; i < 16; i++) prefetch<TILES, true>(w + 64 * i);
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

void bfloat_tokens_amx(const uint8_t* w, const Activations& x, int first, int count, float* out, int stride) {
  for (; count > 0; count -= 64, first += 64, out += 64 * (int64_t)stride) {
    const uint16_t* rows = x.bfloats + (int64_t)first * x.k;
    if (count > 48) bfloat_tile_amx<4>(w, rows, x.k, count < 64 ? count : 64, out, stride);
    else if (count > 32) bfloat_tile_amx<3>(w, rows, x.k, count, out, stride);
    else if (count > 16) bfloat_tile_amx<2>(w, rows, x.k, count, out, stride);
    else bfloat_tile_amx<1>(w, rows, x.k, count, out, stride);
  }
}

void bfloat_product_amx(const uint8_t* w, int tiles, const Activations& x, int first, int count, float* out, int stride) {
  for (int r = 0; r < tiles; r++, w += 32 * (int64_t)x.k, out += TILE) bfloat_tokens_amx(w, x, first, count, out, stride);
}

}  // namespace

#else

namespace {

void begin_tiles() {}
void end_tiles() {}

}  // namespace

#endif
