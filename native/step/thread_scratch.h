// The memory that one thread has for itself during a step.
#pragma once
#include <vector>

#include "abi.h"
#include "attention/scratch_bytes.h"
#include "plan/step_plan.h"
#include "step/activation_buffer.h"
#include "step/expert_routing.h"

constexpr int MAX_PENDING = 64 * 64;   // outputs of products that wait for their epilogues
static_assert(TOKEN_BLOCK * GROUP <= MAX_PENDING, "the products of every unit but a wide head fit in");

// The product of a unit for the tokens [first, first + count), at `offset` in PendingProducts, `stride` floats per token.
struct PendingProduct {
  const TmUnit* unit;
  int first, count, offset, stride;
};

// Products whose epilogues have not been applied yet. `gate` has the gates' products at the same offsets.
struct PendingProducts {
  AlignedBuffer<float> out, gate;
  PendingProduct list[MAX_PENDING / GROUP];
  int count = 0, size = 0;  // entries of the list; floats of out
};

// Partial softmaxes of all rows of one attention job, or of one tile of queries, twice (so far, and of one split).
struct AttentionScratch {
  AlignedBuffer<float> max_score, exp_sum, value_sum;
  AlignedBuffer<uint8_t> kernel;
  std::vector<const float*> queries, biases;
  std::vector<int64_t> visible_begin, visible_end;
};

// The progress of prefetching the cached rows that this thread's next attention reads: K rows of a slot range, then its V rows.
struct KvPrefetch {
  const TmOp* attention = nullptr;  // null: nothing is left to prefetch
  size_t range = 0;                 // of StepPlan::slots_of
  bool values = false;
  int64_t offset = 0;               // bytes from the beginning of the range
};

struct ThreadScratch {
  AlignedBuffer<float> row;                // a token's activations, any width
  AlignedBuffer<float> gates;              // a token's, as wide as TM_GATE
  AlignedBuffer<float> apart;              // the distances of gates from their mean
  AlignedBuffer<float> streams;            // all streams of a token
  AlignedBuffer<float> decoded;            // a row of a coded table
  AlignedBuffer<float> pair;               // a token's embedding and its given row
  AlignedBuffer<float> before;             // inputs before the tokens of one task of a convolution
  AlignedBuffer<float> head;               // one head of q, k or v
  AlignedBuffer<float> value;              // one head of k that is a value, too
  AlignedBuffer<float> zeros;              // as many as a head has entries, or PAD
  ActivationBuffer buffers[NUM_BUFFERS];   // of a small step, in which every thread computes all rows
  PendingProducts pending;
  AttentionScratch attention;
  KvPrefetch prefetch;
  ExpertChooser chooser;

  void reserve(const Model& model, const StepPlan& plan) {
    const TmModel& shape = model.shape;
    for (int i = 0; i < NUM_BUFFERS; i++)
      if (model.buffers[i].width) buffers[i].reserve(plan.layout_of(model, i), plan.small ? SMALL_STEP : 0);
    const int64_t attended = std::max<int64_t>(model.max_gated, (int64_t)model.max_heads * model.max_head_dim);
    row.reserve(rounded(std::max<int64_t>({shape.hidden, attended, shape.intermediate, model.max_normed, model.max_plain}), PAD));
    gates.reserve(rounded(model.max_gated, PAD)), apart.reserve(model.max_kept);
    decoded.reserve(model.max_coded), pair.reserve(rounded(model.max_pair, PAD)), streams.reserve(model.streams * (int64_t)shape.hidden), before.reserve(model.max_before);
    const int64_t width = rounded(model.max_head_width(), PAD);
    chooser.reserve(model);
    head.reserve(width), value.reserve(std::max(width, rounded(model.max_plain, PAD))), zeros.reserve(width);
    std::fill_n(zeros.get(), width, 0.0f);
    pending.out.reserve(std::max<int64_t>(MAX_PENDING, TOKEN_BLOCK * rounded(model.max_head_width(), GROUP)));
    pending.gate.reserve(MAX_PENDING);
    const int64_t rows = std::max(QUERY_TILE * model.max_group, MAX_DECODE_TOKENS * model.max_heads);
    attention.value_sum.reserve(2 * rows * model.max_head_width());
    attention.max_score.reserve(2 * rows), attention.exp_sum.reserve(2 * rows);
    attention.kernel.reserve(attention_scratch_bytes(model.max_head_dim, rows));
    attention.queries.resize((size_t)rows), attention.biases.resize((size_t)rows);
    attention.visible_begin.resize((size_t)rows), attention.visible_end.resize((size_t)rows);
  }
};
