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

enum { TM_ABI = 29 };

// TM_CHOOSE chooses the experts of each token from the router's logits and copies the token's row for each of them; TM_COMBINE
// adds the weighted sum of the experts' outputs to the residual stream, in the order of the experts. TM_COPY: copies the residual
// stream, for a linear without a norm before it. TM_HEADS: handles heads as TM_QKV does, after norms over all of them.
//
// Layers that keep a state in the place of rows store the products of their linears, and compute in their place. TM_CONVOLVE: a
// convolution over the tokens of each channel. TM_RECUR: a state of each head, which every token decays, changes and reads; the
// result takes the place of the value. TM_GATE: the results, normed and multiplied by gates, as the input of a linear.
//
// TM_INPUTS: the inputs that all layers have of a token beside the residual stream, kept for the step: stored products times act_a,
// normed by blocks, plus the row of a table times `scale`, all times act_b.
//
// Latent attention: TM_LATENT_ROWS makes the row of a token and the rotated parts of its queries of stored products, and gathers the other
// parts head by head. TM_QUERY and TM_STORE of linears with a matrix for each head, `by_head`, follow: those numbers become the rest
// of the queries; and what TM_ATTEND gathers head by head becomes stored products.
//
// A token may have several streams. TM_EXPAND: the first is the residual stream, the others are stored products, made as large as
// it. TM_PREDICT: each becomes a sum of all, by coefficients that follow from the first; the residual stream becomes the first.
// TM_BESIDE: adds the normed first stream and normed products to the residual stream, and multiplies by `rescale`. TM_CORRECT: each
// changes by as much as the residual stream differs from the first, times coefficients that follow from the residual stream, which
// becomes the first times `factors`. TM_SPREAD: normed products are added to all except the first. TM_JOIN: the residual stream
// becomes the mean of the first and of stored products, made as large as it.
//
// A layer that predicts further tokens (MTP): TM_PAIR: the residual stream, normed by `weight`, and beside it the row of
// TmStep.given, normed by `input_norm`, as the input of a linear; without norms that row alone, of `inputs` numbers. TM_REPLACE: stored products take the place of the residual stream.
enum TmKind {
  TM_EMBED = 0, TM_NORM = 1, TM_LINEAR = 2, TM_ATTEND = 3, TM_CHOOSE = 4, TM_COMBINE = 5, TM_COPY = 6, TM_HEADS = 7,
  TM_CONVOLVE = 8, TM_RECUR = 9, TM_GATE = 10, TM_INPUTS = 11, TM_LATENT_ROWS = 12, TM_EXPAND = 13, TM_PREDICT = 14,
  TM_BESIDE = 15, TM_CORRECT = 16, TM_SPREAD = 17, TM_JOIN = 18, TM_PAIR = 19, TM_REPLACE = 20
};
// The use of a linear's products. TM_LOGITS: logits of all tokens, or of the first `outputs` ones. TM_ADD: added to the residual stream. TM_QKV: queries, and K and V rows of the cache.
// TM_GATED: f(gate) * up. TM_ACTIVATED: f(up). TM_ROUTER: the logits of experts. TM_EXPERT: outputs of experts. TM_STORE: kept
// for the operations that follow: TM_HEADS, a norm, TM_CONVOLVE, TM_RECUR and TM_GATE, or TM_COMBINE, which adds them as outputs
// of the shared expert.
// TM_SHARED_GATE: the factor of the shared expert, before the sigmoid. TM_QUERY: the first numbers of a head's query. A TM_NORM with TM_LOGITS is the norm before the head,
// which takes only the rows whose logits are computed; one with `outputs` takes so many stored columns from `column` on, as rows of
// TM_LATENT; a TM_NORM with TM_ADD takes stored products, and adds its results to the
// residual stream; one with TM_STORE norms the stored columns from `column` on in their place, and with `gated` adds those from
// `gate` on; one with TM_IN_PLACE norms the residual stream itself; any other TM_NORM has TM_TO_BUFFER. A TM_COMBINE with TM_STORE stores its sums, for such a norm;
// with TM_TO_BUFFER they are the input of a linear.
enum TmEpilogue {
  TM_ADD = 0, TM_QKV = 1, TM_GATED = 2, TM_ACTIVATED = 3, TM_LOGITS = 4, TM_ROUTER = 5, TM_EXPERT = 6, TM_STORE = 7,
  TM_SHARED_GATE = 8, TM_TO_BUFFER = 9, TM_QUERY = 10, TM_IN_PLACE = 11
};
// Activation buffers. TM_GATHERED: the rows of TM_MLP_IN or TM_LATENT, copied expert by expert. TM_LATENT: rows of another width
// than the residual stream's, which experts read; then the sums of what they write.
enum TmBuffer { TM_ATTENTION_IN = 0, TM_MLP_IN = 1, TM_MLP_INNER = 2, TM_ATTENDED = 3, TM_GATHERED = 4, TM_LATENT = 5 };

// A norm of q or k takes one head with the weights of all heads, one head with its own weights, or all heads as one row.
enum TmNormScope { TM_EACH_HEAD = 0, TM_OWN_HEAD = 1, TM_ALL_HEADS = 2 };
// Whether there is a shared expert, and whether a gate multiplies it.
enum TmShared { TM_NO_SHARED = 0, TM_SHARED = 1, TM_GATED_SHARED = 2 };

// Rows of a matrix that one thread computes together with their epilogue: one head of q, k or v; otherwise at most 32 rows,
// with the 32 rows of their gates for TM_GATED.
typedef struct {
  const uint8_t* data;   // tiles of 16 rows, as laid out by tokenmill's packing; null where another rank computes the unit,
                         // which then has the scheme of a unit of this rank
  const uint8_t* gate;   // tiles of the gates, null without
  int32_t scheme, gate_scheme;
  int32_t first, count;  // output columns [first, first + count)
} TmUnit;

typedef struct {
  int32_t kind, epilogue, activation;
  int32_t centred;        // of a norm, also of q and k: layer norm, not RMS norm
  int32_t from, to;       // buffers: linears and TM_CHOOSE read `from`; norms, attention, TM_CHOOSE and MLPs write `to`
  int32_t inputs, outputs, num_units, scheme;
  int32_t num_kv_heads, head_dim;  // of TM_QKV, TM_HEADS and TM_ATTEND, with `heads`: layers may differ
  int32_t value_dim;      // of these: entries of a head of v, and of a head's result; of TM_QKV as many as head_dim
  int32_t kv_parts;       // of TM_QKV and TM_HEADS, the parts of the matrix behind q: 2, k and v; 1, k alone, and each head of k before
                          // norm and rope is also the head of v; 0, neither: the layer reads the cached rows of another layer
  int32_t of_inputs;      // of TM_GATE: what is gated are columns of the inputs of TM_INPUTS
  int32_t by_head;        // of a linear: its `experts` are the heads' own matrices, and its rows are gathered head by head; of
                          // TM_ATTEND: so many numbers of each head's result are gathered so
  int32_t rotary;         // of TM_QKV and TM_HEADS: entries of a head that rotary embedding rotates; 0 without
  int32_t norm_scope;     // of the norms of q and k: TmNormScope
  int32_t norms_after_rope;
  int32_t gated;          // of TM_QKV and TM_HEADS: as many heads of gates stand before q, and are stored; of TM_ATTEND: results are
                          // multiplied by the activation of the `columns` stored numbers from `gate` on, one for each number of a
                          // result or for each head; of TM_CONVOLVE: inputs are multiplied by the numbers from `gate` on
  int32_t column, gate;   // among stored products: where TM_STORE writes, and where the numbers of TM_CONVOLVE and TM_GATE are;
                          // where the gates are, of TM_GATE -1 for none
  int32_t block;          // of TM_CONVOLVE: channels of a task; of TM_GATE: entries that are normed together, 0 without a norm
  int32_t taps, unit_blocks;  // of TM_CONVOLVE: the first blocks of results are brought to length 1; their first half, which are
                          // queries, are then multiplied by `scale`
  int32_t query, key, value, decay, strength;  // of TM_RECUR: their columns; strength -1: there is no delta rule; of
                          // TM_LATENT_ROWS the columns of all queries, and of the row before its norm
  int32_t heads;          // of TM_RECUR; of TM_QKV, TM_HEADS, TM_ATTEND, TM_LATENT_ROWS and TM_QUERY: heads of q
  int32_t key_heads, key_dim, columns;  // of TM_RECUR: columns of a slice of the state; of TM_LATENT_ROWS `columns` of a head's
                          // query are gathered
  int32_t gate_first;     // of TM_GATE: gates multiply before the norm
  int32_t decays;         // of TM_RECUR: decays of a head, 1, or one for each of key_dim numbers of its key
  int32_t sparse;         // of TM_GATE: what the gates of a token have above their mean plus `cutoff` deviations is left of them
  int32_t streams;        // of TM_EXPAND: their number, at most 8
  int32_t stream;         // of TM_COPY: the stream that is copied in the place of the residual stream, if it is not the first
  int32_t rows;           // of TM_INPUTS: rows of the table; tokens behind its end have the first row
  int32_t coded;          // of TM_INPUTS: llama.cpp's number of the type of the table, whose values are rounded to the type that
                          // `scheme` names; 0 for numbers in that type
  const TmUnit* units;    // with experts: all units of expert 0, of expert 1, …
  const float* weight;    // of a norm; of TM_EMBED, whose rows are normed before they are multiplied, null without; of
                          // TM_CONVOLVE [taps, outputs]
  const float* bias;      // of a norm, a linear or a convolution; of TM_EMBED rows of token types, of which the token id adds
                          // row id / outputs to row id % outputs of the table; null without
  const float* factors;   // of a linear: of each product, after its bias, gates first; null without; of TM_CORRECT [hidden]
  const float* router;    // of TM_PREDICT and TM_CORRECT [streams, hidden]
  const float* coefficients;  // [streams * streams, streams] and [streams, streams]: of tanh(router(norm(x) * scale))
  const float* input_norm;  // of TM_BESIDE: the weight of the norm of the first stream; of TM_PAIR of the given row's
  const float* q_norm;    // weights of the norms of q and k heads; null without
  const float* k_norm;
  const float* v_norm;    // null without
  const float* q_norm_bias;  // null without
  const float* k_norm_bias;
  const float* cosines;      // [num_positions, rotary / 2]
  const float* sines;
  const float* temperatures; // [num_positions]: factors of queries; null without
  const float* sinks;        // of TM_ATTEND [heads]: scores whose exponentials join the softmax's sum; null without
  const float* distance_bias;  // of TM_ATTEND [heads, 2 * num_positions + 16]: what is added to the score of a key, by its distance from
                          // the query, from 1 - num_positions on; the last 17 of a row are read and change nothing; null without
  const float* correction;   // of TM_CHOOSE [experts]: added to the scores where experts are chosen; null without
  const float* expert_scales;  // of TM_CHOOSE [experts]: factors of the weights of chosen experts; null without
  const float* const* biases;  // of a linear of experts: the bias of each; null without
  const void* table;      // embeddings [vocab, hidden], in float32, bfloat16 or float16 by `scheme`; null where `units` hold quantised
                          // embeddings, whose dequantised values are rounded to the type that `scheme` names, and without units
                          // where rank 0 looks tokens up
  const void* positions;  // learned position embeddings [num_positions, hidden], null without
  void* k_rows;           // this layer's cache [num_slots, kv heads, head_dim]
  void* v_rows;           // [num_slots, kv heads, value_dim]
  float* k_scales;        // of a cache in int8 [num_slots, kv heads]
  float* v_scales;
  const float* a_log;     // of TM_RECUR [heads]: decays are exp(-exp(a_log) * step), a step is softplus(decay + dt_bias)
  const float* dt_bias;   // [heads, decays]
  const float* skip;      // [heads]: factors of values that are added to the results; null with the delta rule
  float* state;           // of TM_CONVOLVE [num_states, taps - 1, outputs], the last inputs; of TM_RECUR
                          // [num_states, heads, slices, key_dim, columns]
  float eps;
  float scale;            // of TM_EMBED, TM_ADD, TM_LOGITS and TM_COMBINE: the results are multiplied by it; of TM_ATTEND the
                          // scores, of TM_CHOOSE the weights of the chosen experts, of TM_RECUR the strengths
  float rescale;          // of TM_ADD: the sums in the residual stream are multiplied by it
  float softcap;
  float act_a, act_b;     // numbers of the activation: of SwiGLU alpha and limit, of xIELU alpha of positive and of negative inputs
  float cutoff;
  float min_step, max_step;  // of TM_RECUR without the delta rule: limits of a step
  float clip;             // of a linear: products, after their factors, are brought into [-clip, clip]; 0 for no bounds
  float margin;           // of TM_CHOOSE with within_margin
  int32_t window;         // positions that a token attends to, itself included; 0 for all
  int32_t experts, chosen;
  int32_t normalise;      // the weights of the chosen experts are divided by their sum plus eps
  int32_t sigmoid;        // of TM_CHOOSE: the scores are sigmoids of the router's logits, not their softmax
  int32_t groups, chosen_groups;  // of TM_CHOOSE: experts are chosen within the best groups; 0 for no groups
  int32_t group_best;     // experts of a group whose scores are added up for its own
  int32_t shared;         // of TM_COMBINE: TmShared
  int32_t on_inputs;      // of experts: the weights multiply what an expert reads, not what it writes; experts are chosen by the
                          // router's logits as they are
  int32_t within_margin;  // of TM_CHOOSE: two experts are chosen, and each is weighed by a softmax of its own, among the logits
                          // that lie below its own by at most twice the margin of the larger of their size and its own
  int32_t both_ways;      // of TM_ATTEND: a token attends to as many later tokens of its span too, which is a whole text
} TmOp;

typedef struct {
  int32_t hidden;
  int32_t intermediate;   // of the widest MLP or expert
  int32_t vocab;
  int32_t cache_format;   // 0 float32, 1 bfloat16, 2 int8 with a scale for each token and head, 3 float16
  const TmOp* ops;
  int32_t num_ops, num_threads;
  const char* build;      // of the kernels: "amx", "avx512", "avx2", "dotprod", "portable", or "" for the best that runs
  int64_t num_positions;  // positions are below it
  int64_t num_slots;      // slots of the cache are below it
  int64_t num_states;     // slots of states are below it; 0 where no layer keeps a state
  int32_t rank, num_ranks; // processes that compute every step together, each with num_threads threads
  int32_t max_tokens;     // of a step, where there are several ranks
  int32_t num_processors; // of this machine, where it has several memory nodes
  const int32_t* processor_nodes; // [num_processors]: the memory node of each, -1 where the process may not use it
  const int32_t* thread_nodes;    // [num_threads]: the memory node of each thread; null where there is one node. The units of
                          // threads are copied then, and the memory of `units` is given back to the system
  void* shared;           // memory that all ranks map, zeros at first, tm_shared_bytes(model) of it; null for one rank
} TmModel;

// The change of the rows [first, first + count) of one matrix by an adapter. Before bias and factors of the linear, their product p
// becomes (p + scale * B A x) * factors + bias; without B it becomes A x, and `rank` is `count` then.
typedef struct {
  int32_t first, count;
  int32_t rank, at;       // A x has its place from `at` on in a row that all changes of the matrix share
  int32_t unit;           // rows of a unit of the matrix: `first` is where one begins
  int32_t type;           // of A and B: FLOAT32, BFLOAT16 or FLOAT16
  float scale;
  const void* a;          // [rank, inputs, padded to PAD]; null without A, or where an earlier change at the same place has it
  const void* b;          // of each unit tiles of 16 rows [rank][16]; null without
  const float* factors;   // [count]; null without
  const float* bias;      // [count]; null without
} TmChange;

// A tensor of a norm that an adapter replaces, by its address in the model.
typedef struct {
  const float* before;
  const float* after;     // as many numbers
} TmNorm;

// An adapter. The matrices of a model are numbered linear by linear, and expert by expert. The embedding of token i becomes
// table[i] + scale * a[i] b, or the row of `rows` that it has in `ids`.
typedef struct TmAdapter {
  const TmChange* changes;
  const int64_t* firsts;  // [num_matrices + 1]: changes [firsts[m], firsts[m + 1]) are of matrix m
  int64_t num_matrices;
  int32_t max_lowered;    // of one matrix: the end of all places of A x
  int32_t rank, type;     // of the embedding: of a and b, 0 without; of all four tables
  float scale;
  const void* table;      // [vocab, hidden], null without
  const void* a;          // [vocab, rank]
  const void* b;          // [rank, hidden]
  const void* rows;       // [num_ids, hidden]
  const int64_t* ids;
  int64_t num_ids;
  const TmNorm* norms;    // by rising addresses `before`
  int64_t num_norms;
  const struct TmAdapter* const* in_ranks;  // [num_ranks]: the same adapter in the memory of each rank; null where there is one
} TmAdapter;

// After `count` tokens of a span the states are stored in a slot.
typedef struct {
  int64_t count, slot;
} TmSave;

// The tokens [first, first + count) of a step: positions [start, start + count) of one sequence.
typedef struct {
  int64_t first, count, start;
  int64_t base;           // slot of position 0 where slots follow each other; -1 where `slots` has them
  const int64_t* slots;   // of the positions [0, start + count)
  int64_t state;          // slot of the states before the span; -1 where the text begins
  int64_t first_save, num_saves;  // in TmStep.saves, with rising counts; the last one is after all tokens
  const TmAdapter* adapter;  // by which its tokens are computed; null without
} TmSpan;

// One step. The spans follow each other and have all tokens. A token of -1 is the most probable one after the token before it,
// which must be in `rows`: tm_run replaces it. Where it would be one of `stops`, it stays -1, as do all tokens after it in the
// span; these are not computed, and their logits are not written.
typedef struct {
  int32_t num_tokens, num_spans, num_rows, num_stops;
  int64_t* tokens;
  const int64_t* positions;
  const int64_t* slots;   // where a token's K and V rows are written
  const int64_t* rows;    // the tokens whose logits are computed; null for all
  const TmSpan* spans;
  const TmSave* saves;    // of all spans, where layers keep states
  const int64_t* stops;
  float* logits;          // [num_rows, vocab]
  const float* given;     // [num_tokens, hidden or inputs]: what TM_PAIR reads; null where the model has no such operation
  float* hidden;          // of every computed token the row that the head reads, at its place in the step, [num_tokens, hidden]; null
                          // where it is not wanted
  const int64_t* places;  // of a pass: the places of its tokens in the step; null for a whole step
} TmStep;

// The settings by which the token of a row of logits is chosen, as in sample/filters.py and sample/probabilities.py, and the result.
typedef struct {
  const uint32_t* words;  // the mask: bit i of word w admits token 32 w + i, and no token lies behind its end; null admits all
  int64_t num_words;
  double temperature;     // 0: the token with the largest logit, the first among equals
  double top_p;           // 1: off
  double uniform;         // the random number of a draw, in (0, 1)
  float log_min_p;        // -infinity: off
  int32_t top_k;          // 0 and -1: off
  int64_t token;          // valid only if `largest` is below infinity and `admitted` is finite
  int64_t total;          // of the weights that the draw looked at, where the likeliest token weighs 2**(62 - bits of size)
  float largest;          // of all logits: NaN if there is one
  float admitted;         // the largest logit that the mask admits; -infinity if it admits none
} TmSample;

// The numbers from which the log-probability of a token follows, as in sample/logprobs.py.
typedef struct {
  int64_t token;  // -1: no rank is wanted
  int64_t rank;   // the place of the token among all, from 1; the lowest id first among equals
  int64_t total;  // of the weights of all tokens, where the likeliest one weighs 2**(62 - bits of size)
  double largest;  // of all logits; if it is NaN or infinite, the other results are not valid
} TmScore;

int tm_abi(void);
// Size of each struct, and offset and size of each field, a line each: "TmUnit 0 32", "TmUnit.data 0 8".
const char* tm_layout(void);
// Name of the build of models that name none: the best that this processor runs, or the build that was chosen.
const char* tm_best_build(void);
// The features of this processor that some build needs, as Linux names them, with a space between two.
const char* tm_features(void);
// Names of the builds that a processor with these features runs, null: this one; the best first, with a space between two.
void tm_builds(const char* features, char* names, int bytes);
// Chooses the build of models that name none, for this process. 0, or 1 with the reason in `why`.
int tm_choose_build(const char* build, char* why, int why_bytes);
// Null where the model cannot be made; `why` then has the reason in one line. With several ranks it waits for all of them.
void* tm_make(const TmModel* model, char* why, int why_bytes);
// 0, or 1 with the reason in `why`. A model runs one step at a time.
int tm_run(void* model, const TmStep* step, char* why, int why_bytes);
void tm_free(void* model);
// Bytes of the memory that several ranks share.
int64_t tm_shared_bytes(const TmModel* model);
// Called by every other rank: runs the steps of rank 0 until rank 0 frees its model. Result: as tm_run.
int tm_follow(void* model, char* why, int why_bytes);
// Called when a rank has ended: steps that wait for it fail, and so do all later steps. `shared`: the model's.
void tm_lose(void* shared);
// Index and value of the largest of each row [rows, size], the first among equals; NaN is the largest.
void tm_argmax(const float* values, int64_t rows, int64_t size, int64_t* indices, float* max_values);
// Chooses the token of each row of logits [rows, size]. 0, or 1 where there is no memory.
int tm_sample(const float* logits, int64_t rows, int64_t size, TmSample* samples);
// Scores a token of each row of logits [rows, size], and finds its likeliest tokens, in the order of their ids: top [rows, num_top],
// num_top at most `size`. 0, or 1 where there is no memory.
int tm_score(const float* logits, int64_t rows, int64_t size, TmScore* scores, int64_t num_top, int64_t* top);
// The grid (scale and minimum) of each row of numbers [inputs, rows], which are the weights of a group, so that the values code *
// scale + minimum that are nearest to the numbers have the smallest squared error, weighted by `weights` [inputs]. kind: any
// minimum (0), a minimum where a code stands for zero (1), or where the middle code does (2). scratch: [inputs, 16]. build: see
// TmModel. 0, or 1 where there is no such build.
int tm_fit_grid(const char* build, const float* numbers, int64_t rows, int inputs, int bits, int kind, const float* weights,
                float* scratch, float* scales, float* minimums);
// Rounds numbers [inputs, rows] on the grids of their rows, input by input: codes [inputs, rows], and errors [inputs, rows] divided
// by the diagonal of `factor` [inputs, inputs], whose other numbers say how much of each error is subtracted from each later
// input before that input is rounded. scratch, build, result: as above.
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
