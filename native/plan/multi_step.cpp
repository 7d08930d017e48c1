#include "plan/multi_step.h"

#include <cmath>
#include <stdexcept>

#include "threads/threads.h"

bool MultiStep::has_unknown(const TmStep& step) {
  return std::any_of(step.tokens, step.tokens + step.num_tokens, [](int64_t token) { return token < 0; });
}

void MultiStep::begin(const TmStep& step) {
  step_ = &step;
  num_done_.assign((size_t)step.num_spans, 0);
  row_of_.assign((size_t)step.num_tokens, -1);
  for (int row = 0; row < step.num_rows; row++) row_of_[(size_t)(step.rows ? step.rows[row] : row)] = row;
}

const TmStep* MultiStep::next_pass() {
  for (auto* list : {&tokens_, &positions_, &slots_, &rows_, &logit_rows_, &places_}) list->clear();
  spans_.clear(), saves_.clear(), span_numbers_.clear();
  for (int i = 0; i < step_->num_spans; i++) add_known_tokens(i);
  if (spans_.empty()) return nullptr;
  pass_.num_tokens = (int32_t)tokens_.size(), pass_.num_spans = (int32_t)spans_.size(), pass_.num_rows = (int32_t)rows_.size();
  pass_.tokens = tokens_.data(), pass_.positions = positions_.data(), pass_.slots = slots_.data();
  pass_.rows = rows_.data(), pass_.spans = spans_.data(), pass_.saves = saves_.data();
  pass_.logits = step_->logits, pass_.given = step_->given, pass_.hidden = step_->hidden, pass_.places = places_.data();
  if (!shared_max_) max_.resize((size_t)pass_.num_rows * (size_t)model_.num_threads());
  return &pass_;
}

void MultiStep::add_known_tokens(int number) {
  const TmSpan& span = step_->spans[number];
  const int64_t done = num_done_[(size_t)number], end = span.first + span.count, first = (int64_t)tokens_.size();
  for (int64_t at = span.first + done; at < end && step_->tokens[at] >= 0; at++) {
    if (row_of_[(size_t)at] >= 0) {
      rows_.push_back((int64_t)tokens_.size());
      logit_rows_.push_back(row_of_[(size_t)at]);
    }
    tokens_.push_back(step_->tokens[at]);
    positions_.push_back(step_->positions[at]);
    slots_.push_back(step_->slots[at]);
    places_.push_back(at);
  }
  const int64_t count = (int64_t)tokens_.size() - first;
  if (!count) return;
  TmSpan part = states_of_pass(span, done, count);
  part.first = first, part.count = count, part.start += done;
  spans_.push_back(part);
  span_numbers_.push_back(number);
  num_done_[(size_t)number] += count;
}

// Where the step stores no states between two passes, they wait in the slot of the last ones.
TmSpan MultiStep::states_of_pass(const TmSpan& span, int64_t done, int64_t count) {
  TmSpan part = span;
  if (!span.num_saves) return part;
  const TmSave *save = step_->saves + span.first_save, *last = save + span.num_saves - 1;
  part.first_save = (int64_t)saves_.size();
  if (done) part.state = last->slot;
  for (; save <= last && save->count <= done + count; save++) {
    if (save->count == done) part.state = save->slot;
    if (save->count > done) saves_.push_back({save->count - done, save->slot});
  }
  if ((int64_t)saves_.size() == part.first_save || saves_.back().count != count) saves_.push_back({count, last->slot});
  part.num_saves = (int64_t)saves_.size() - part.first_save;
  return part;
}

// A thread takes about those logits that it has written itself.
void MultiStep::find_max(int thread) {
  const auto [from, to] = share_of(model_.shape.vocab, thread, model_.num_threads());
  for (int row = 0; row < pass_.num_rows; row++) {
    const float* logits = pass_.logits + logit_rows_[(size_t)row] * model_.shape.vocab;
    const int64_t token = from < to ? from + model_.kernels.argmax(logits + from, to - from) : 0;
    max_of(row)[thread] = {token, from < to ? logits[token] : -INFINITY};
  }
}

// A span whose next token is one of `stops` ends there: its remaining tokens stay -1.
void MultiStep::store_next_tokens() {
  for (int i : span_numbers_) {
    const TmSpan& span = step_->spans[i];
    if (num_done_[(size_t)i] == span.count) continue;
    int64_t* next = step_->tokens + span.first + num_done_[(size_t)i];
    const int64_t row = row_of_[(size_t)(next - step_->tokens) - 1];
    if (row < 0) throw std::logic_error("a token of -1 follows one whose logits are not computed");
    const int64_t token = argmax(std::find(logit_rows_.begin(), logit_rows_.end(), row) - logit_rows_.begin());
    const int64_t *stops = step_->stops, *end = stops + step_->num_stops;
    if (std::find(stops, end, token) == end) *next = token;
  }
}

// The first among equals; NaN is larger than anything.
int64_t MultiStep::argmax(int64_t row) {
  const MaxLogit* of_threads = max_of(row);
  MaxLogit max = of_threads[0];
  for (int i = 1; i < model_.num_threads(); i++) {
    const float value = of_threads[i].value;
    if (value > max.value || (std::isnan(value) && !std::isnan(max.value))) max = of_threads[i];
  }
  return max.token;
}
