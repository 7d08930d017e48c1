// What of a step is computed together: all of it, or pass after pass where tokens are only known once those before them are
// computed. That is several steps of a greedy choice in one call.
#include "model.h"

#include <cmath>
#include <stdexcept>

void Model::run(const TmStep& step) {
  places_ = nullptr;
  if (std::none_of(step.tokens, step.tokens + step.num_tokens, [](int64_t token) { return token < 0; })) return run_pass(step);
  done_.assign((size_t)step.num_spans, 0);
  row_of_.assign((size_t)step.num_tokens, -1);
  for (int row = 0; row < step.num_rows; row++) row_of_[(size_t)(step.rows ? step.rows[row] : row)] = row;
  while (collect(step)) {
    places_ = pass_.places.data();
    TmStep part{};
    part.num_tokens = (int32_t)pass_.tokens.size(), part.num_spans = (int32_t)pass_.spans.size();
    part.num_rows = (int32_t)pass_.rows.size();
    part.tokens = pass_.tokens.data(), part.positions = pass_.positions.data(), part.slots = pass_.slots.data();
    part.rows = pass_.rows.data(), part.spans = pass_.spans.data(), part.logits = step.logits;
    best_.resize((size_t)(part.num_rows * m_.num_threads));
    run_pass(part);
    find_next(step);
  }
}

void Model::run_pass(const TmStep& step) {
  prepare(step);
  threads_->run([this](int me) {
    kernels_.begin_step();
    expect(following_[0], me);
    for (size_t i = 0; i < ops_.size(); i++) perform(i, me);
    kernels_.end_step();
    if (places_) find_largest(me);
  });
}

// Each thread looks at about the logits that it has written.
void Model::find_largest(int me) {
  const auto [from, to] = share(m_.vocab, me);
  for (int row = 0; row < step_->num_rows; row++) {
    const float* logits = step_->logits + places_[row] * m_.vocab;
    const int64_t place = from < to ? from + kernels_.largest(logits + from, to - from) : 0;
    best_[(size_t)(row * m_.num_threads + me)] = {place, from < to ? logits[place] : -INFINITY};
  }
}

// Of every span the tokens that are known by now; false where there are none.
bool Model::collect(const TmStep& step) {
  for (auto* list : {&pass_.tokens, &pass_.positions, &pass_.slots, &pass_.rows, &pass_.places}) list->clear();
  pass_.spans.clear(), pass_.whose.clear();
  for (int i = 0; i < step.num_spans; i++) {
    const TmSpan& span = step.spans[i];
    const int64_t from = span.first + done_[(size_t)i], end = span.first + span.count, first = (int64_t)pass_.tokens.size();
    for (int64_t at = from; at < end && step.tokens[at] >= 0; at++) {
      if (row_of_[(size_t)at] >= 0) {
        pass_.rows.push_back((int64_t)pass_.tokens.size());
        pass_.places.push_back(row_of_[(size_t)at]);
      }
      pass_.tokens.push_back(step.tokens[at]);
      pass_.positions.push_back(step.positions[at]);
      pass_.slots.push_back(step.slots[at]);
    }
    const int64_t count = (int64_t)pass_.tokens.size() - first;
    if (!count) continue;
    pass_.spans.push_back({first, count, span.start + done_[(size_t)i], span.base, span.slots});
    pass_.whose.push_back(i);
    done_[(size_t)i] += count;
  }
  return !pass_.spans.empty();
}

// The token after each span of this pass, where the step asks for it and the text does not end there.
void Model::find_next(const TmStep& step) {
  for (int i : pass_.whose) {
    const TmSpan& span = step.spans[i];
    if (done_[(size_t)i] == span.count) continue;
    int64_t* next = step.tokens + span.first + done_[(size_t)i];
    const int64_t place = row_of_[(size_t)(next - step.tokens) - 1];
    if (place < 0) throw std::logic_error("a token is to be found after one whose logits are not wanted");
    const int64_t token = largest_of(std::find(pass_.places.begin(), pass_.places.end(), place) - pass_.places.begin());
    if (std::find(step.stops, step.stops + step.num_stops, token) == step.stops + step.num_stops) *next = token;
  }
}

// The first among equals; no number is larger than any.
int64_t Model::largest_of(int64_t row) const {
  const Largest* found = best_.data() + row * m_.num_threads;
  Largest best = found[0];
  for (int i = 1; i < m_.num_threads; i++)
    if (found[i].value > best.value || (found[i].value != found[i].value && best.value == best.value)) best = found[i];
  return best.place;
}
