// The table of functions that one build of the kernels offers, and the types that they share with the rest.
//
// kernels.cpp is compiled once per instruction set; builds.cpp picks a table when a model is made. A kernel works on one row, one
// or two tiles of weights, or one attention job; it knows nothing of models, steps or threads. The order of every sum depends on
// the model's shape alone, so that a row's bits do not depend on the rows beside it.
#pragma once
#include <cstdint>

#include "abi.h"

// How the rows of a weight matrix are stored (products/products.h has the layouts). Q4_MIN, Q5_MIN: with minimums; Q4_WIDE,
// Q5_WIDE: with minimums, which are float32 as the scales are; Q4_PAIR: with minimums, two groups sharing a scale; Q8_WIDE: with
// scales as float32; Q6_HALVES: with an integer factor of the scale for each half of a group; Q4_INTS, Q5_INTS: with minimums, and
// both are integers times a half float. Q4_SUPER, Q5_SUPER, Q6_SUPER: as Q4_INTS, Q5_INTS, Q6_HALVES, with the same half floats for
// SUPER inputs.
enum Scheme {
  FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, Q8 = 3, Q4 = 4, Q4_MIN = 5, Q4_WIDE = 6, Q4_PAIR = 7, Q8_WIDE = 8, Q5_WIDE = 9,
  Q6_HALVES = 10, Q5_MIN = 11, Q4_INTS = 12, Q5_INTS = 13, Q4_SUPER = 14, Q5_SUPER = 15, Q6_SUPER = 16,
  NUM_SCHEMES = 17
};
inline constexpr bool is_super(int scheme) { return scheme == Q4_SUPER || scheme == Q5_SUPER || scheme == Q6_SUPER; }
// How activations or cached K and V rows are stored. AS_INT8: codes with a float32 scale for each group (activations), or for
// each token and head (cache). AS_FLOAT16 is of the cache alone.
enum Format { AS_FLOAT32 = 0, AS_BFLOAT16 = 1, AS_INT8 = 2, AS_FLOAT16 = 3, NUM_FORMATS = 4 };
// The minimums that the grid of a group may have: any, a minimum where a code stands for zero, or where the middle code does.
enum GridKind { GRID_MINIMUM = 0, GRID_ZERO_POINT = 1, GRID_SYMMETRIC = 2 };
enum Activation { IDENTITY = 0, SILU = 1, GELU = 2, GELU_TANH = 3, RELU = 4, RELU2 = 5, XIELU = 6, SWIGLU = 7, SIGMOID = 8, SOFTPLUS = 9, NUM_ACTIVATIONS = 10 };

enum {
  TILE = 16,            // rows of a weight tile, and lanes of a vector
  GROUP = 32,           // consecutive inputs that share a scale
  PAD = 64,             // the number of inputs is padded with zeros to a multiple of this
  SUPER = 256,          // inputs whose scales are multiples of the same numbers, as GGUF's K-quants have them
  SPLIT = 128,          // cached positions that attention reads before it merges partial results
  PREFETCH_BYTES = 128  // of the KV cache, prefetched for each tile, group and eight tokens of a product
};

inline constexpr int64_t rounded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The format of activations that a product with weights of this scheme reads. Processors without AVX512-FP16 multiply float16
// as float32, so that activations need not be rounded to it and cannot overflow.
inline constexpr int format_of(int scheme) {
  return scheme == FLOAT32 || scheme == FLOAT16 ? AS_FLOAT32 : scheme == BFLOAT16 ? AS_BFLOAT16 : AS_INT8;
}
inline constexpr int format_bytes(int format) { return format == AS_FLOAT32 ? 4 : format == AS_INT8 ? 1 : 2; }

// Prefetch a cache line into the second-level cache (LEVEL 2) or the first (3).
#if defined(__GNUC__)
#define TM_PREFETCH(ADDRESS, LEVEL) __builtin_prefetch(ADDRESS, 0, LEVEL)
#else
#define TM_PREFETCH(ADDRESS, LEVEL)
#endif

// Activations [tokens, k] in one format; k is a multiple of PAD. Codes of AS_INT8 have a scale per group of 32 inputs and three
// sums that products need. The matrix unit reads up to 15 rows behind the last row of `bfloats`, and ignores their products.
struct Activations {
  int format, k;
  float* floats;
  uint16_t* bfloats;
  int8_t* codes;
  float* scales;
  float* scaled_sums;         // of a group: scale times the sum of its codes, for weights that have minimums
  int32_t* offsets;           // of a group: -8 times the sum of its codes, because codes of 4-bit weights are stored as code + 8
  int32_t* first_offsets;     // the same of the first half of a group
  const uint8_t* kv_prefetch; // cached rows to prefetch while a product is computed, or null; see PREFETCH_BYTES
};

// One attention job: `num_rows` queries for each of the kv heads [head, head + num_heads) over the positions [begin, end) of
// one sequence, end - begin <= SPLIT. Query i of a head attends to the positions [visible_begin[i], visible_end[i]). Position p
// lies in slot base + p, or slots[p] where base < 0.
struct AttentionJob {
  const void* k;
  const void* v;
  const float* k_scales;  // of AS_INT8
  const float* v_scales;
  int cache_format, head_dim, value_dim, head, num_heads, num_kv_heads;
  int64_t base;
  const int64_t* slots;
  int64_t begin, end;
  float scale, softcap;
  int num_rows;
  const float* const* q;  // [heads * rows], head by head, as the three results are
  const int64_t* visible_begin;
  const int64_t* visible_end;
  const float* const* biases;  // [heads * rows]: what is added to the scores of the positions from `begin` on, readable for SPLIT of
                               // them or up to the next multiple of 16; null without
  // Per query, a partial softmax: the largest score, the sum of the exponentials, and the values weighted by them [value_dim,
  // padded to a multiple of TILE].
  float* max_score;
  float* exp_sum;
  float* value_sum;
  uint8_t* scratch;  // attention_scratch_bytes
  int64_t seen_begin, seen_end;  // the positions to which at least one query attends, or all; the kernel finds them
};

// A convolution of some channels over `count` tokens of one sequence, in the place of its inputs. Rows of x are `stride` floats
// apart.
struct ConvolutionJob {
  float* x;
  int64_t stride;
  const float* before;  // [taps - 1, channels]: the inputs before the first token
  const float* weight;  // [taps], from the oldest input to the newest, weight_stride apart
  int64_t weight_stride;
  const float* bias;    // or null
  int count, channels, taps, activation;
  bool unit;            // each token's results are brought to length 1, then multiplied by `scale`
  float eps, scale;
};

// The recurrence of one slice of one head's state [keys, columns], in place, over `count` tokens of one sequence:
//     state = decay * state + key (x) change;  result = queryT state + skip * value,  in the place of the value
// change is strength * (value - keyT (decay * state)) by the delta rule, else step * value. Pointers are to the first token;
// `stride` floats are from one token to the next.
constexpr int MAX_KEYS = 256;  // numbers of a key, where each has a decay

struct RecurrenceJob {
  float* state;
  const float* query;
  const float* key;
  float* value;
  const float* decay;     // see TmOp.a_log; of each number of the key where `dt_biases` is there
  const float* strength;  // before the sigmoid; null without the delta rule
  int64_t stride;
  const float* dt_biases; // null where the head has one decay
  int count, keys, columns;
  float a_log, dt_bias, scale, skip, min_step, max_step;
};

// out[t * stride + r] = the product of row r of A [rank, k], from <= r < to, and row t of x [rows, k], for `count` rows t, which
// `tokens` lists. type: of A, a Scheme.
struct LowerJob {
  const void* a;
  int type, k, from, to;
  const float* x;
  float* out;
  int64_t stride;
  const int* tokens;
  int count;
};

// out[(t - first) * stride + row] += scale * the product of row `row` of B, laid out in tiles as TmChange.b, and row t of `lowered`,
// for `count` rows t, which `tokens` lists. `out` has room for whole tiles.
struct RaiseJob {
  const void* b;
  int type, rank, num_rows;
  float scale;
  const float* lowered;
  int64_t lowered_stride;
  float* out;
  int64_t stride;
  int first;
  const int* tokens;
  int count;
};

struct Kernels {
  const char* name;
  // Called by every thread around the operations of a step: they configure and release the matrix unit, and have subnormal
  // numbers count as zero. The second takes the first's result.
  uint64_t (*begin_step)();
  void (*end_step)(uint64_t mode);
  // By scheme: out[t * stride + row] for the 16 rows of each of one or two tiles and the tokens [first, first + count).
  void (*product[NUM_SCHEMES])(const uint8_t* weights, int tiles, const Activations& x, int first, int count, float* out,
                               int stride);
  // Converts columns [from, to), both multiples of GROUP, of the tokens [first, first + count) into the format of
  // `activations`. Rows of x are `stride` floats apart and begin at column `from`.
  void (*convert)(const float* x, int64_t stride, const Activations& activations, int first, int count, int from, int to);
  // RMS norm, or layer norm where `centred`.
  void (*norm)(const float* x, float* y, int n, const float* weight, const float* bias, float eps, int centred);
  // x = f(x) * up, or f(x) where up is null. a and b: numbers of the activation, see TmOp.
  void (*activate)(float* x, const float* up, int n, int kind, float a, float b);
  void (*rotate)(float* x, const float* cosines, const float* sines, int half);  // rotary embedding of pairs (i, i + half)
  void (*softcap)(float* x, int n, float cap);
  void (*attend)(const AttentionJob& job);
  // Stores one head's K or V row in the cache. `scale` is written for AS_INT8.
  void (*store_kv)(const float* x, int n, int format, void* row, float* scale);
  // Merges a later split's partial softmax into the first three. exp_sum 0: nothing was merged yet, or nothing is visible.
  void (*merge)(float* max_score, float* exp_sum, float* value_sum, float max_score2, float exp_sum2, const float* value_sum2,
                int n);
  void (*add)(float* x, const float* y, int n);
  void (*add_weighted)(float* x, const float* y, float weight, int n);
  void (*lower)(const LowerJob& job);
  void (*raise)(const RaiseJob& job);
  void (*convolve)(const ConvolutionJob& job);
  void (*recur)(const RecurrenceJob& job);
  int64_t (*argmax)(const float* x, int64_t n);  // the first among equals; NaN counts as the largest
  void (*sample)(const float* x, int64_t n, TmSample* wants, uint8_t* scratch);  // see tm_sample and sample_scratch_bytes
  void (*score)(const float* x, int64_t n, TmScore* wants, int64_t num_top, int64_t* top, uint8_t* scratch);  // see tm_score
  // See tm_fit_grid and tm_round_group.
  void (*fit_grid)(const float* numbers, int64_t rows, int inputs, int bits, int kind, const float* weights, float* scratch,
                   float* scales, float* minimums);
  void (*round_group)(const float* numbers, int64_t rows, int inputs, int bits, const float* scales, const float* minimums,
                      const float* factor, float* scratch, uint8_t* codes, float* errors);
};

extern "C" const Kernels kernels_portable, kernels_dotprod, kernels_avx2, kernels_avx2_vnni, kernels_avx512_core, kernels_avx512_vnni,
    kernels_avx512, kernels_amx;
