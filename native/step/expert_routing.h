// Which experts the tokens of a step go to. A pair is one token and one of its experts; pairs are numbered expert by expert, so
// that an expert's linears read and write consecutive rows.
#pragma once
#include <vector>

#include "plan/model.h"
#include "step/aligned_buffer.h"

struct ExpertRouting {
  AlignedBuffer<float> logits;    // [tokens, experts], of the router
  AlignedBuffer<float> outputs;   // [pairs, hidden], of the experts' last linears
  std::vector<int> first_pair;    // [experts + 1]: pairs [first_pair[e], first_pair[e + 1]) are expert e's
  std::vector<int> experts;       // [tokens][chosen], in rising order
  std::vector<int> pairs;         // [tokens][chosen]
  std::vector<int> token_of;      // [pairs]
  std::vector<float> weights;     // [tokens][chosen]
  std::vector<float> shared_gates;  // [tokens], before the sigmoid

  void reserve(const Model& model, int64_t tokens);
  // Chooses the experts of all tokens from `logits`, and numbers the pairs.
  void route(const TmOp& op, int tokens);

 private:
  void choose(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights);
  float score(const TmOp& op, const float* token_logits);
  void keep_best_groups(const TmOp& op);
  void number_pairs(int chosen);

  std::vector<float> scores_;     // [experts], of one token
  std::vector<float> wanted_;     // [experts], by which experts are chosen
  std::vector<float> group_scores_;
  std::vector<int> next_pair_;        // [experts]
};
