// Several processes that compute every step together, as threads do within a process: tensor parallelism on one machine.
//
// Each rank has its share of the units of every matrix, and its own memory for these. All else is shared: the residual stream,
// the activations, the KV cache, the logits. Rank 0 is called by the engine and publishes each step in the shared memory; the
// others wait for it there, make the same plan out of the same numbers, and meet it at the same barriers. A sum is computed by
// one thread of one rank, so that its bits do not depend on the number of ranks.
#pragma once
#include <atomic>
#include <vector>

#include "abi.h"
#include "plan/model.h"
#include "plan/multi_step.h"
#include "ranks/shared_memory.h"
#include "threads/threads.h"

// The beginning of the shared memory, which is zero at first.
struct RanksHeader {
  std::atomic<uint32_t> lost;      // a rank has ended
  std::atomic<uint32_t> stopping;  // rank 0 frees its model
  std::atomic<int> num_joined;
  std::atomic<int> formats[NUM_BUFFERS];  // see BufferLayout
  Changes steps;                   // that rank 0 has published
  Barrier threads, ranks;          // of all threads of all ranks, and of one thread of each rank
};

// The numbers of a step, [max_tokens] each unless said otherwise.
struct SharedStep {
  int32_t* counts;      // tokens, spans, rows or -1 for all tokens, stops, rows of logits
  int64_t *tokens, *positions, *slots, *rows;
  TmSpan* spans;
  const TmAdapter** adapters;  // of the spans, [num_ranks, max_tokens]: where each rank has them
  TmSave* saves;        // of all spans
  int64_t* span_slots;  // [max_tokens, num_positions]: slots of all spans, one after the other
  int64_t* stops;       // [vocab]
  float* logits;        // [max_tokens, vocab]
  float* given;         // [max_tokens, numbers of a given row]: what TM_PAIR reads, where the model has it
};

class Ranks {
 public:
  // Waits for all ranks, and adds the formats that they read of the activation buffers to the model. Throws std::runtime_error if a
  // rank is lost.
  Ranks(Model& model, Threads& threads);
  ~Ranks();
  Ranks(const Ranks&) = delete;

  bool are_several() const { return header_; }
  int rank() const { return rank_; }
  // The memory after this class's own, for data that steps write together; given out in the same order by every rank.
  SharedMemory& memory() { return memory_; }
  std::atomic<int>* counters() const { return counters_; }
  MaxLogit* max_logits() const { return max_logits_; }

  // A barrier of all threads of all ranks. False where a rank is lost: its results are missing.
  bool meet() {
    if (header_) return header_->threads.meet(num_threads_, &header_->lost);
    threads_.meet();
    return true;
  }
  // A barrier of the threads of this rank.
  void meet_own() { threads_.meet(header_ ? &header_->lost : nullptr); }
  bool is_lost() const { return header_ && header_->lost.load(std::memory_order_relaxed); }
  void lose() { header_->lost.store(1); }
  void check() const;

  // Called by rank 0: the same step with its logits in the shared memory, which the other ranks begin to compute.
  TmStep publish(const TmStep& step);
  // Called by rank 0, once the other ranks have read the whole step: copies the logits to the place that the step names.
  void give_logits(const TmStep& step) const;
  // Called by the other ranks: waits for the next step. False where there is none, because rank 0 has ended.
  bool wait_for_step();
  TmStep step();
  // Called by every rank at the end of a step, which it does not read any more.
  void finish();

 private:
  void copy_spans(const TmStep& step);

  Threads& threads_;
  const TmModel& shape_;
  const int rank_, num_ranks_, num_threads_;
  const int64_t given_width_;  // 0 where the model reads no given rows
  SharedMemory memory_;
  RanksHeader* header_ = nullptr;
  SharedStep step_{};
  std::atomic<int>* counters_ = nullptr;
  MaxLogit* max_logits_ = nullptr;
  uint32_t steps_seen_ = 0;
  std::vector<int64_t> tokens_;  // of this rank, which replaces unknown tokens
  std::vector<TmSpan> spans_;
};

// Bytes of the memory that the ranks of a model share.
int64_t shared_bytes(const TmModel& model);
void lose(void* shared);
