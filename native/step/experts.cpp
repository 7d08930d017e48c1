// Mixture of experts: the routing of tokens, copying their rows expert by expert, and the weighted sum of what the experts
// computed.
#include <cmath>

#include "step/worker.h"

void ExpertRouting::reserve(const Model& model, int64_t tokens) {
  const int64_t num_pairs = tokens * model.max_chosen;
  logits.reserve(tokens * model.max_experts);
  outputs.reserve(num_pairs * model.shape.hidden);
  for (auto* list : {&experts, &pairs, &token_of}) list->resize((size_t)num_pairs);
  weights.resize((size_t)num_pairs), shared_gates.resize((size_t)tokens);
  scores_.resize((size_t)model.max_experts), wanted_.resize((size_t)model.max_experts);
  group_scores_.reserve((size_t)model.max_experts);
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

// The scores of all experts: sigmoids, or the exponentials of a softmax. Result: what to divide the exponentials by.
float ExpertRouting::score(const TmOp& op, const float* token_logits) {
  const float max_logit = *std::max_element(token_logits, token_logits + op.experts);
  float total = 0;
  for (int e = 0; e < op.experts; e++) {
    const float logit = token_logits[e];
    total += scores_[(size_t)e] = op.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - max_logit);
  }
  if (op.sigmoid) return 1;
  if (!op.correction && !op.groups) return total;
  for (int e = 0; e < op.experts; e++) scores_[(size_t)e] /= total;
  return 1;
}

// Only the experts of the best groups are left to be chosen. A group's score is the sum of its two best.
void ExpertRouting::keep_best_groups(const TmOp& op) {
  const int size = op.experts / op.groups;
  group_scores_.assign((size_t)op.groups, 0);
  for (int g = 0; g < op.groups; g++) {
    float best = -INFINITY, second = size > 1 ? -INFINITY : 0;
    for (int e = g * size; e < (g + 1) * size; e++) {
      const float value = wanted_[(size_t)e];
      if (value > best) second = size > 1 ? best : 0, best = value;
      else if (value > second) second = value;
    }
    group_scores_[(size_t)g] = best + second;
  }
  for (int dropped = op.groups; dropped > op.chosen_groups; dropped--) {
    const auto worst = std::min_element(group_scores_.rbegin(), group_scores_.rend());  // the last among equals
    const int group = (int)(group_scores_.rend() - worst) - 1;
    *worst = INFINITY;
    std::fill_n(wanted_.begin() + group * size, size, -INFINITY);
  }
}

// The `chosen` experts with the highest scores are taken, the first among equals. Where `normalise`, their weights are divided
// by the sum over the chosen ones.
void ExpertRouting::choose(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights) {
  const float total = score(op, token_logits);
  for (int e = 0; e < op.experts; e++) wanted_[(size_t)e] = scores_[(size_t)e] + (op.correction ? op.correction[e] : 0);
  if (op.groups) keep_best_groups(op);
  float chosen_total = 0;
  for (int c = 0; c < op.chosen; c++) {
    int best = -1;
    for (int e = 0; e < op.experts; e++) {
      const bool taken = std::find(chosen, chosen + c, e) != chosen + c;
      if (!taken && (best < 0 || wanted_[(size_t)e] > wanted_[(size_t)best])) best = e;
    }
    chosen[c] = best, chosen_total += scores_[(size_t)best];
  }
  std::sort(chosen, chosen + op.chosen);
  for (int c = 0; c < op.chosen; c++) {
    chosen_weights[c] = scores_[(size_t)chosen[c]] / (op.normalise ? chosen_total : total);
    if (op.scale != 1) chosen_weights[c] *= op.scale;
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
    if (op.shared) {
      const float gate = op.shared == TM_GATED_SHARED ? 1 / (1 + std::exp(-routing_.shared_gates[(size_t)t])) : 1;
      for (int i = 0; i < hidden; i++) sum[i] += gate * stored(t)[i];
    }
    if (op.epilogue == TM_STORE)
      memcpy(stored(t), sum, sizeof(float) * (size_t)hidden);
    else
      add_scaled(op, t, 0, sum, hidden);
  }
}
