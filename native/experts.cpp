// Mixtures of experts: who is chosen, and what came out put together again.
#include "model.h"

#include <cmath>

void Model::choose(const TmOp& op, int me) {
  if (me == 0) route(op);
  threads_->meet();
  const auto [from, to] = share((int)pair_token_.size(), me);
  for (int p = from; p < to; p++) shared_[op.to].take(p, buffer(op.from, me, few_), pair_token_[(size_t)p]);
  threads_->meet();
}

// Softmax over the experts, the likeliest `chosen` of them, and all pairs of token and expert, expert by expert.
void Model::route(const TmOp& op) {
  const int tokens = step_->num_tokens;
  std::fill(expert_first_.begin(), expert_first_.end(), 0);
  for (int t = 0; t < tokens; t++) {
    const float* logits = router_.get() + (int64_t)t * op.experts;
    const float most = *std::max_element(logits, logits + op.experts);
    float total = 0, picked = 0;
    for (int e = 0; e < op.experts; e++) total += chances_[(size_t)e] = std::exp(logits[e] - most);
    int* mine = picks_.data() + t * op.chosen;
    for (int c = 0; c < op.chosen; c++) {
      int best = -1;
      for (int e = 0; e < op.experts; e++)
        if (std::find(mine, mine + c, e) == mine + c && (best < 0 || chances_[(size_t)e] > chances_[(size_t)best])) best = e;
      mine[c] = best, picked += chances_[(size_t)best];
    }
    std::sort(mine, mine + op.chosen);
    for (int c = 0; c < op.chosen; c++) {
      weight_of_[(size_t)(t * op.chosen + c)] = chances_[(size_t)mine[c]] / (op.normalise ? picked : total);
      expert_first_[(size_t)mine[c] + 1]++;
    }
  }
  for (int e = 0; e < op.experts; e++) expert_first_[(size_t)e + 1] += expert_first_[(size_t)e];
  std::copy(expert_first_.begin(), expert_first_.end() - 1, next_pair_.begin());
  for (size_t i = 0; i < picks_.size(); i++) {
    pair_of_[i] = next_pair_[(size_t)picks_[i]]++;
    pair_token_[(size_t)pair_of_[i]] = (int)i / op.chosen;
  }
}

void Model::combine(const TmOp& op, int me) {
  const auto [from, to] = share(step_->num_tokens, me);
  float* sum = desks_[(size_t)me].row.get();
  for (int t = from; t < to; t++) {
    std::fill_n(sum, m_.hidden, 0.0f);
    for (int c = 0; c < op.chosen; c++) {
      const size_t at = (size_t)(t * op.chosen + c);
      const float* part = parts_.get() + (int64_t)pair_of_[at] * m_.hidden;
      for (int i = 0; i < m_.hidden; i++) sum[i] += weight_of_[at] * part[i];
    }
    kernels_.add(x(t), sum, m_.hidden);
  }
}
