// Products of weights and activations, and the layouts of weight tiles. Included by kernels.cpp, once per instruction set.
//
// A tile holds 16 rows, interleaved so that one load feeds one dot product of 16 rows. Inputs follow in blocks of 64. The sum
// over the inputs runs in their order, whatever the number of tokens and tiles that are multiplied together.
#pragma once
#include <type_traits>

#include "products/prefetch.h"
#include "kernels/in_rows.h"
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
  static constexpr bool INTEGER = false, HAS_AMX = false, SHARES_HEADS = false;
#if defined(TM_AVX2)
  static constexpr bool UNPACKS = sizeof(Number) == 2;  // float16 is converted once for many tokens
#else
  static constexpr bool UNPACKS = false;
#endif

  // Adds the products of the weights of inputs [from, to), which begin at w, to the sums of N tokens.
  template <int N, bool COLD, class Weight>
  TM_INLINE void add_inputs(const Weight* w, const float* x, int k, int from, int to, F (&sums)[N][2]) {
    for (; from < to; from += 2, w += 2 * TILE) {
      const F w0 = load_number(w), w1 = load_number(w + TILE);
      prefetch<N, COLD>(w);
      if (sizeof(Weight) == 4) prefetch<N, COLD>(w + TILE);  // two inputs of float16 are one cache line
      for (int t = 0; t < N; t++) {
        const float* row = x + (int64_t)t * k + from;
        sums[t][0] = fma(w0, set1(row[0]), sums[t][0]);
        sums[t][1] = fma(w1, set1(row[1]), sums[t][1]);
      }
    }
  }

  template <int, int N, bool, bool COLD> static void run(const TileJob& job) {
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = sums[t][1] = set1(0);
    add_inputs<N, COLD>((const Number*)job.w, job.x.floats + (int64_t)job.first * job.x.k, job.x.k, 0, job.x.k, sums);
    for (int t = 0; t < N; t++) store(job.out + t * job.stride, add(sums[t][0], sums[t][1]));
  }

  // One tile and many tokens: some inputs of the tile as floats, then their products with all tokens.
  static constexpr int UNPACKED_INPUTS = 128, UNPACKED_TOKENS = 64, FLOAT16_TOKENS = 3;  // as FLOAT32_TOKENS with AVX2
  static void run_unpacked(const TileJob& job, int tokens) {
    for (int done = 0; done < tokens; done += UNPACKED_TOKENS)
      run_some_unpacked(job.after(done, 1), tokens - done < UNPACKED_TOKENS ? tokens - done : UNPACKED_TOKENS);
  }
  static void run_some_unpacked(const TileJob& job, int tokens) {
    alignas(64) float weights[UNPACKED_INPUTS * TILE], sums[UNPACKED_TOKENS][2][TILE];
    memset(sums, 0, sizeof sums);
    for (int from = 0; from < job.x.k; from += UNPACKED_INPUTS) {
      const int to = job.x.k - from < UNPACKED_INPUTS ? job.x.k : from + UNPACKED_INPUTS;
      const Number* stored = (const Number*)job.w + from * TILE;
      for (int i = 0; i < (to - from) * TILE; i += 2 * TILE) {
        prefetch<TOKENS_TOGETHER, true>(stored + i);
        store(weights + i, load_number(stored + i)), store(weights + i + TILE, load_number(stored + i + TILE));
      }
      in_rows<FLOAT16_TOKENS>(tokens, [&](auto n, int first) { add_tokens<n()>(job, weights, from, to, first, sums); });
    }
    for (int t = 0; t < tokens; t++) store(job.out + t * job.stride, add(load(sums[t][0]), load(sums[t][1])));
  }
  template <int N>
  static void add_tokens(const TileJob& job, const float* weights, int from, int to, int first, float (*all)[2][TILE]) {
    F sums[N][2];
    for (int t = 0; t < N; t++) sums[t][0] = load(all[first + t][0]), sums[t][1] = load(all[first + t][1]);
    add_inputs<N, false>(weights, job.x.floats + (int64_t)(job.first + first) * job.x.k, job.x.k, from, to, sums);
    for (int t = 0; t < N; t++) store(all[first + t][0], sums[t][0]), store(all[first + t][1], sums[t][1]);
  }
};

// bfloat16: [k / 2][16 rows][2]. Even and odd pairs of inputs have a sum each; the two are added at the end.
struct Bfloat16Weights {
  static constexpr int BLOCK = 32 * PAD, TILES_TOGETHER = 1, TOKENS_TOGETHER = BFLOAT16_TOKENS;
  static constexpr bool INTEGER = false, HAS_AMX = false, UNPACKS = false, SHARES_HEADS = false;

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
// minimum][16 rows]. Both factors are so short that the product is exact. IS_SUPER: half floats stand in a head before four blocks
// that share them, and the header of a block has what follows them.
//
// Codes of 5 and 6 bits begin with their high bits, a line of 64 bytes for each bit, and go on as codes of 4 bits do. Bit i of a
// byte is the high bit of quad i of the group for 5 bits; for 6 bits a byte has the high bits of four quads, see StoredGroup.
// Behind the scales of 6-bit codes stand factors of one byte for the halves of both groups: the codes of half a group, minus 32,
// are multiplied by the scale and by their factor. Factors are multiplied as integers, so that these sums are exact too.
template <int BITS, int HEADER, bool HAS_MINIMUM = false, bool WIDE = false, bool SHARED_SCALE = false,
          bool INTS = false, bool IS_SUPER = false>
struct IntegerWeights {
  static constexpr int BLOCK = HEADER + 128 * BITS, CODE_BITS = BITS;
  static constexpr bool INTEGER = true, MINIMUMS = HAS_MINIMUM, SHARES_HEADS = IS_SUPER;
  template <int R, int N, bool COLD> using BlockOf = TileBlock<R, N, COLD, BLOCK, IS_SUPER>;
  // An activation is broadcast to all lanes once for two tiles, because products of one tile wait for these loads. More sums
  // do not fit into the registers. Without VNNI each product takes registers of its own.
#if defined(TM_AVX512) && defined(TM_VNNI)
  static constexpr int TILES_TOGETHER = 2, TOKENS_TOGETHER = 8;
#elif defined(TM_PORTABLE)
  static constexpr int TILES_TOGETHER = 1, TOKENS_TOGETHER = 8;
#else
  static constexpr int TILES_TOGETHER = 1, TOKENS_TOGETHER = 4;
#endif
  // Whether codes are unpacked once for many tokens. It pays where a code takes more operations to unpack than to multiply, and
  // where a product does not take two tiles and eight tokens.
#if defined(TM_AVX2) && defined(TM_VNNI)
  static constexpr bool UNPACKS = BITS == 6;
#elif defined(TM_AVX2)
  static constexpr bool UNPACKS = BITS == 5 || BITS == 6 || INTS;
#elif defined(TM_PAIRS)
  static constexpr bool UNPACKS = BITS == 5 || BITS == 6;
#else
  static constexpr bool UNPACKS = false;
#endif
  static constexpr int SCALES_AT = SHARED_SCALE ? 0 : WIDE ? 64 : 32, MINIMUMS_AT = SHARED_SCALE ? 32 : WIDE ? 128 : 64;

  // Added to the sums of a group because codes are stored without a sign: -8 times the sum of the activations for 4-bit codes,
  // -128 times for 8-bit codes. Codes with a minimum are unsigned.
  TM_INLINE I first_sum(int32_t offset) {
    return HAS_MINIMUM || (BITS == 8 && SIGNED_BYTES) ? iset1(0) : BITS == 4 ? iset1(offset) : times16(iset1(offset));
  }

  // Group g of a block of R tiles, as it is stored. Quad Q of its codes has the inputs 4 Q to 4 Q + 3.
  template <class Block> struct StoredGroup {
    const Block& block;
    int g;

    const uint8_t* line(int r, int i) const { return block.at(r, HEADER + 64 * (BITS * g + i)); }
    template <int Q> TM_INLINE Bytes64 quad(const StoredGroup& group, int r) {
      if constexpr (BITS == 8) return load_bytes64(group.line(r, Q));
      const Bytes64 both = load_bytes64(group.line(r, BITS - 4 + Q % 4)), nibbles = Q < 4 ? low_nibbles(both) : high_nibbles(both);
      if constexpr (BITS == 5) return with_bits<4 - Q>(nibbles, load_bytes64(group.line(r, 0)), 16);
      if constexpr (BITS == 6)
        return with_bits<4 - 2 * (Q % 2) - 4 * (Q / 4)>(nibbles, load_bytes64(group.line(r, Q % 4 / 2)), 48);
      return nibbles;
    }
    template <int Q> TM_INLINE void prefetch_ahead(const StoredGroup& group) {
      if (Q < BITS) group.block.prefetch_ahead(HEADER + 64 * (BITS * group.g + Q));
    }
    TM_INLINE F load_scales(const uint8_t* at) { return WIDE ? load((const float*)at) : half((const uint16_t*)at); }
    // Where INTS, the product of a half float and the group's integer; IS_MINIMUM 0 or 1.
    template <int IS_MINIMUM> TM_INLINE F integer_scale(const StoredGroup& group, int r) {
      const int8_t* integers = (const int8_t*)group.block.at(r, HEADER - 64 + 32 * group.g + 16 * IS_MINIMUM);
      return mul(half((const uint16_t*)(group.block.head(r) + 32 * IS_MINIMUM)), from_codes(integers));
    }
    TM_INLINE F scale(const StoredGroup& group, int r) {
      if constexpr (INTS) return integer_scale<0>(group, r);
      return load_scales(IS_SUPER ? group.block.head(r) : group.block.at(r, SCALES_AT * group.g));
    }
    TM_INLINE F minimum(const StoredGroup& group, int r) {
      if constexpr (INTS) return integer_scale<1>(group, r);
      return load_scales(group.block.at(r, MINIMUMS_AT + SCALES_AT * group.g));
    }
    TM_INLINE Factors factors(const StoredGroup& group, int r, int half) {
      return load_factors((const int8_t*)group.block.at(r, HEADER - 64 + 32 * group.g + TILE * half));
    }
  };

  // Adds the products of quad Q of each tile with the activations of each token.
  template <int Q, int R, int N, class Group, class Sums>
  TM_INLINE void multiply_quad(const Group& group, const int8_t* x, int64_t k, Sums (&sums)[R][N]) {
    Group::template prefetch_ahead<Q>(group);
    Bytes64 codes[R];
    for (int r = 0; r < R; r++) codes[r] = Group::template quad<Q>(group, r);
    for (int t = 0; t < N; t++)
      for (int r = 0; r < R; r++)
        if constexpr (BITS == 8)
          sums[r][t] = dot4_byte(sums[r][t], codes[r], x + t * k + 4 * Q);
        else
          sums[r][t] = dot4(sums[r][t], codes[r], x + t * k + 4 * Q);
  }
  template <int FIRST, int SECOND, int... MORE, int R, int N, class Group, class Sums>
  TM_INLINE void multiply_quads(const Group& group, const int8_t* x, int64_t k, Sums (&sums)[R][N]) {
    multiply_quad<FIRST>(group, x, k, sums), multiply_quad<SECOND>(group, x, k, sums);
    if constexpr (sizeof...(MORE) > 0) multiply_quads<MORE...>(group, x, k, sums);
  }

  // The integer dot products of one group.
  template <int R, int N, class Group>
  TM_INLINE void multiply_group(const Group& group, const Activations& x, int64_t at, I (&dots)[R][N]) {
    const int64_t groups = x.k / GROUP;
    const int8_t* codes = x.codes + GROUP * at;
    if constexpr (BITS == 5 || BITS == 6) {
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = iset1(0);
      add_half<0>(group, codes, x, at, dots), add_half<1>(group, codes, x, at, dots);
    } else {
      std::conditional_t<BITS == 8, I, NibbleSums> sums[R][N];
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) start(sums[r][t], first_sum(x.offsets[at + t * groups]));
      if constexpr (BITS == 8)
        multiply_quads<0, 1, 2, 3, 4, 5, 6, 7>(group, codes, x.k, sums);
      else
        multiply_quads<0, 4, 1, 5, 2, 6, 3, 7>(group, codes, x.k, sums);  // both quads of a line after each other
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], first_sum(x.offsets[at + t * groups]));
    }
  }

  // Adds the dot products of half a group of codes of 5 or 6 bits.
  template <int HALF, int R, int N, class Group>
  TM_INLINE void add_half(const Group& group, const int8_t* codes, const Activations& x, int64_t at, I (&dots)[R][N]) {
    const int64_t groups = x.k / GROUP;
    NibbleSums sums[R][N];
    if constexpr (BITS == 5) {
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) start(sums[r][t], dots[r][t]);
      multiply_quads<4 * HALF, 4 * HALF + 1, 4 * HALF + 2, 4 * HALF + 3>(group, codes, x.k, sums);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = finish(sums[r][t], dots[r][t]);
    } else {
      Factors factors[R];
      for (int r = 0; r < R; r++) factors[r] = Group::factors(group, r, HALF);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) {
          const int32_t first = x.first_offsets[at + t * groups];
          start_factored(sums[r][t], dots[r][t], factors[r], HALF ? x.offsets[at + t * groups] - first : first);
        }
      multiply_quads<4 * HALF, 4 * HALF + 1>(group, codes, x.k, sums);
      if constexpr (TWO_QUADS_AT_MOST)
        for (int t = 0; t < N; t++)
          for (int r = 0; r < R; r++)
            dots[r][t] = add_factored(dots[r][t], sums[r][t], factors[r]), start(sums[r][t], iset1(0));
      multiply_quads<4 * HALF + 2, 4 * HALF + 3>(group, codes, x.k, sums);
      for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) dots[r][t] = add_factored(dots[r][t], sums[r][t], factors[r]);
    }
  }

  // Adds the products of one group to the sums of each token.
  template <int R, int N, class Group>
  TM_INLINE void add_group(const Group& group, const Activations& x, int64_t at, F (&sums)[R][N]) {
    const int64_t groups = x.k / GROUP;
    I dots[R][N];
    multiply_group(group, x, at, dots);
    for (int r = 0; r < R; r++) {
      const F scale = Group::scale(group, r);
      for (int t = 0; t < N; t++)
        sums[r][t] = fma(from_int(dots[r][t]), mul(scale, set1(x.scales[at + t * groups])), sums[r][t]);
      if (!HAS_MINIMUM) continue;
      const F minimum = Group::minimum(group, r);
      for (int t = 0; t < N; t++) sums[r][t] = fma(minimum, set1(x.scaled_sums[at + t * groups]), sums[r][t]);
    }
  }

  template <int R, int N, bool PREFETCHES_KV, bool COLD> static void run(const TileJob& job) {
    const Activations x = job.x;  // a copy, so that its fields stay in registers
    const int64_t groups = x.k / GROUP;
    const uint8_t* kv_prefetch = job.kv_prefetch;
    F sums[R][N];
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) sums[r][t] = set1(0);
    for (int index = 0; index < x.k / PAD; index++) {
      using Block = BlockOf<R, N, COLD>;
      const Block block(job.w, job.size, index);
      TM_UNROLL for (int g = 0; g < 2; g++) {
        for (int r = 0; r < R; r++) prefetch_kv<PREFETCHES_KV>(kv_prefetch);
        add_group(StoredGroup<Block>{block, g}, x, job.first * groups + 2 * index + g, sums);
      }
    }
    for (int r = 0; r < R; r++)
      for (int t = 0; t < N; t++) store(job.out + t * job.stride + TILE * r, sums[r][t]);
  }

  // Groups of one tile with a byte for each code and scales as floats: they are unpacked once for many tokens.
  static constexpr int UNPACKED_GROUPS = 8;  // with the activations of 64 tokens they fit into the first-level cache
  struct Unpacked {
    uint8_t codes[8][64];
    float scale[TILE], minimum[TILE];
    Factors factors[2];
  };
  struct UnpackedGroup {
    const Unpacked& of;

    template <int Q> TM_INLINE Bytes64 quad(const UnpackedGroup& group, int) { return load_bytes64(group.of.codes[Q]); }
    template <int> TM_INLINE void prefetch_ahead(const UnpackedGroup&) {}
    TM_INLINE F scale(const UnpackedGroup& group, int) { return load(group.of.scale); }
    TM_INLINE F minimum(const UnpackedGroup& group, int) { return load(group.of.minimum); }
    TM_INLINE Factors factors(const UnpackedGroup& group, int, int half) { return group.of.factors[half]; }
  };

  template <int Q, class Group> TM_INLINE void unpack_quads(const Group& from, Unpacked& to) {
    Group::template prefetch_ahead<Q>(from);
    store_bytes64(to.codes[Q], Group::template quad<Q>(from, 0));
    if constexpr (Q < 7) unpack_quads<Q + 1>(from, to);
  }
  template <class Group> TM_INLINE void unpack(const Group& from, Unpacked& to) {
    unpack_quads<0>(from, to);
    store(to.scale, Group::scale(from, 0));
    if (HAS_MINIMUM) store(to.minimum, Group::minimum(from, 0));
    for (int half = 0; BITS == 6 && half < 2; half++) to.factors[half] = Group::factors(from, 0, half);
  }

  // Adds the products of `count` groups, of which the first is group `from` of its row, to the results of N tokens.
  template <int N> static void add_unpacked(const TileJob& job, const Unpacked* unpacked, int from, int count) {
    const Activations x = job.x;
    const int64_t at = job.first * (int64_t)(x.k / GROUP) + from;
    F sums[1][N];
    for (int t = 0; t < N; t++) sums[0][t] = from ? load(job.out + t * job.stride) : set1(0);
    for (int g = 0; g < count; g++) add_group(UnpackedGroup{unpacked[g]}, x, at + g, sums);
    for (int t = 0; t < N; t++) store(job.out + t * job.stride, sums[0][t]);
  }

  // One tile and many tokens.
  static void run_unpacked(const TileJob& job, int tokens) {
    alignas(64) Unpacked unpacked[UNPACKED_GROUPS];
    const uint8_t* kv_prefetch = job.kv_prefetch;
    const int groups = job.x.k / GROUP;
    for (int from = 0; from < groups; from += UNPACKED_GROUPS) {
      const int count = groups - from < UNPACKED_GROUPS ? groups - from : UNPACKED_GROUPS;
      for (int g = 0; g < count; g++) {
        using Block = BlockOf<1, TOKENS_TOGETHER, true>;
        const Block block(job.w, job.size, (from + g) / 2);
        unpack(StoredGroup<Block>{block, g % 2}, unpacked[g]);
        for (int i = 0; kv_prefetch && i < tokens / 8; i++) prefetch_kv<true>(kv_prefetch);
      }
      in_rows<4>(tokens, [&](auto n, int first) { add_unpacked<n()>(job.after(first, 1), unpacked, from, count); });
    }
  }

  static constexpr bool HAS_AMX = BITS == 4 || BITS == 8;
#if defined(TM_AMX)
  static void run_amx(const TileJob& job, int count) {
    integer_tile_amx<IntegerWeights>(job.w, job.size, job.x, job.first, count, job.out, job.stride, job.kv_prefetch);
  }
#endif
};

constexpr int MIN_TOKENS_SIDE_BY_SIDE = 3;  // with fewer tokens, reading one tile after the other is faster
constexpr int MIN_TOKENS_UNPACKED = 16;

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
  const TileJob all{x, w, size_of_blocks(x.k, Scheme::BLOCK, Scheme::SHARES_HEADS), first, out, stride, x.kv_prefetch};
  int done = 0;
#if defined(TM_AMX)
  if constexpr (Scheme::HAS_AMX) {
    done = count / AMX_TOKENS * AMX_TOKENS;
    for (int r = 0; done && r < tiles; r++) Scheme::run_amx(all.tile(r, done), done);
  }
#endif
  const TileJob rest = all.after(done, tiles);
  if constexpr (Scheme::UNPACKS)
    if (count - done >= MIN_TOKENS_UNPACKED) {
      for (int r = 0; r < tiles; r++) Scheme::run_unpacked(rest.tile(r, count - done), count - done);
      return;
    }
  if (tiles == Scheme::TILES_TOGETHER && count - done >= MIN_TOKENS_SIDE_BY_SIDE)
    return run<Scheme, Scheme::TILES_TOGETHER>(rest, count - done);
  for (int r = 0; r < tiles; r++) run<Scheme, 1>(rest.tile(r, count - done), count - done);
}

}  // namespace
