// The interface that Python calls through ctypes: plain C structs and functions. tokenmill's Python mirrors it field by field;
// TM_ABI grows whenever a struct or the meaning of a field changes.
//
// A model is a flat list of operations on the residual stream [tokens, hidden], which Python makes from the model's config.
// Memory that pointers refer to belongs to Python and must live as long as the model does.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)  // these functions alone are exported
#endif

enum { TM_ABI = 12 };

// TM_CHOOSE chooses the experts of each token from the router's logits and copies the token's row for each of them; TM_COMBINE
// adds the weighted sum of the experts' outputs to the residual stream, in the order of the experts.
enum TmKind { TM_EMBED = 0, TM_NORM = 1, TM_LINEAR = 2, TM_ATTEND = 3, TM_CHOOSE = 4, TM_COMBINE = 5 };
// What becomes of a linear's products. TM_ADD: added to the residual stream. TM_QKV: queries, and K and V rows of the cache.
// TM_GATED: f(gate) * up. TM_ACTIVATED: f(up). TM_ROUTER: the logits of experts. TM_EXPERT: outputs of experts. A TM_NORM with
// TM_LOGITS is the norm before the head, which takes only the rows whose logits are computed.
enum TmEpilogue { TM_ADD = 0, TM_QKV = 1, TM_GATED = 2, TM_ACTIVATED = 3, TM_LOGITS = 4, TM_ROUTER = 5, TM_EXPERT = 6 };
// Activation buffers. TM_GATHERED: the rows of TM_MLP_IN, copied expert by expert.
enum TmBuffer { TM_ATTENTION_IN = 0, TM_MLP_IN = 1, TM_MLP_INNER = 2, TM_ATTENDED = 3, TM_GATHERED = 4 };

// Rows of a matrix that one thread computes together with their epilogue: one head of q, k or v; otherwise at most 32 rows,
// with the 32 rows of their gates for TM_GATED.
typedef struct {
  const uint8_t* data;   // tiles of 16 rows, as laid out by tokenmill's packing
  const uint8_t* gate;   // tiles of the gates, null without
  int32_t scheme, gate_scheme;
  int32_t first, count;  // output columns [first, first + count)
} TmUnit;

typedef struct {
  int32_t kind, epilogue, activation;
  int32_t centred;        // of a norm: layer norm, not RMS norm
  int32_t from, to;       // buffers: linears and TM_CHOOSE read `from`; norms, attention, TM_CHOOSE and MLPs write `to`
  int32_t inputs, outputs, num_units, scheme;
  int32_t num_kv_heads, head_dim;  // of TM_QKV and TM_ATTEND: layers may differ
  const TmUnit* units;    // with experts: all units of expert 0, of expert 1, …
  const float* weight;    // of a norm
  const float* bias;      // of a norm or a linear; null without
  const float* q_norm;    // weights of the norms of q and k heads; null without
  const float* k_norm;
  const void* table;      // embeddings [vocab, hidden], in float32 or bfloat16 by `scheme`; null where `units` hold quantised
                          // embeddings, whose dequantised values are rounded to the type that `scheme` names
  const void* positions;  // learned position embeddings [num_positions, hidden], null without
  void* k_rows;           // this layer's cache [num_slots, kv heads, head_dim]
  void* v_rows;
  float* k_scales;        // of a cache in int8 [num_slots, kv heads]
  float* v_scales;
  float eps, scale, softcap;
  int32_t window;         // positions that a token attends to, itself included; 0 for all
  int32_t experts, chosen;
  int32_t normalise;      // the weights of the chosen experts are divided by their sum
} TmOp;

typedef struct {
  int32_t hidden, num_heads, intermediate, vocab;
  int32_t rotary;         // entries of a head that rotary embedding rotates; 0 without
  int32_t cache_format;   // 0 float32, 1 bfloat16, 2 int8 with a scale for each token and head
  const float* cosines;   // [num_positions, rotary / 2]
  const float* sines;
  const TmOp* ops;
  int32_t num_ops, num_threads;
  const char* build;      // of the kernels: "amx", "avx512", "avx2", "portable", or "" for the best of this processor
  int64_t num_positions;  // positions are below it
  int64_t num_slots;      // slots of the cache are below it
} TmModel;

// The tokens [first, first + count) of a step: positions [start, start + count) of one sequence.
typedef struct {
  int64_t first, count, start;
  int64_t base;           // slot of position 0 where slots follow each other; -1 where `slots` has them
  const int64_t* slots;   // of the positions [0, start + count)
} TmSpan;

// One step. The spans follow each other and have all tokens. A token of -1 is the most probable one after the token before it,
// which must be in `rows`: tm_run replaces it. Where it would be one of `stops`, it stays -1, as all that follow it in the
// span; these are not computed, and their logits are not written.
typedef struct {
  int32_t num_tokens, num_spans, num_rows, num_stops;
  int64_t* tokens;
  const int64_t* positions;
  const int64_t* slots;   // where a token's K and V rows are written
  const int64_t* rows;    // the tokens whose logits are computed; null for all
  const TmSpan* spans;
  const int64_t* stops;
  float* logits;          // [num_rows, vocab]
} TmStep;

int tm_abi(void);
// Size of each struct, and offset and size of each field, a line each: "TmUnit 0 32", "TmUnit.data 0 8".
const char* tm_layout(void);
// Name of the best build that this processor can run.
const char* tm_best_build(void);
// Null where the model cannot be made; `why` then has the reason in one line.
void* tm_make(const TmModel* model, char* why, int why_bytes);
// 0, or 1 with the reason in `why`. A model runs one step at a time.
int tm_run(void* model, const TmStep* step, char* why, int why_bytes);
void tm_free(void* model);
// Index and value of the largest of each row [rows, size], the first among equals; NaN is the largest.
void tm_argmax(const float* values, int64_t rows, int64_t size, int64_t* indices, float* max_values);
// The grid (scale and minimum) of each row of numbers [inputs, rows], which are the weights of a group, so that the values code *
// scale + minimum that are nearest to the numbers have the smallest squared error, weighted by `weights` [inputs]. kind: any
// minimum (0), one of which a code stands for zero (1), or the one with zero in the middle (2). scratch: [inputs, 16]. build: see
// TmModel. 0, or 1 where there is no such build.
int tm_fit_grid(const char* build, const float* numbers, int64_t rows, int inputs, int bits, int kind, const float* weights,
                float* scratch, float* scales, float* minimums);
// Rounds numbers [inputs, rows] on the grids of their rows, input by input: codes [inputs, rows], and errors [inputs, rows] divided
// by the diagonal of `factor` [inputs, inputs], whose other numbers say how much of each error is subtracted from each input
// after it before that is rounded. scratch, build, result: as above.
int tm_round_group(const char* build, const float* numbers, int64_t rows, int inputs, int bits, const float* scales,
                   const float* minimums, const float* factor, float* scratch, uint8_t* codes, float* errors);
// Bytes of a tile of 16 rows and `inputs` columns.
int64_t tm_tile_bytes(int scheme, int inputs);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
