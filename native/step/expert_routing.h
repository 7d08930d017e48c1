// The experts to which the tokens of a step go. A pair is one token and one of its experts; pairs are numbered expert by expert, so
// that an expert's linears read and write consecutive rows. Work is listed for the experts that were chosen, not for all.
#pragma once
#include <vector>

#include "plan/model.h"
#include "step/aligned_buffer.h"

constexpr int TOKEN_BLOCK = 64;  // tokens of one product

// The memory with which one thread chooses the experts of a token.
class ExpertChooser {
 public:
  void reserve(const Model& model);
  // The experts of one token in rising order, and their weights.
  void choose(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights);

 private:
  float score(const TmOp& op, const float* token_logits);
  void keep_best_groups(const TmOp& op);
  void take_best(const TmOp& op, int* chosen) const;
  void choose_within_margin(const TmOp& op, const float* token_logits, int* chosen, float* chosen_weights);

  std::vector<float> scores_;  // [experts]
  std::vector<float> wanted_;  // [experts]: experts are chosen by these
  std::vector<float> group_scores_;
};

// Pairs [begin, end) of one expert whose activations stay in the second-level cache while its units pass over them.
struct ExpertRound {
  int expert, begin, end;
};

// Ranks share what linears write; each of them chooses and numbers for itself.
struct ExpertRouting {
  AlignedBuffer<float> logits;    // [tokens, experts], of the router
  AlignedBuffer<float> outputs;   // [pairs, hidden], of the experts' last linears
  AlignedBuffer<float> shared_gates;  // [tokens], before the sigmoid
  std::vector<ExpertRound> rounds;  // of all experts that have pairs
  int num_pairs = 0;
  std::vector<int> experts;       // [tokens][chosen], in rising order
  std::vector<int> pairs;         // [tokens][chosen]
  std::vector<int> place_of;      // [pairs]: the place of a pair in `pairs`
  std::vector<int> token_of;      // [pairs]
  std::vector<float> weights;     // [tokens][chosen]

  float weight_of(int pair) const { return weights[(size_t)place_of[(size_t)pair]]; }

  // As `reserve` for the largest step, in memory that ranks share.
  void lie_in(const Model& model, SharedMemory& memory);
  void reserve(const Model& model, int64_t tokens);
  // The routing of linears with a matrix for each head: every token goes to every head.
  void choose_all(int tokens, int heads);
  // Once `experts` is complete: numbers the pairs, and lists rounds of at most `round_size` of them.
  void number_pairs(int tokens, int chosen, int round_size);

 private:
  std::vector<int> first_pair_;  // [experts + 1]: pairs [first_pair_[e], first_pair_[e + 1]) are expert e's
  std::vector<int> next_pair_;   // [experts]
};
