// What Python calls, by ctypes: plain C structs and functions, nothing of Python or torch. Mirrored in program/native_abi.py.
//
// Python describes a model as a flat list of operations over the residual stream x [tokens, hidden]; a new family is another
// list. Pointers stay Python's to keep alive.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)  // of the functions; everything else stays inside
#endif

enum { TM_ABI = 6 };

enum TmKind { TM_EMBED = 0, TM_NORM = 1, TM_LINEAR = 2, TM_ATTEND = 3, TM_CHOOSE = 4, TM_COMBINE = 5 };
enum TmEpilogue { TM_ADD = 0, TM_QKV = 1, TM_GATED = 2, TM_ACTIVATED = 3, TM_LOGITS = 4, TM_ROUTER = 5, TM_PART = 6 };
// Activation buffers.
enum TmBuffer { TM_ATTENTION_IN = 0, TM_MLP_IN = 1, TM_MLP_INNER = 2, TM_ATTENDED = 3, TM_GATHERED = 4 };

// Rows of a matrix that are finished together: one head of q, k or v; 32 columns of an MLP with their gates; else 16 rows.
typedef struct {
  const uint8_t* data;   // tiles of 16 rows
  const uint8_t* gate;   // tiles of the same columns' gates, for TM_GATED
  int32_t scheme, gate_scheme;
  int32_t first, count;  // output columns [first, first + count)
} TmUnit;

typedef struct {
  int32_t kind, epilogue, activation, centred;
  int32_t from, to;      // buffers: read by linears, written by norms, attention and MLP epilogues
  int32_t inputs, outputs, num_units, scheme;
  const TmUnit* units;
  const float* weight;   // of a norm
  const float* bias;     // of a norm or a linear; null without
  const float* q_norm;   // per-head norms of q and k; null without
  const float* k_norm;
  const void* table;     // embeddings [rows, hidden], float32 or bfloat16 (scheme)
  const void* positions; // learned positions, null without
  void* k_rows;          // this layer's cache [slots, kv heads, head dim]
  void* v_rows;
  float* k_scales;       // of the 8-bit cache [slots, kv heads]
  float* v_scales;
  float eps, scale, softcap;
  int32_t window;        // 0 without
  // A mixture: TM_CHOOSE turns the router's logits into `chosen` of `experts` per token and gathers the rows of each; the
  // units of a linear are then those of expert 0, of expert 1, …; TM_COMBINE adds what came out, in the experts' order.
  int32_t experts, chosen, normalise;
} TmOp;

typedef struct {
  int32_t hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab;
  int32_t rotary;        // entries of a head that turn; 0 without
  int32_t cache_form;    // 0 float32, 1 bfloat16, 2 bytes with a scale for each token and head
  const float* cosines;  // [positions, rotary / 2]
  const float* sines;
  const TmOp* ops;
  int32_t num_ops, num_threads;
  const char* build;     // "amx", "avx512", "avx2", "portable", or "" for the best there is
} TmModel;

typedef struct {
  int64_t first, count, start, base;
  const int64_t* slots;  // of every position, where base < 0
} TmSpan;

// A token of -1 stands for the likeliest after the one before it, whose logits have to be wanted. It is found and put in its place,
// and the rest of the span computed in a pass of its own; where it is one of `stops`, nothing of that span follows, the rest stays
// -1 and its logits are not written.
typedef struct {
  int32_t num_tokens, num_spans, num_rows, num_stops;
  int64_t* tokens;
  const int64_t* positions;
  const int64_t* slots;
  const int64_t* rows;   // null: all
  const TmSpan* spans;
  const int64_t* stops;
  float* logits;         // [rows, vocab]
} TmStep;

int tm_abi(void);
// The best build that this processor can run.
const char* tm_best_build(void);
// Null where it cannot be made; the reason is then in `why`, a line.
void* tm_make(const TmModel* model, char* why, int why_bytes);
// 0, or 1 with the reason in `why`. One call at a time for one model.
int tm_run(void* model, const TmStep* step, char* why, int why_bytes);
void tm_free(void* model);
// Per row of [rows, size] the place and value of its largest number, the first among equals; not-a-number is the largest.
void tm_largest(const float* numbers, int64_t rows, int64_t size, int64_t* places, float* values);
// Bytes of one tile of 16 rows and `inputs` columns.
int64_t tm_tile_bytes(int scheme, int inputs);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
