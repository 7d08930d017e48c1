// Mixture of experts: the routing of tokens, copying their rows expert by expert, and the weighted sum of what the experts
// computed.
#include <cmath>

#include "step/worker.h"

void ExpertRouting::reserve(const Model& model, int64_t tokens) {
  const int64_t num_pairs = tokens * model.max_chosen;
  logits.reserve(tokens * model.max_experts);
  outputs.reserve(num_pairs * model.shape.hidden);
  for (auto* list : {&experts, &pairs, &token_of}) list->resize((size_t)num_pairs);
  weights.resize((size_t)num_pairs), probabilities_.resize((size_t)model.max_experts);
  first_pair.resize((size_t)model.max_experts + 1), next_pair_.resize((size_t)model.max_experts);
}

void ExpertRouting::route(const TmOp& op, int tokens) {
  std::fill(first_pair.begin(), first_pair.end(), 0);
  for (int t = 0; t < tokens; t++) {
    const size_t at = (size_t)t * (size_t)op.chosen;
    choose(op, logits.get() + (int64_t)t * op.experts, experts.data() + at, weights.data() + at);
  }
  number_pairs(op.chosen);
}

// Softmax over all experts, of which the `chosen` most probable are taken, the first among equals. Where `normalise`, their
// weights are divided by the sum over the chosen ones instead of the sum over all.
void ExpertRouting::choose(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights) {
  const float max_logit = *std::max_element(token_logits, token_logits + op.experts);
  float total = 0, chosen_total = 0;
  for (int e = 0; e < op.experts; e++) total += probabilities_[(size_t)e] = std::exp(token_logits[e] - max_logit);
  for (int c = 0; c < op.chosen; c++) {
    int best = -1;
    for (int e = 0; e < op.experts; e++) {
      const bool taken = std::find(chosen, chosen + c, e) != chosen + c;
      if (!taken && (best < 0 || probabilities_[(size_t)e] > probabilities_[(size_t)best])) best = e;
    }
    chosen[c] = best, chosen_total += probabilities_[(size_t)best];
  }
  std::sort(chosen, chosen + op.chosen);
  for (int c = 0; c < op.chosen; c++) {
    chosen_weights[c] = probabilities_[(size_t)chosen[c]] / (op.normalise ? chosen_total : total);
    first_pair[(size_t)chosen[c] + 1]++;  // a count until number_pairs
  }
}

void ExpertRouting::number_pairs(int chosen) {
  for (size_t e = 0; e + 1 < first_pair.size(); e++) first_pair[e + 1] += first_pair[e];
  std::copy(first_pair.begin(), first_pair.end() - 1, next_pair_.begin());
  for (size_t i = 0; i < experts.size(); i++) {
    pairs[i] = next_pair_[(size_t)experts[i]]++;
    token_of[(size_t)pairs[i]] = (int)i / chosen;
  }
}

void Worker::choose_experts(const TmOp& op) {
  if (thread_ == 0) routing_.route(op, plan_.step->num_tokens);
  threads_.meet();
  const auto [from, to] = share((int)routing_.token_of.size());
  for (int p = from; p < to; p++)
    memory_.buffers[op.to].copy_row(p, input(op.from), routing_.token_of[(size_t)p]);
  threads_.meet();
}

void Worker::combine_experts(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  float* sum = scratch_.row.get();
  for (int t = from; t < to; t++) {
    std::fill_n(sum, hidden, 0.0f);
    for (int c = 0; c < op.chosen; c++) {
      const size_t at = (size_t)t * (size_t)op.chosen + (size_t)c;
      const float* output = routing_.outputs.get() + (int64_t)routing_.pairs[at] * hidden;
      for (int i = 0; i < hidden; i++) sum[i] += routing_.weights[at] * output[i];
    }
    kernels_.add(residual(t), sum, hidden);
  }
}
