// Mixture of experts: the routing of tokens, copying their rows expert by expert, and the weighted sum of the experts' outputs.
#include <cmath>

#include "step/worker.h"

void ExpertChooser::reserve(const Model& model) {
  scores_.resize((size_t)model.max_experts), wanted_.resize((size_t)model.max_experts);
  group_scores_.reserve((size_t)model.max_experts);
}

// The scores of all experts: sigmoids, or the exponentials of a softmax. Result: the divisor of the exponentials.
float ExpertChooser::score(const TmOp& op, const float* token_logits) {
  const float max_logit = *std::max_element(token_logits, token_logits + op.experts);
  float total = 0;
  for (int e = 0; e < op.experts; e++) {
    const float logit = token_logits[e];
    total += scores_[(size_t)e] = op.sigmoid ? 1 / (1 + std::exp(-logit)) : std::exp(logit - max_logit);
  }
  if (op.sigmoid) return 1;
  if (!op.correction && !op.groups && !op.eps) return total;
  for (int e = 0; e < op.experts; e++) scores_[(size_t)e] /= total;
  return 1;
}

// Only the experts of the best groups are left to be chosen. A group's score is the sum of its best, one or two.
void ExpertChooser::keep_best_groups(const TmOp& op) {
  const int size = op.experts / op.groups;
  group_scores_.assign((size_t)op.groups, 0);
  for (int g = 0; g < op.groups; g++) {
    const bool takes_two = op.group_best > 1 && size > 1;
    float best = -INFINITY, second = takes_two ? -INFINITY : 0;
    for (int e = g * size; e < (g + 1) * size; e++) {
      const float value = wanted_[(size_t)e];
      if (value > best) second = takes_two ? best : 0, best = value;
      else if (takes_two && value > second) second = value;
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

// The experts with the highest scores, the highest first, and the first among equals.
void ExpertChooser::take_best(const TmOp& op, int* chosen) const {
  for (int e = 0, count = 0; e < op.experts; e++) {
    const float value = wanted_[(size_t)e];
    if (count == op.chosen && !(value > wanted_[(size_t)chosen[count - 1]])) continue;
    int at = count < op.chosen ? count++ : count - 1;
    for (; at > 0 && value > wanted_[(size_t)chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
}

// The best expert and the best of the others. In the softmax of the second one the first is left out.
void ExpertChooser::choose_within_margin(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights) {
  std::copy(token_logits, token_logits + op.experts, wanted_.begin());
  for (int c = 0; c < 2; c++) {
    const auto best = std::max_element(wanted_.begin(), wanted_.begin() + op.experts);  // the first among equals
    float total = 0;
    for (int e = 0; e < op.experts; e++) {
      const float logit = token_logits[e];
      if ((*best - logit) / std::max(std::fabs(logit), *best) > 2 * op.margin) continue;
      total += std::exp(wanted_[(size_t)e] - *best);
    }
    chosen[c] = (int)(best - wanted_.begin()), chosen_weights[c] = 1 / total;
    *best = -INFINITY;
  }
  if (chosen[0] > chosen[1]) std::swap(chosen[0], chosen[1]), std::swap(chosen_weights[0], chosen_weights[1]);
}

// normalise: the weights are divided by their sum over the chosen experts, plus eps.
void ExpertChooser::choose(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights) {
  if (op.within_margin) return choose_within_margin(op, token_logits, chosen, chosen_weights);
  const float total = score(op, token_logits);
  for (int e = 0; e < op.experts; e++) {
    const float score = op.on_inputs ? token_logits[e] : scores_[(size_t)e];
    wanted_[(size_t)e] = score + (op.correction ? op.correction[e] : 0);
  }
  if (op.groups) keep_best_groups(op);
  take_best(op, chosen);
  float chosen_total = 0;
  for (int c = 0; c < op.chosen; c++) chosen_total += scores_[(size_t)chosen[c]];
  std::sort(chosen, chosen + op.chosen);
  for (int c = 0; c < op.chosen; c++) {
    chosen_weights[c] = scores_[(size_t)chosen[c]] / (op.normalise ? chosen_total + op.eps : total);
    if (op.expert_scales) chosen_weights[c] *= op.expert_scales[chosen[c]];
    if (op.scale != 1) chosen_weights[c] *= op.scale;
  }
}

void ExpertRouting::lie_in(const Model& model, SharedMemory& memory) {
  const int64_t tokens = model.shape.max_tokens;
  logits.lie_in(memory, tokens * model.max_experts), shared_gates.lie_in(memory, tokens);
  outputs.lie_in(memory, tokens * model.max_chosen * model.shape.hidden);
}

void ExpertRouting::reserve(const Model& model, int64_t tokens) {
  const int64_t most_pairs = tokens * model.max_pairs();
  logits.reserve(tokens * model.max_experts), shared_gates.reserve(tokens);
  outputs.reserve(tokens * model.max_chosen * model.shape.hidden);
  for (auto* list : {&experts, &pairs, &place_of, &token_of}) list->resize((size_t)most_pairs);
  weights.resize((size_t)most_pairs);
  first_pair_.resize((size_t)model.max_experts + 1), next_pair_.resize((size_t)model.max_experts);
  rounds.reserve((size_t)(std::min<int64_t>(model.max_experts, most_pairs) + most_pairs / TOKEN_BLOCK));
}

void ExpertRouting::choose_all(int tokens, int heads) {
  for (int i = 0; i < tokens * heads; i++) experts[(size_t)i] = i % heads;
}

void ExpertRouting::number_pairs(int tokens, int chosen, int round_size) {
  num_pairs = tokens * chosen;
  std::fill(first_pair_.begin(), first_pair_.end(), 0);
  for (int i = 0; i < num_pairs; i++) first_pair_[(size_t)experts[(size_t)i] + 1]++;
  rounds.clear();
  for (size_t e = 0; e + 1 < first_pair_.size(); e++) {
    const int begin = first_pair_[e], end = first_pair_[e + 1] += begin;
    for (int at = begin; at < end; at += round_size) rounds.push_back({(int)e, at, std::min(at + round_size, end)});
  }
  std::copy(first_pair_.begin(), first_pair_.end() - 1, next_pair_.begin());
  for (int i = 0; i < num_pairs; i++) {
    const int pair = next_pair_[(size_t)experts[(size_t)i]]++;
    pairs[(size_t)i] = pair, place_of[(size_t)pair] = i, token_of[(size_t)pair] = i / chosen;
  }
}

void Worker::choose_experts(const TmOp& op, size_t number) {
  const auto [first, last] = share_of(plan_.step->num_tokens, own_thread_, threads_.count());
  for (int t = first; t < last; t++) {
    const size_t at = (size_t)t * (size_t)op.chosen;
    scratch_.chooser.choose(op, routing_.logits.get() + (int64_t)t * op.experts, routing_.experts.data() + at,
                            routing_.weights.data() + at);
  }
  ranks_.meet_own();
  if (own_thread_ == 0) list_expert_work(op, number);
  ranks_.meet_own();
  const auto [from, to] = share(routing_.num_pairs);
  const int64_t width = rounded(model_.ops[number + 1].inputs, PAD);  // the linears of the experts follow
  for (int p = from; p < to; p++)
    memory_.buffers[op.to].copy_row(p, source(op.from), routing_.token_of[(size_t)p], width);
  ranks_.meet();
}

// Before linears with a matrix for each head, whose rows the threads gather meanwhile. Pairs are numbered head by head.
void Worker::begin_heads(const TmOp& op, size_t number) {
  if (own_thread_) return;
  routing_.choose_all(plan_.step->num_tokens, op.chosen);
  list_expert_work(op, number);
}

// Writes the first numbers of a head as a row of TM_GATHERED.
void Worker::gather_head(const TmOp& op, int head, int token, const float* numbers, int count) {
  const int padded = (int)rounded(count, PAD);
  float* row = scratch_.value.get();
  memcpy(row, numbers, sizeof(float) * (size_t)count);
  std::fill(row + count, row + padded, 0.0f);
  memory_.buffers[op.to].store(kernels_, row, 0, head * plan_.step->num_tokens + token, 1, 0, padded, padded);
}

// Fills the queues of the experts' linears, which follow: units of the experts that were chosen.
void Worker::list_expert_work(const TmOp& op, size_t number) {
  const auto is_linear = [&](size_t at) { return model_.ops[at].kind == TM_LINEAR && model_.ops[at].experts; };
  int64_t round_size = INT32_MAX;
  for (size_t at = number + 1; is_linear(at); at++) round_size = std::min(round_size, tokens_per_round(model_.ops[at]));
  routing_.number_pairs(plan_.step->num_tokens, op.chosen, (int)round_size);
  for (size_t at = number + 1; is_linear(at); at++)
    for (size_t thread = 0; thread < model_.shares[at].size(); thread++)
      queues_.fill(at, thread, model_.shares[at][thread].size() * routing_.rounds.size());
}

void Worker::combine_experts(const TmOp& op) {
  const int hidden = model_.shape.hidden, width = op.epilogue == TM_TO_BUFFER ? op.outputs : hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  const int padded = (int)rounded(width, PAD);
  float* sum = scratch_.row.get();
  for (int t = from; t < to; t++) {
    std::fill_n(sum, padded, 0.0f);
    for (int c = 0; c < op.chosen; c++) {
      const size_t at = (size_t)t * (size_t)op.chosen + (size_t)c;
      const float weight = op.on_inputs ? 1 : routing_.weights[at];
      kernels_.add_weighted(sum, routing_.outputs.get() + (int64_t)routing_.pairs[at] * hidden, weight, width);
    }
    if (op.shared) {
      const float gate = op.shared == TM_GATED_SHARED ? 1 / (1 + std::exp(-routing_.shared_gates.get()[t])) : 1;
      kernels_.add_weighted(sum, stored(t), gate, hidden);
    }
    if (op.epilogue == TM_TO_BUFFER)
      memory_.buffers[op.to].store(kernels_, sum, 0, t, 1, 0, padded, padded);
    else if (op.epilogue == TM_STORE)
      memcpy(stored(t), sum, sizeof(float) * (size_t)hidden);
    else
      add_scaled(op, t, 0, sum, hidden);
  }
}
