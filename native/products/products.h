// Products of weights and activations, and the layouts of weight tiles. Included by kernels.cpp, once per instruction set.
//
// A tile holds 16 rows, interleaved so that one load feeds one dot product of 16 rows. Inputs follow in blocks of 64. The sum
// over the inputs runs in their order, whatever the number of tokens and tiles that are multiplied together.
#pragma once
#include <type_traits>

#include "products/prefetch.h"
#include "kernels/kernels.h"
#include "products/products_amx.h"
#include "vector/vector.h"

namespace {

// Tiles that lie one behind the other from w on, `size` bytes each, times the tokens from `first` on. The result of a row goes
// to out[token * stride + row]. kv_prefetch: see Activations.
struct TileJob {
  const Activations& x;
  const uint8_t* w;
  int64_t size;
  int first;
  float* out;
  int64_t stride;
  const uint8_t* kv_prefetch;

  // The same for one of the tiles, and from a later token on. Each job gets its share of the KV cache to prefetch, in the order of
  // the work.
  TileJob tile(int r, int count) const {
    return {x, w + r * size, size, first, out + TILE * r, stride, kv_prefetch_after(r * (count / 8))};
  }
  TileJob after(int tokens, int tiles) const {
    return {x, w, size, first + tokens, out + tokens * stride, stride, kv_prefetch_after(tiles * (tokens / 8))};
  }
  const uint8_t* kv_prefetch_after(int blocks_of_8) const {
    return kv_prefetch ? kv_prefetch + (int64_t)blocks_of_8 * (x.k / GROUP) * PREFETCH_BYTES : nullptr;
  }
};

// Tokens of floating-point products whose sums, two vectors for each, stay in registers beside the weights. With AVX2 a vector
// is two of its 16 registers; bfloat16 then gains from a fourth token, since its weights are converted once for all of them.
// With Advanced SIMD a vector is four of 32 registers.
#if defined(TM_AVX2) || defined(TM_NEON)
constexpr int FLOAT32_TOKENS = 3, BFLOAT16_TOKENS = 4;
#else
constexpr int FLOAT32_TOKENS = 8, BFLOAT16_TOKENS = 8;
#endif

// Each of the following types is a scheme. BLOCK: bytes of 64 inputs of a tile. At most TILES_TOGETHER tiles and
// TOKENS_TOGETHER tokens are multiplied together, so that the sums stay in registers.

TM_INLINE F load_number(const float* p) { return load(p); }
TM_INLINE F load_number(const uint16_t* p) { return half(p); }

// float32, or float16 (uint16_t), which is multiplied as float32: [k][16 rows]. Even and odd inputs have a sum each; the two are
// added at the end.
template <class Number> struct FloatWeights {
  static constexpr int BLOCK = (int)sizeof(Number) * TILE * PAD, TILES_TOGETHER = 1, TOKENS_TOGETHER = FLOAT32_TOKENS;
  static constexpr bool INTEGER = false, HAS_AMX = false;

  template <int, int N, bool, bool COLD> static void run(const TileJob& job) {
    const Number* w = (const Number*)job.w;
    const float* x = job.x.floats + (int64_t)job.first * job.x.k;
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
    for (int k = 0; k < job.x.k; k += 2) {
      const F w0 = load_number(w + 16 * k), w1 = load_number(w + 16 * k + 16);
      prefetch<N, COLD>(w + 16 * k);
      if (sizeof(Number) == 4) prefetch<N, COLD>(w + 16 * k + 16);  // two inputs of float16 are one cache line
      for (int t = 0; t < N; t++) {
        const float* row = x + (int64_t)t * job.x.k + k;
        sums[t][0] = fma(w0, set1(row[0]), sums[t][0]);
        sums[t][1] = fma(w1, set1(row[1]), sums[t][1]);
      }
    }
    for (int t = 0; t < N; t++) store(job.out + t * job.stride, add(sums[t][0], sums[t][1]));
  }
};

// bfloat16: [k / 2][16 rows][2]. Even and odd pairs of inputs have a sum each; the two are added at the end.
struct Bfloat16Weights {
  static constexpr int BLOCK = 32 * PAD, TILES_TOGETHER = 1, TOKENS_TOGETHER = BFLOAT16_TOKENS;
  static constexpr bool INTEGER = false, HAS_AMX = false;

  template <int, int N, bool, bool COLD> static void run(const TileJob& job) {
    const uint16_t *w = (const uint16_t*)job.w, *x = job.x.bfloats + (int64_t)job.first * job.x.k;
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
    for (int k = 0; k < job.x.k; k += 4) {
      prefetch<N, COLD>(w + 16 * k), prefetch<N, COLD>(w + 16 * k + 32);
      for (int t = 0; t < N; t++) {
        const uint16_t* row = x + (int64_t)t * job.x.k + k;
        sums[t][0] = dot2(sums[t][0], w + 16 * k, row);
        sums[t][1] = dot2(sums[t][1], w + 16 * k + 32, row + 2);
      }
    }
    for (int t = 0; t < N; t++) store(job.out + t * job.stride, add(sums[t][0], sums[t][1]));
  }
};

// Integer schemes: each block of 64 inputs has a header with the scales (and minimums) of two groups, then the codes of the two
// groups. The dot product of a group is an exact integer; its product with the scales is added to the sum in the order of the
// groups. Scales and minimums are half floats, or floats where WIDE. SHARED_SCALE: both groups have the same scale and minimum.
// INTS: two half floats for each row, then for each group the integers by which they are multiplied, one byte each, [scale,
// minimum][16 rows]. Both factors are so short that the product is exact.
//
// Codes of 5 and 6 bits begin with their high bits, a line of 64 bytes for each bit, and go on as codes of 4 bits do. Bit i of a
// byte is the high bit of quad i of the group for 5 bits; for 6 bits a byte has the high bits of four quads, see whole_codes.
// Behind the scales of 6-bit codes stand factors of one byte for the halves of both groups: the codes of half a group, minus 32,
// are multiplied by the scale and by their factor. Factors are multiplied as integers, so that these sums are exact too.
template <int BITS, int HEADER, bool HAS_MINIMUM = false, bool WIDE = false, bool SHARED_SCALE = false,
          bool INTS = false>
struct IntegerWeights {
  static constexpr int BLOCK = HEADER + 128 * BITS;
  static constexpr bool INTEGER = true;
  // An activation is broadcast to all lanes once for two tiles, because products of one tile wait for these loads. More sums
  // do not fit into the registers. Without VNNI each product takes registers of its own.
#if defined(TM_AVX512) && defined(TM_VNNI)
  static constexpr int TILES_TOGETHER = 2, TOKENS_TOGETHER = 8;
#elif defined(TM_PORTABLE)
  static constexpr int TILES_TOGETHER = 1, TOKENS_TOGETHER = 8;
#else
  static constexpr int TILES_TOGETHER = 1, TOKENS_TOGETHER = 4;
#endif
  static constexpr int SCALES_AT = SHARED_SCALE ? 0 : WIDE ? 64 : 32, MINIMUMS_AT = SHARED_SCALE ? 32 : WIDE ? 128 : 64;

  TM_INLINE F load_scales(const uint8_t* at) { return WIDE ? load((const float*)at) : half((const uint16_t*)at); }

  // Added to the sums of a group because codes are stored without a sign: -8 times the sum of the activations for 4-bit codes,
  // -128 times for 8-bit codes. Codes with a minimum are unsigned.
  TM_INLINE I first_sum(int32_t offset) {
    return HAS_MINIMUM || (BITS == 8 && SIGNED_BYTES) ? iset1(0) : BITS == 4 ? iset1(offset) : times16(iset1(offset));
  }

  // Adds the products of the codes that begin at `at` in the block with the activations of each token.
  template <int R, int N, class Block, class Sums>
  TM_INLINE void multiply(const Block& block, int at, const int8_t* x, int64_t k, Sums (&sums)[R][N]) {
    TM_UNROLL for (int i = 0; i < BITS; i++) {
      Bytes64 line[R];
      block.prefetch_ahead(at + 64 * i);
      for (int r = 0; r < R; r++) line[r] = load_bytes64(block.at(r, at + 64 * i));
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++)
          if constexpr (BITS == 8)
            sums[r][t] = dot4_byte(sums[r][t], line[r], x + t * k + 4 * i);
          else
            sums[r][t] = dot4(sums[r][t], low_nibbles(line[r]), x + t * k + 4 * i);
      if constexpr (BITS == 4)
        for (int t = 0; t < N; t++)
          for (int r = 0; r < R; r++) sums[r][t] = dot4(sums[r][t], high_nibbles(line[r]), x + t * k + 16 + 4 * i);
    }
  }

  // The integer dot products of one group.
  template <int R, int N, class Block>
  TM_INLINE void multiply_group(const Block& block, int g, const Activations& x, int64_t at, I (&dots)[R][N]) {
    const int64_t groups = x.k / GROUP;
    if constexpr (BITS == 5 || BITS == 6) return multiply_halves(block, g, x, at, dots);
    std::conditional_t<BITS == 8, I, NibbleSums> sums[R][N];
    for (int t = 0; t < N; t++)
      for (int r = 0; r < R; r++) start(sums[r][t], first_sum(x.offsets[at + t * groups]));
    multiply(block, HEADER + 64 * BITS * g, x.codes + GROUP * at, x.k, sums);
    for (int t = 0; t < N; t++)
      for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], first_sum(x.offsets[at + t * groups]));
  }

  // Nibbles with the high bits of their quad: quad I of half a group, which is the second where HIGH. `lines` are the high bits of
  // a group; for 6-bit codes, the first line has the bits of the quads 0 and 1 of both halves.
  template <int I, bool HIGH> TM_INLINE Bytes64 whole_codes(Bytes64 both, const Bytes64* lines) {
    const Bytes64 nibbles = HIGH ? high_nibbles(both) : low_nibbles(both);
    if constexpr (BITS == 5) return with_bits<4 - I - 4 * HIGH>(nibbles, lines[0], 16);
    else return with_bits<4 - 2 * (I % 2) - 4 * HIGH>(nibbles, lines[I / 2], 48);
  }

  // Adds the products of one half of a group with the activations of each token.
  template <bool HIGH, int R, int N, class Block, class Sums>
  TM_INLINE void multiply_half(const Block& block, int at, const int8_t* x, int64_t k, Sums (&sums)[R][N]) {
    Bytes64 lines[R][2];
    for (int r = 0; r < R; r++)
      for (int i = 0; i < BITS - 4; i++) lines[r][i] = load_bytes64(block.at(r, at + 64 * i));
    multiply_quad<0, HIGH>(block, at, x, k, lines, sums), multiply_quad<1, HIGH>(block, at, x, k, lines, sums);
    multiply_quad<2, HIGH>(block, at, x, k, lines, sums), multiply_quad<3, HIGH>(block, at, x, k, lines, sums);
  }
  template <int I, bool HIGH, int R, int N, class Block, class Sums>
  TM_INLINE void multiply_quad(const Block& block, int at, const int8_t* x, int64_t k, const Bytes64 (&lines)[R][2],
                               Sums (&sums)[R][N]) {
    // The lines of a group are prefetched one by one, as lines of other codes are.
    if (!HIGH || I < BITS - 4) block.prefetch_ahead(at + 64 * I + (HIGH ? 256 : 0));
    at += 64 * (BITS - 4);
    for (int r = 0; r < R; r++) {
      const Bytes64 codes = whole_codes<I, HIGH>(load_bytes64(block.at(r, at + 64 * I)), lines[r]);
      for (int t = 0; t < N; t++) sums[r][t] = dot4(sums[r][t], codes, x + t * k + 4 * I);
    }
  }

  // The integer dot products of one group of codes of 5 or 6 bits, one half after the other.
  template <int R, int N, class Block>
  TM_INLINE void multiply_halves(const Block& block, int g, const Activations& x, int64_t at, I (&dots)[R][N]) {
    const int64_t groups = x.k / GROUP;
    const int from = HEADER + 64 * BITS * g;
    const int8_t* codes = x.codes + GROUP * at;
    if constexpr (BITS == 5) {
      NibbleSums sums[R][N];
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) start(sums[r][t], iset1(0));
      multiply_half<false>(block, from, codes, x.k, sums);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], iset1(0)), start(sums[r][t], dots[r][t]);
      multiply_half<true>(block, from, codes + 16, x.k, sums);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], dots[r][t]);
    } else {
      I sums[R][N];
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = iset1(4 * x.first_offsets[at + t * groups]);
      multiply_half<false>(block, from, codes, x.k, dots);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) sums[r][t] = iset1(4 * (x.offsets[at + t * groups] - x.first_offsets[at + t * groups]));
      multiply_half<true>(block, from, codes + 16, x.k, sums);
      for (int r = 0; r < R; r++) {
        const int8_t* factors = (const int8_t*)block.at(r, HEADER - 64 + 32 * g);
        const I first = from_bytes(factors), second = from_bytes(factors + TILE);
        for (int t = 0; t < N; t++) dots[r][t] = iadd(imul(dots[r][t], first), imul(sums[r][t], second));
      }
    }
  }

  template <int R, int N, bool PREFETCHES_KV, bool COLD> static void run(const TileJob& job) {
    const Activations x = job.x;  // a copy, so that its fields stay in registers
    const int groups = x.k / GROUP;
    const uint8_t* kv_prefetch = job.kv_prefetch;
    F sums[R][N];
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) sums[r][t] = set1(0);
    for (int index = 0; index < x.k / PAD; index++) {
      const TileBlock<R, N, COLD, BLOCK> block(job.w, job.size, index);
      TM_UNROLL for (int g = 0; g < 2; g++) {
        const int64_t at = (int64_t)job.first * groups + 2 * index + g;
        I dots[R][N];
        for (int r = 0; r < R; r++) prefetch_kv<PREFETCHES_KV>(kv_prefetch);
        multiply_group(block, g, x, at, dots);
        for (int r = 0; r < R; r++) {
          const F scale = INTS ? integer_scale(block.at(r, 0), g, 0) : load_scales(block.at(r, SCALES_AT * g));
          for (int t = 0; t < N; t++)
            sums[r][t] = fma(from_int(dots[r][t]), mul(scale, set1(x.scales[at + (int64_t)t * groups])), sums[r][t]);
          if (!HAS_MINIMUM) continue;
          const F minimum = INTS ? integer_scale(block.at(r, 0), g, 1) : load_scales(block.at(r, MINIMUMS_AT + SCALES_AT * g));
          for (int t = 0; t < N; t++) sums[r][t] = fma(minimum, set1(x.scaled_sums[at + (int64_t)t * groups]), sums[r][t]);
        }
      }
    }
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) store(job.out + t * job.stride + TILE * r, sums[r][t]);
  }

  static constexpr bool HAS_AMX = BITS == 4 || BITS == 8;
#if defined(TM_AMX)
  static void run_amx(const TileJob& job, int count) {
    integer_tile_amx<BITS, HEADER, HAS_MINIMUM, WIDE, SHARED_SCALE, INTS>(job.w, job.x, job.first, count, job.out, job.stride,
                                                                    job.kv_prefetch);
  }
#endif
};

constexpr int MIN_TOKENS_SIDE_BY_SIDE = 3;  // with fewer tokens, reading one tile after the other is faster

// The last tokens: fewer than eight.
template <class Scheme, int R> void run_remaining(const TileJob& job, int count) {
  const TileJob rest = count >= 4 ? job.after(4, R) : job;
  if (count >= 4) Scheme::template run<R, 4, false, true>(job);
  if (count % 4 == 3) Scheme::template run<R, 3, false, true>(rest);
  if (count % 4 == 2) Scheme::template run<R, 2, false, true>(rest);
  if (count % 4 == 1) Scheme::template run<R, 1, false, true>(rest);
}

// R tiles and any number of tokens. Weights are cold for the first tokens only. An odd last tile runs the functions for few
// tokens, which are compiled in any case.
template <class Scheme, int R> void run(const TileJob& all, int count) {
  constexpr bool prefetches_kv = Scheme::INTEGER;
  constexpr int TOKENS_TOGETHER = R == Scheme::TILES_TOGETHER ? Scheme::TOKENS_TOGETHER : 4;
  int done = 0;
  for (; count - done >= TOKENS_TOGETHER; done += TOKENS_TOGETHER) {
    const TileJob job = all.after(done, R);
    if constexpr (R < Scheme::TILES_TOGETHER)
      Scheme::template run<R, TOKENS_TOGETHER, false, true>(job);
    else if (prefetches_kv && job.kv_prefetch && done % 8 == 0 && count - done >= 8)
      done ? Scheme::template run<R, TOKENS_TOGETHER, prefetches_kv, false>(job)
           : Scheme::template run<R, TOKENS_TOGETHER, prefetches_kv, true>(job);
    else
      done ? Scheme::template run<R, TOKENS_TOGETHER, false, false>(job)
           : Scheme::template run<R, TOKENS_TOGETHER, false, true>(job);
  }
  if (count > done) run_remaining<Scheme, R>(all.after(done, R), count - done);
}

// One tile or two, and any number of tokens.
template <class Scheme>
void product(const uint8_t* w, int tiles, const Activations& x, int first, int count, float* out, int stride) {
  const TileJob all{x, w, x.k / PAD * (int64_t)Scheme::BLOCK, first, out, stride, x.kv_prefetch};
  int done = 0;
#if defined(TM_AMX)
  if constexpr (Scheme::HAS_AMX) {
    done = count / AMX_TOKENS * AMX_TOKENS;
    for (int r = 0; done && r < tiles; r++) Scheme::run_amx(all.tile(r, done), done);
  }
#endif
  const TileJob rest = all.after(done, tiles);
  if (tiles == Scheme::TILES_TOGETHER && count - done >= MIN_TOKENS_SIDE_BY_SIDE)
    return run<Scheme, Scheme::TILES_TOGETHER>(rest, count - done);
  for (int r = 0; r < tiles; r++) run<Scheme, 1>(rest.tile(r, count - done), count - done);
}

}  // namespace
