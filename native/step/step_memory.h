// The memory that all threads of a step read and write together. Every row, or part of a row, is written by one thread; barriers
// stand between writing and reading.
#pragma once
#include <atomic>

#include "plan/step_plan.h"
#include "step/activation_buffer.h"

// Partial softmax of every split, query head and token of the short spans; StepPlan::partial_at says where each lies.
struct AttentionPartials {
  AlignedBuffer<float> max_score, exp_sum, value_sum;
};

struct StepMemory {
  AlignedBuffer<float> residual;  // [tokens, hidden_stride]
  AlignedBuffer<float> stored;    // [tokens, stored_stride], see TM_STORE
  AlignedBuffer<float> inputs;    // [tokens, inputs_stride], of TM_INPUTS
  AlignedBuffer<float> streams;   // [tokens, streams, hidden_stride]
  AlignedBuffer<float> queries;   // [tokens, query heads, head_width] of a layer
  AlignedBuffer<float> attended;  // [tokens, attended_stride], of long spans
  AlignedBuffer<float> lowered;   // [tokens or pairs, lowered_stride], of a linear that adapters change
  std::atomic<uint32_t> num_lowered{0};  // of this step: how often a thread has written its part of `lowered`
  AttentionPartials partials;
  ActivationBuffer buffers[NUM_BUFFERS];

  // As `reserve` for the largest step, in memory that ranks share.
  void lie_in(const Model& model, SharedMemory& memory) {
    const int64_t tokens = model.shape.max_tokens, pairs = tokens * model.max_chosen, gathered = tokens * model.max_pairs();
    const int64_t num_partials = tokens * model.max_heads * ((model.shape.num_positions + SPLIT - 1) / SPLIT);
    residual.lie_in(memory, tokens * model.hidden_stride());
    stored.lie_in(memory, tokens * model.stored_stride);
    inputs.lie_in(memory, tokens * model.inputs_stride);
    streams.lie_in(memory, tokens * model.streams * model.hidden_stride());
    queries.lie_in(memory, tokens * model.max_heads * model.max_head_width());
    attended.lie_in(memory, tokens * model.attended_stride());
    partials.max_score.lie_in(memory, num_partials), partials.exp_sum.lie_in(memory, num_partials);
    partials.value_sum.lie_in(memory, num_partials * model.max_head_width());
    for (int i = 0; i < NUM_BUFFERS; i++) buffers[i].lie_in(memory, model.buffers[i], rows_of(i, tokens, pairs, gathered));
  }

  void reserve(const Model& model, const StepPlan& plan) {
    const int64_t tokens = plan.step->num_tokens, pairs = tokens * model.max_chosen, gathered = tokens * model.max_pairs();
    residual.reserve(tokens * model.hidden_stride());
    stored.reserve(tokens * model.stored_stride);
    inputs.reserve(tokens * model.inputs_stride);
    streams.reserve(tokens * model.streams * model.hidden_stride());
    queries.reserve(tokens * model.max_heads * model.max_head_width());
    attended.reserve(tokens * model.attended_stride());
    partials.max_score.reserve(plan.num_partials), partials.exp_sum.reserve(plan.num_partials);
    partials.value_sum.reserve(plan.num_partials * model.max_head_width());
    lowered.reserve(std::max(tokens, gathered) * plan.lowered_stride), num_lowered = 0;
    for (int i = 0; i < NUM_BUFFERS; i++)
      if (model.buffers[i].width) buffers[i].reserve(plan.layout_of(model, i), rows_of(i, tokens, pairs, gathered));
  }

 private:
  static int64_t rows_of(int buffer, int64_t tokens, int64_t pairs, int64_t gathered) {
    return buffer == TM_GATHERED ? gathered : buffer == TM_MLP_INNER ? std::max(tokens, pairs) : tokens;
  }
};
