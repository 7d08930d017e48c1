// A model that runs steps: the operations in order, each divided among the threads, a barrier where the next needs all of it.
//
// Rows and units are divided, sums are not. Whatever a row needs is computed in the same order for every number of threads,
// tokens beside it and pieces that its prompt came in.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "abi.h"
#include "buffers.h"
#include "kernels.h"
#include "threads.h"

constexpr int FEW = 16;            // rows up to which every thread norms and folds all of them by itself: no barrier
constexpr int TOKEN_BLOCK = 64;    // of a unit's outputs at a time
static_assert(TOKEN_BLOCK * GROUP <= MADE, "a desk has room for any unit but a head's");
constexpr int64_t NEAR_BYTES = 3 << 18;  // of activations that all units pass over before the next come: the second cache, nearly
constexpr int QUERY_TILE = 16;     // positions whose queries attend together in a long chunk
constexpr int FEW_QUERIES = 4;     // positions up to which all heads attend together

struct Span : TmSpan {
  int64_t partials;    // where its splits' figures lie, or -1: folded at once
  int64_t num_splits;  // of its last position
};

// The part of a step that is computed together: a step of its own, and the rows of the whole step's logits that its own are.
struct Pass {
  std::vector<int64_t> tokens, positions, slots, rows, places;
  std::vector<TmSpan> spans;
  std::vector<int> whose;  // of the step's spans
};

struct Largest {
  int64_t place;
  float value;
};

// What one thread attends to at a time: a split of a short span, or a tile of a long one's positions, for some kv heads.
struct Task {
  int span, head, num_heads;
  int64_t piece;
};

// The `at`th part of a thread's share of an operation; nobody's where there is none left.
struct Taken {
  int whose;
  uint32_t at;
};

// Rows of the cache that lie one behind the other.
struct Stretch {
  int64_t slot, count;
};

class Model {
 public:
  explicit Model(const TmModel& m);
  void run(const TmStep& step);
  // By name, "" for the best that this processor runs.
  static const Kernels& find_build(const char* wanted);

 private:
  // passes.cpp: what is computed together
  void run_pass(const TmStep& step);
  bool collect(const TmStep& step);
  void find_largest(int me);
  void find_next(const TmStep& step);
  int64_t largest_of(int64_t row) const;
  // plan.cpp: before the threads start
  void prepare(const TmStep& step);
  void make(Buffer& buffer, int number, int64_t tokens);
  void place_spans(const TmStep& step);
  void list_tasks();
  void settle_tasks();
  std::vector<std::vector<int>> divide(const TmOp& op) const;

  // On every thread; nothing here allocates, since an exception on one thread would leave the others waiting.
  // step.cpp
  void perform(size_t number, int me);
  static float number(const void* table, int scheme, int64_t at);
  void embed(const TmOp& op, int me);
  void norm(const TmOp& op, int me);
  Taken take(size_t number, int me);
  void linear(const TmOp& op, size_t number, int me);
  void fetch_rows(const TmUnit& unit, int first, int count);
  void finish_made(const TmOp& op, Desk& desk);
  void multiply(const TmOp& op, const uint8_t* data, int scheme, int rows, Act& act, int first, int count, float* out, int stride,
                int me);
  void expect(const TmOp* attention, int me);
  const uint8_t* coming(int64_t bytes, int me);
  void finish_inner(const TmOp& op, const Made& made, float* out, float* gate);
  void finish(const TmOp& op, const TmUnit& unit, int token, float* out);
  void finish_head(const TmOp& op, const TmUnit& unit, int token, float* out);
  static void add_bias(const TmOp& op, const TmUnit& unit, float* out, int offset);
  // experts.cpp
  void choose(const TmOp& op, int me);
  void route(const TmOp& op);
  void combine(const TmOp& op, int me);
  // attention.cpp
  void attend(const TmOp& op, size_t number, int me);
  Attend job_for(const TmOp& op, const Span& span, int head, int64_t begin, int64_t end, Desk& desk) const;
  void attend_split(const TmOp& op, const Span& span, const Task& task, int me);
  void attend_rows(const TmOp& op, const Span& span, int64_t from, int64_t count, Attend& job, int me);
  void attend_queries(const TmOp& op, const Span& span, int64_t from, int head, int me);
  void write_head(int head, const float* values, float total, float* row) const;
  void hand_over(const TmOp& op, int token, int me);

  // Tokens that stay near while all units pass over them, a multiple of TOKEN_BLOCK.
  int64_t round_tokens(const TmOp& op) const {
    const int64_t bytes = op.inputs * (int64_t)(form_of(op.units[0].scheme) == AS_INT8 ? 2 : 4);
    return std::max<int64_t>(1, NEAR_BYTES / bytes / TOKEN_BLOCK) * TOKEN_BLOCK;
  }
  int64_t num_rounds(const TmOp& op) const { return rounded(step_->num_tokens, round_tokens(op)) / round_tokens(op); }

  std::pair<int, int> share(int count, int me) const {
    const int64_t n = m_.num_threads;
    return {(int)(count * (int64_t)me / n), (int)(count * (int64_t)(me + 1) / n)};
  }

  // One head's entries of a cached row.
  int64_t head_bytes() const { return (m_.cache_form == AS_FLOAT32 ? 4 : m_.cache_form == AS_BFLOAT16 ? 2 : 1) * (int64_t)m_.head_dim; }

  float* x(int64_t token) { return x_.get() + token * rounded(m_.hidden, PAD); }

  // Buffers are every thread's own while there are few rows, and all threads' together otherwise.
  Buffer& buffer(int number, int me, bool own) { return own ? desks_[(size_t)me].buffers[number] : shared_[number]; }

  static int64_t first_seen(const TmOp& op, int64_t position) {
    return op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
  }

  // Figures of one split and one kv head lie together: positions, then heads of the group.
  int64_t place(const Span& span, int64_t split, int head) const {
    return span.partials + (split * m_.num_kv_heads + head) * span.count * (m_.num_heads / m_.num_kv_heads);
  }

  float* attended(int64_t token) { return attended_.get() + token * rounded((int64_t)m_.num_heads * m_.head_dim, PAD); }

  TmModel m_;
  std::vector<TmOp> ops_;
  const Kernels& kernels_;
  std::unique_ptr<Threads> threads_;
  std::vector<std::vector<std::vector<int>>> shares_;  // op, thread → units
  int forms_[NUM_BUFFERS] = {}, widths_[NUM_BUFFERS] = {};
  int width_ = 0;
  const TmStep* step_ = nullptr;
  const int64_t* places_ = nullptr;  // row → where its logits go; null: where it is
  Pass pass_;
  std::vector<Largest> best_;           // row, thread → of its part of the vocabulary
  std::vector<int64_t> done_, row_of_;  // span → its tokens that are computed; token → its row, or -1
  bool few_ = true, enough_ = false, settled_ = false;  // rows few enough; splits enough; who attends to what is known
  int chosen_ = 0, num_experts_ = 0;
  Room<float> router_, parts_;                        // logits of the router; each pair's result
  std::vector<int> expert_first_, next_pair_;  // pairs [first, next) of an expert
  std::vector<int> picks_, pair_of_;           // experts and pairs by token and choice
  std::vector<int> pair_token_;
  std::vector<float> weight_of_, chances_;     // of token and choice; of one token's experts
  Room<float> x_, q_, attended_, part_best_, part_total_, part_values_;
  Buffer shared_[NUM_BUFFERS];
  std::vector<Desk> desks_;
  std::vector<Span> spans_;
  std::vector<int> owner_;
  std::vector<std::atomic<int>> next_;
  std::vector<std::atomic<uint64_t>> left_;       // thread, op → the units of its share that nobody has taken: from, to (high)
  std::vector<const TmOp*> following_;            // op → the attention after it, or null
  std::vector<Task> tasks_;                       // of every attention of this step
  std::vector<std::vector<int>> task_shares_;     // thread → tasks, where that is settled before
  std::vector<std::vector<Stretch>> stretches_;   // thread → what it will read then
};
