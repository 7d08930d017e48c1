// One thread's part in a step: every thread has a Worker, and all of them walk the model's operations together. Work is divided
// by rows and by units of a matrix; a sum is never divided, so that its bits depend on neither the number of threads nor the
// other tokens of the step.
//
// Nothing here may allocate or throw: the other threads would wait at a barrier forever.
#pragma once
#include <utility>

#include "plan/model.h"
#include "plan/step_plan.h"
#include "plan/work_queues.h"
#include "ranks/ranks.h"
#include "step/expert_routing.h"
#include "step/step_memory.h"
#include "step/thread_scratch.h"
#include "threads/threads.h"

// All that the threads of a rank share in a step.
struct Shared {
  const Model& model;
  const StepPlan& plan;
  WorkQueues& queues;
  StepMemory& memory;
  ExpertRouting& routing;
  Threads& threads;
  Ranks& ranks;
};

// Rows of a linear's input that one adapter changes alike: tokens, rows of logits, or pairs of one expert; and the changes.
struct ChangedRows {
  const TmChange *begin, *end;
  const int* rows;
  int count;
};

constexpr int MIN_ROWS_OF_THREAD = 8;  // from which on threads divide the rows of A x, not its columns

// Tokens whose activations stay in the second-level cache while all units of a linear pass over them, a multiple of
// TOKEN_BLOCK.
int64_t tokens_per_round(const TmOp& op);

class Worker {
 public:
  // thread: its number in this rank.
  Worker(const Shared& shared, ThreadScratch& scratch, int thread)
      : model_(shared.model), kernels_(shared.model.kernels), plan_(shared.plan), queues_(shared.queues), memory_(shared.memory),
        routing_(shared.routing), threads_(shared.threads), ranks_(shared.ranks), scratch_(scratch), own_thread_(thread),
        first_thread_(shared.ranks.rank() * shared.threads.count()), thread_(first_thread_ + thread) {}

  // All operations of the step.
  void run();

 private:
  // worker.cpp
  void perform(size_t number);
  void norm(const TmOp& op);
  void perform_norm(const TmOp& op);
  void norm_row(const TmOp& op, int64_t token, const float* x, float* out, int count) const;
  void add_normed(const TmOp& op);
  void norm_stored(const TmOp& op);
  void norm_in_place(const TmOp& op);
  void norm_columns(const TmOp& op);
  void keep_hidden(const TmOp& op);
  void pair(const TmOp& op);
  void replace(const TmOp& op);
  void layer_inputs(const TmOp& op);
  void add_scaled(const TmOp& op, int token, int first, float* values, int count);

  // embedding.cpp
  void embed(const TmOp& op);
  bool embeds(const TmOp& op, int64_t token) const;
  void embed_token(const TmOp& op, int64_t token, float* row) const;
  const float* decode_inputs(const TmOp& op, int64_t token);
  static float table_entry(const void* table, int scheme, int64_t at);

  // linear.cpp: the products of all units, with their epilogues
  void linear(const TmOp& op, size_t number);
  void multiply_unit(const TmOp& op, const TmUnit& unit, Activations& x, int first, int count);
  void multiply(const TmOp& op, const uint8_t* data, int scheme, int rows, Activations& x, int first, int count, float* out,
                int stride);
  void prefetch_residual(const TmUnit& unit, int first, int count);

  // epilogues.cpp
  void apply_epilogues(const TmOp& op);
  void activate(const TmOp& op, const PendingProduct& product, float* out, float* gate);
  void apply_epilogue(const TmOp& op, const TmUnit& unit, int token, float* out);
  void store_logits(const TmOp& op, const TmUnit& unit, int token, float* out);
  void store_heads(const TmOp& op);
  void store_head(const TmOp& op, int head, int token, float* out);
  void latent_rows(const TmOp& op, size_t number);
  void turned_end(const TmOp& op, int token, const float* numbers, float* out);
  void store_key_as_value(const TmOp& op, int token, int head, const float* key);
  void rotate_head(const TmOp& op, int token, float* out);
  void norm_head(const TmOp& op, int token, bool is_q, int head, float* out);
  void store_kv(const TmOp& op, int token, int head, bool is_v, float* out);

  // adapters.cpp
  template <class Use> void for_changed_rows(const TmOp& op, int first, int end, const Use& use) const;
  void lower(const TmOp& op);
  void wait_for_lowered();
  void apply_changes(const TmOp& op, const PendingProduct& product, float* out, float* gate);
  void apply_change(const TmChange& change, const ChangedRows& rows, const PendingProduct& product, int offset, float* out);
  void change_embedding(const TmAdapter& adapter, int64_t token, float* row) const;
  // A tensor of a norm as a token of the step has it. Null stays null.
  const float* own(const float* tensor, int64_t token) const { return plan_.adapted ? tensor_of_norm(tensor, (int)token) : tensor; }
  const float* tensor_of_norm(const float* tensor, int token) const;
  size_t op_number(const TmOp& op) const { return (size_t)(&op - model_.ops.data()); }

  // kv_prefetch.cpp
  void start_prefetch(const TmOp* attention);
  const uint8_t* next_prefetch(int64_t bytes);

  // attention.cpp
  void attend(const TmOp& op, size_t number);
  const AttentionTask* next_task(const TmOp& op, size_t number);
  AttentionJob job_for(const TmOp& op, const Span& span, int head, int64_t begin, int64_t end) const;
  void attend_split(const TmOp& op, const Span& span, const AttentionTask& task);
  void attend_tile(const TmOp& op, const Span& span, int64_t from, int head);
  void attend_queries(const TmOp& op, const Span& span, int64_t from, int64_t count, AttentionJob& job);
  void write_head(const TmOp& op, int head, float* value_sum, float max_score, float exp_sum, float* row) const;
  void merge_splits(const TmOp& op, const Span& span, int token, float* row);
  void store_attended(const TmOp& op, int token);

  // states.cpp: layers that keep a state
  void convolve(const TmOp& op);
  void convolve_block(const TmOp& op, const Span& span, int block);
  void recur(const TmOp& op, size_t number);
  void recur_slice(const TmOp& op, const Span& span, int head, int slice);
  void gate(const TmOp& op);
  void norm_blocks(const TmOp& op, int token, float* row) const;

  // streams.cpp
  void expand_streams(const TmOp& op);
  void predict_streams(const TmOp& op);
  void add_beside(const TmOp& op);
  void correct_streams(const TmOp& op);
  void spread_streams(const TmOp& op);
  void join_streams(const TmOp& op);
  void rescale_further(const TmOp& op, int64_t token, const float* first);
  void route_streams(const TmOp& op, const float* x, int64_t token, float* routed);
  float coefficient(const TmOp& op, int number, const float* routed) const;
  float* normed_row(const float* x, int64_t token, const float* weight, const TmOp& op);
  void keep_largest(const TmOp& op, float* gates) const;

  // experts.cpp
  void choose_experts(const TmOp& op, size_t number);
  void begin_heads(const TmOp& op, size_t number);
  void gather_head(const TmOp& op, int head, int token, const float* numbers, int count);
  void list_expert_work(const TmOp& op, size_t number);
  void combine_experts(const TmOp& op);

  // This thread's part of `count` things.
  std::pair<int, int> share(int count) const { return share_of(count, thread_, model_.num_threads()); }
  // In a small step every thread computes all rows for itself, and needs no barrier afterwards.
  std::pair<int, int> rows_of(int count) const { return plan_.small ? std::pair<int, int>(0, count) : share(count); }
  void meet_unless_small() {
    if (!plan_.small) ranks_.meet();
  }
  // What linears write is computed by all threads together, even in a small step.
  ActivationBuffer& source(int number) {
    const bool together = number == TM_MLP_INNER || number == TM_GATHERED || number == TM_LATENT;
    return together ? memory_.buffers[number] : input(number);
  }
  ActivationBuffer& input(int number) { return plan_.small ? scratch_.buffers[number] : memory_.buffers[number]; }
  float* residual(int64_t token) { return memory_.residual.get() + token * model_.hidden_stride(); }
  float* stored(int64_t token) { return memory_.stored.get() + token * model_.stored_stride; }
  float* stream(int64_t token, int number) {
    return memory_.streams.get() + (token * model_.streams + number) * model_.hidden_stride();
  }
  float* inputs(int64_t token) { return memory_.inputs.get() + token * model_.inputs_stride; }
  float* query(const TmOp& op, int64_t token, int head) {
    return memory_.queries.get() + (token * op.heads + head) * Model::head_width(op);
  }
  // The head and the token of a row of TM_GATHERED.
  std::pair<int, int> head_of(int pair) const { return {pair / plan_.step->num_tokens, pair % plan_.step->num_tokens}; }
  float* attended(int64_t token) { return memory_.attended.get() + token * model_.attended_stride(); }

  const Model& model_;
  const Kernels& kernels_;
  const StepPlan& plan_;
  WorkQueues& queues_;
  StepMemory& memory_;
  ExpertRouting& routing_;
  Threads& threads_;
  Ranks& ranks_;
  ThreadScratch& scratch_;
  const int own_thread_;    // in this rank
  uint32_t num_lowered_ = 0;  // that StepMemory::num_lowered has once all threads have written their parts
  const int first_thread_;  // the first of this rank, among all ranks' threads
  const int thread_;        // among all ranks' threads
};
