// Several greedy decoding steps in one call. A token of -1 in a step is the most probable one after the token before it, which
// is known only when that token's logits are. The step is therefore computed in passes: each pass has, of every span, the
// tokens that are known by then. A step without tokens of -1 is one pass.
#pragma once
#include <vector>

#include "abi.h"
#include "plan/model.h"

// The largest logit among a thread's part of a row.
struct MaxLogit {
  int64_t token;
  float value;
};

class MultiStep {
 public:
  // shared_max: [rows of a step][threads of all ranks], where there are several ranks; or null.
  MultiStep(const Model& model, MaxLogit* shared_max) : model_(model), shared_max_(shared_max) {}

  static bool has_unknown(const TmStep& step);
  void begin(const TmStep& step);
  // The next pass, as a step of its own; null when no pass is left.
  const TmStep* next_pass();
  // [row of the pass]: its row in the step's logits.
  const int64_t* logit_rows() const { return logit_rows_.data(); }
  // Called by every thread after a pass: finds the largest logit of each row in this thread's part of the vocabulary.
  void find_max(int thread);
  // Called after find_max of all threads: puts the tokens that follow the pass into their places in the step.
  void store_next_tokens();

 private:
  MaxLogit* max_of(int64_t row) { return (shared_max_ ? shared_max_ : max_.data()) + row * model_.num_threads(); }
  void add_known_tokens(int span);
  TmSpan states_of_pass(const TmSpan& span, int64_t done, int64_t count);
  int64_t argmax(int64_t row);

  const Model& model_;
  const TmStep* step_ = nullptr;
  TmStep pass_{};
  std::vector<int64_t> tokens_, positions_, slots_, rows_, logit_rows_, places_;  // of the pass
  std::vector<TmSpan> spans_;       // of the pass
  std::vector<TmSave> saves_;       // of the pass
  std::vector<int> span_numbers_;   // [span of the pass]: the step's span
  std::vector<int64_t> num_done_;   // [span of the step]: its tokens that are computed
  std::vector<int64_t> row_of_;     // [token of the step]: the row of its logits, or -1
  MaxLogit* const shared_max_;
  std::vector<MaxLogit> max_;       // [row of the pass][thread]
};
