// Weights times activations, tile by tile. Included by kernels.cpp, once per instruction set.
#pragma once
#include <type_traits>

#include "fetch.h"
#include "kernels.h"
#include "matrix.h"
#include "vec.h"

namespace {

// Tiles one behind the other from w on, `size` bytes each, times the tokens from `first` on, to out[token * stride + row].
// coming: as in Act.
struct Part {
  const Act& x;
  const uint8_t* w;
  int64_t size;
  int first;
  float* out;
  int64_t stride;
  const uint8_t* coming;

  // The same for a tile by itself, and from a later token on: what comes is shared out in the order of the work.
  Part tile(int r, int count) const {
    return {x, w + r * size, size, first, out + TILE * r, stride, coming_after(r * (count / 8))};
  }
  Part after(int tokens, int tiles) const {
    return {x, w, size, first + tokens, out + tokens * stride, stride, coming_after(tiles * (tokens / 8))};
  }
  const uint8_t* coming_after(int eights) const {
    return coming ? coming + (int64_t)eights * (x.k / GROUP) * COMING : nullptr;
  }
};

// Every scheme: BLOCK bytes for 64 inputs of a tile; SIDE tiles and MANY tokens are multiplied together where there are as many.

// float32: [k][16 rows]. Two sums, of even and of odd k, that are added at the end.
struct Floats {
  static constexpr int BLOCK = 64 * PAD, SIDE = 1, MANY = 8;
  static constexpr bool INTEGER = false;

  template <int, int N, bool, bool FRESH> static void run(const Part& part) {
    const float *w = (const float*)part.w, *x = part.x.floats + (int64_t)part.first * part.x.k;
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
    for (int k = 0; k < part.x.k; k += 2) {
      const F w0 = load(w + 16 * k), w1 = load(w + 16 * k + 16);
      fetch<N, FRESH>(w + 16 * k), fetch<N, FRESH>(w + 16 * k + 16);
      for (int t = 0; t < N; t++) {
        const float* row = x + (int64_t)t * part.x.k + k;
        sums[t][0] = fma(w0, set1(row[0]), sums[t][0]);
        sums[t][1] = fma(w1, set1(row[1]), sums[t][1]);
      }
    }
    for (int t = 0; t < N; t++) store(part.out + t * part.stride, add(sums[t][0], sums[t][1]));
  }
};

// bfloat16: [k / 2][16 rows][2]. Two sums, of the pairs k / 2 that are even and odd.
struct Bfloats {
  static constexpr int BLOCK = 32 * PAD, SIDE = 1, MANY = 8;
  static constexpr bool INTEGER = false;

  template <int, int N, bool, bool FRESH> static void run(const Part& part) {
    const uint16_t *w = (const uint16_t*)part.w, *x = part.x.bfloats + (int64_t)part.first * part.x.k;
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
    for (int k = 0; k < part.x.k; k += 4) {
      fetch<N, FRESH>(w + 16 * k), fetch<N, FRESH>(w + 16 * k + 32);
      for (int t = 0; t < N; t++) {
        const uint16_t* row = x + (int64_t)t * part.x.k + k;
        sums[t][0] = dot2(sums[t][0], w + 16 * k, row);
        sums[t][1] = dot2(sums[t][1], w + 16 * k + 32, row + 2);
      }
    }
    for (int t = 0; t < N; t++) store(part.out + t * part.stride, add(sums[t][0], sums[t][1]));
  }
};

// Integer schemes: per 64 inputs a header and two groups. The integer dot product of a group is exact; its float product is
// added in the order of the groups. Scales are half floats, or floats where WIDE; so are minimums. In a PAIR both groups have
// the same.
template <int BITS, int HEADER, bool MINIMUM = false, bool WIDE = false, bool PAIR = false> struct Codes {
  static constexpr int BLOCK = HEADER + 128 * BITS;
  static constexpr bool INTEGER = true;
  // An activation is spread to all lanes once for all tiles: one waits for the loads otherwise. As many tiles and tokens as there
  // are registers for their sums.
#if defined(TM_AVX512)
  static constexpr int SIDE = 2, MANY = 8;
#elif defined(TM_AVX2)
  static constexpr int SIDE = 1, MANY = 4;
#else
  static constexpr int SIDE = 1, MANY = 8;
#endif
  static constexpr int SCALES = PAIR ? 0 : WIDE ? 64 : 32, MINIMUMS = PAIR ? 32 : WIDE ? 128 : 64;

  TM F numbers(const uint8_t* at) { return WIDE ? load((const float*)at) : half((const uint16_t*)at); }

  // What is added to a group's sums since codes are stored without a sign.
  TM I begin(int32_t offset) {
    return MINIMUM || (BITS == 8 && SIGNED_BYTES) ? iset1(0) : BITS == 4 ? iset1(offset) : times16(iset1(offset));
  }

  // The codes from `at` on in a block, times those of each token.
  template <int R, int N, class Block, class Sums>
  TM void multiply(const Block& block, int at, const int8_t* x, int64_t k, Sums (&sums)[R][N]) {
    TM_UNROLL for (int i = 0; i < BITS; i++) {
      Line line[R];
      block.fetch_ahead(at + 64 * i);
      for (int r = 0; r < R; r++) line[r] = load_line(block.at(r, at + 64 * i));
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

  // One group: sums of bytes, in `dots`.
  template <int R, int N, class Block>
  TM void multiply_group(const Block& block, int g, const Act& x, int64_t at, I (&dots)[R][N]) {
    const int64_t groups = x.k / GROUP;
    std::conditional_t<BITS == 8, I, Grown> sums[R][N];
    for (int t = 0; t < N; t++)
      for (int r = 0; r < R; r++) start(sums[r][t], begin(x.offsets[at + t * groups]));
    multiply(block, HEADER + 64 * BITS * g, x.bytes + GROUP * at, x.k, sums);
    for (int t = 0; t < N; t++)
      for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], begin(x.offsets[at + t * groups]));
  }

  template <int R, int N, bool COMES, bool FRESH> static void run(const Part& part) {
    const Act x = part.x;  // a copy, whose fields stay in registers
    const int groups = x.k / GROUP;
    const uint8_t* coming = part.coming;
    F sums[R][N];
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) sums[r][t] = set1(0);
    for (int number = 0; number < x.k / PAD; number++) {
      const Reading<R, N, FRESH, BLOCK> block(part.w, part.size, number);
      TM_UNROLL for (int g = 0; g < 2; g++) {
        const int64_t at = (int64_t)part.first * groups + 2 * number + g;
        I dots[R][N];
        for (int r = 0; r < R; r++) fetch_coming<COMES>(coming);
        multiply_group(block, g, x, at, dots);
        for (int r = 0; r < R; r++) {
          const F scale = numbers(block.at(r, SCALES * g));
          for (int t = 0; t < N; t++)
            sums[r][t] = fma(from_int(dots[r][t]), mul(scale, set1(x.scales[at + (int64_t)t * groups])), sums[r][t]);
          if (!MINIMUM) continue;
          const F minimum = numbers(block.at(r, MINIMUMS + SCALES * g));
          for (int t = 0; t < N; t++) sums[r][t] = fma(minimum, set1(x.moments[at + (int64_t)t * groups]), sums[r][t]);
        }
      }
    }
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) store(part.out + t * part.stride + TILE * r, sums[r][t]);
  }

#if defined(TM_AMX)
  static void run_matrix(const Part& part, int count) {
    tile_matrix<BITS, HEADER, MINIMUM, WIDE, PAIR>(part.w, part.x, part.first, count, part.out, part.stride, part.coming);
  }
#endif
};

constexpr int FEWEST = 3;  // tokens for which tiles are read side by side: with fewer, memory likes one stream better

// What is left of the tokens: fewer than eight.
template <class Scheme, int R> void run_few(const Part& part, int count) {
  const Part rest = count >= 4 ? part.after(4, R) : part;
  if (count >= 4) Scheme::template run<R, 4, false, true>(part);
  if (count % 4 == 3) Scheme::template run<R, 3, false, true>(rest);
  if (count % 4 == 2) Scheme::template run<R, 2, false, true>(rest);
  if (count % 4 == 1) Scheme::template run<R, 1, false, true>(rest);
}

// R tiles and any number of tokens. The weights are fresh to the first of them. An odd last tile is multiplied as for few tokens,
// which is compiled anyway.
template <class Scheme, int R> void run(const Part& whole, int count) {
  constexpr bool comes = Scheme::INTEGER;
  constexpr int MANY = R == Scheme::SIDE ? Scheme::MANY : 4;
  int done = 0;
  for (; count - done >= MANY; done += MANY) {
    const Part part = whole.after(done, R);
    if constexpr (R < Scheme::SIDE)
      Scheme::template run<R, MANY, false, true>(part);
    else if (comes && part.coming && done % 8 == 0 && count - done >= 8)
      done ? Scheme::template run<R, MANY, comes, false>(part) : Scheme::template run<R, MANY, comes, true>(part);
    else
      done ? Scheme::template run<R, MANY, false, false>(part) : Scheme::template run<R, MANY, false, true>(part);
  }
  if (count > done) run_few<Scheme, R>(whole.after(done, R), count - done);
}

// One tile or two, and any number of tokens.
template <class Scheme> void product(const uint8_t* w, int tiles, const Act& x, int first, int count, float* out, int stride) {
  const Part all{x, w, x.k / PAD * (int64_t)Scheme::BLOCK, first, out, stride, x.coming};
  int done = 0;
#if defined(TM_AMX)
  if constexpr (Scheme::INTEGER) {
    done = count / TOKENS * TOKENS;
    for (int r = 0; done && r < tiles; r++) Scheme::run_matrix(all.tile(r, done), done);
  }
#endif
  const Part rest = all.after(done, tiles);
  if (tiles == Scheme::SIDE && count - done >= FEWEST) return run<Scheme, Scheme::SIDE>(rest, count - done);
  for (int r = 0; r < tiles; r++) run<Scheme, 1>(rest.tile(r, count - done), count - done);
}

}  // namespace
