// The calling thread's plan of one step, made before the other threads start: the places of each span's attention results, and
// the attention tasks with the threads that take them.
//
// A span is the tokens of one sequence in the step. A short span attends split by split (SPLIT cached positions each, as in
// flash decoding): any thread takes a split, and the partial results are merged afterwards in the order of the splits. A long
// span attends in tiles of QUERY_TILE queries: one thread takes a tile and merges its splits as it goes, in the same order.
#pragma once
#include <algorithm>
#include <vector>

#include "abi.h"
#include "plan/model.h"

constexpr int SMALL_STEP = 16;      // tokens up to which every thread norms and merges all of them by itself: no barrier
constexpr int QUERY_TILE = 16;      // a span with so many tokens or more is long; queries of one task
constexpr int MAX_DECODE_TOKENS = 4; // tokens of a span up to which one task may take all kv heads of a split

struct Span : TmSpan {
  int64_t partials;    // of a short span: index of its first partial result; -1 for a long span
  int64_t num_splits;  // to which its last token attends
};

struct AttentionTask {
  int span, head, num_heads;  // kv heads [head, head + num_heads)
  int64_t index;              // of a short span's split, or of a long span's tile of queries
};

// The rows of a step that are computed with one adapter: tokens, and rows of logits, both in rising order.
struct AdaptedRows {
  const TmAdapter* adapter;
  std::vector<int> tokens, logits;
};

// Slots of the cache that follow each other.
struct SlotRange {
  int64_t slot, count;
};

struct StepPlan {
  const TmStep* step = nullptr;
  const int64_t* logit_rows = nullptr;  // [row]: its row in step->logits; null: the same
  bool small = true;                    // at most SMALL_STEP tokens
  std::vector<Span> spans;
  std::vector<int> span_of;  // [token]
  int64_t num_partials = 0;
  std::vector<std::vector<AttentionTask>> tasks;  // for each of Model::kv_heads: the same for all layers with so many kv heads
  bool tasks_assigned = false;  // each thread knows its tasks and its rows of the cache beforehand. A task then
                                // takes all kv heads of a split, so that this is the same for all layers:
  std::vector<std::vector<int>> tasks_of;         // [thread of all ranks]
  std::vector<std::vector<SlotRange>> slots_of;   // [thread]
  bool adapted = false;                           // some span has an adapter
  std::vector<AdaptedRows> adapted_rows;          // of each adapter
  std::vector<char> changed;                      // [op]: a linear of which an adapter of this step changes a matrix
  int64_t lowered_stride = 0;                     // columns of A x of all changes of a matrix

  void make(const Model& model, const TmStep& next_step, const int64_t* rows);

  const TmAdapter* adapter_of(int token) const { return spans[(size_t)span_of[(size_t)token]].adapter; }
  bool changes(size_t op) const { return adapted && changed[op]; }
  // The layout of an activation buffer: adapters read float32, beside what the matrices read.
  BufferLayout layout_of(const Model& model, int buffer) const {
    const BufferLayout& own = model.buffers[buffer];
    return {own.width, own.formats | (adapted ? 1 << AS_FLOAT32 : 0)};
  }

  // Partial results of one split and one kv head lie together: by token, then by query head of the group, of which `first` is
  // the first.
  int64_t partial_at(const Model& model, const Span& span, int64_t split, int first) const {
    return span.partials + (split * model.max_heads + first) * span.count;
  }

  const std::vector<AttentionTask>& tasks_for(const Model& model, const TmOp& op) const {
    const auto at = std::find(model.kv_heads.begin(), model.kv_heads.end(), op.num_kv_heads);
    return tasks[(size_t)(at - model.kv_heads.begin())];
  }

 private:
  void place_spans(const Model& model);
  void note_adapters(const Model& model);
  void list_tasks(int kv_heads, std::vector<AttentionTask>& list) const;
  void assign_tasks(const Model& model);
  void assign(const AttentionTask& task, int number, size_t thread);

  bool many_splits_ = false;  // at least two for every thread
};
