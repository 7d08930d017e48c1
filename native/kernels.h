// What one build of kernels.cpp offers. Rows of weights come in tiles of 16; K is the number of inputs, padded to 64.
#pragma once
#include <cstdint>

enum Scheme { FLOAT32 = 0, BFLOAT16 = 1, Q8 = 2, Q4 = 3, Q4_MIN = 4, Q4_WIDE = 5, Q4_PAIR = 6, NUM_SCHEMES = 7 };
enum Form { AS_FLOAT32 = 0, AS_BFLOAT16 = 1, AS_INT8 = 2 };
enum Activation { IDENTITY = 0, SILU = 1, GELU = 2, GELU_TANH = 3, RELU = 4 };
enum { TILE = 16, GROUP = 32, PAD = 64, SPLIT = 128, COMING = 128 };

// Asked for before it is used, into the second cache (2) or the first (3).
#if defined(__GNUC__)
#define TM_FETCH(AT, CACHE) __builtin_prefetch(AT, 0, CACHE)
#else
#define TM_FETCH(AT, CACHE)
#endif

// Activations as the weights want them: [tokens, K] numbers, or bytes with a scale per group of 32.
// offsets: -8 times the sum of a group's bytes, added for codes of 4 bits, which are stored 8 too high. moments: scale times sum,
// for weights that have minimums. coming: what is read after the products and fetched meanwhile, COMING bytes for each tile,
// group of 32 inputs and eight tokens; or null. Behind the last row of bfloats there is room for 15 more, which are read and mean
// nothing.
struct Act {
  int form, k;
  float* floats;
  uint16_t* bfloats;
  int8_t* bytes;
  float* scales;
  float* moments;
  int32_t* offsets;
  const uint8_t* coming;
};

// Attention over the positions [begin, end) of one sequence, end - begin <= SPLIT: `num_rows` query rows for each of the kv heads
// [head, head + num_heads). Row i of a head sees the positions [first[i], last[i]). Position p lies in slot base + p, or
// slots[p] where base < 0.
struct Attend {
  const void* k;
  const void* v;
  const float* k_scales;  // of the cache in bytes
  const float* v_scales;
  int cache_form, head_dim, head, num_heads, num_kv_heads;
  int64_t base;
  const int64_t* slots;
  int64_t begin, end;
  float scale, softcap;
  int num_rows;
  const float* const* q;  // [heads * rows], head after head; so are best, total and values
  const int64_t* first;
  const int64_t* last;
  // Per row: largest score, sum of exponentials, weighted values [head_dim padded to 16].
  float* best;
  float* total;
  float* values;
  uint8_t* scratch;
};

struct Kernels {
  const char* name;
  // Around the products of a step, on every thread.
  void (*begin_step)();
  void (*end_step)();
  // out[t * stride + row] for the 16 rows of each of one tile or two and the tokens [first, first + count).
  void (*product[NUM_SCHEMES])(const uint8_t* weights, int tiles, const Act& x, int first, int count, float* out, int stride);
  // Columns [from, to), both multiples of 32, of the tokens [first, first + count), `stride` floats apart, into the form of `act`.
  void (*put)(const float* x, int64_t stride, const Act& act, int first, int count, int from, int to);
  void (*norm)(const float* x, float* y, int n, const float* weight, const float* bias, float eps, int centred);
  void (*activate)(float* x, const float* gate_by, int n, int kind);  // x = f(x) * gate_by, or f(x) where that is null
  void (*rotate)(float* x, const float* cosines, const float* sines, int half);
  void (*softcap)(float* x, int n, float cap);
  void (*attend)(const Attend& job);
  // One head's row to be cached: into numbers, or bytes and their scale.
  void (*cache_row)(const float* x, int n, int form, void* row, float* scale);
  // Fold one split's figures into those before it. A row without any split before has total 0.
  void (*merge)(float* best, float* total, float* values, float best2, float total2, const float* values2, int n);
  void (*add)(float* x, const float* y, int n);
  int64_t (*largest)(const float* x, int64_t n);  // its place, the first among equals; not-a-number is the largest
};

int64_t tile_bytes(int scheme, int k);    // of one tile of 16 rows
int64_t attend_scratch_bytes(int head_dim, int64_t rows);  // of all heads; cut up in attend.h and attend_matrix.h

extern "C" const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_amx;
