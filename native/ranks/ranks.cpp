#include "ranks/ranks.h"

#include <chrono>
#include <stdexcept>
#include <string>

#include "step/step_memory.h"
#include "step/expert_routing.h"

namespace {

constexpr auto LOOK_AGAIN = std::chrono::microseconds(200);  // while ranks load

SharedStep place_step(SharedMemory& memory, const Model& model) {
  const TmModel& m = model.shape;
  const int64_t tokens = m.max_tokens;
  SharedStep step{};
  step.counts = memory.take<int32_t>(16);
  for (int64_t** list : {&step.tokens, &step.positions, &step.slots, &step.rows}) *list = memory.take<int64_t>(tokens);
  step.spans = memory.take<TmSpan>(tokens), step.adapters = memory.take<const TmAdapter*>(m.num_ranks * tokens);
  step.saves = memory.take<TmSave>(tokens);
  step.span_slots = memory.take<int64_t>(tokens * m.num_positions);
  step.stops = memory.take<int64_t>(m.vocab), step.logits = memory.take<float>(tokens * m.vocab);
  step.given = memory.take<float>(tokens * model.given_width);
  return step;
}

template <typename T>
void copy(T* to, const T* from, int64_t count) {
  if (count) memcpy((void*)to, from, sizeof(T) * (size_t)count);
}

}  // namespace

Ranks::Ranks(Model& model, Threads& threads)
    : threads_(threads),
      shape_(model.shape),
      rank_(model.shape.rank),
      num_ranks_(model.shape.num_ranks),
      num_threads_(model.num_threads()),
      given_width_(model.given_width),
      memory_(model.shape.shared) {
  if (num_ranks_ == 1) return;
  header_ = memory_.take<RanksHeader>(1);
  step_ = place_step(memory_, model);
  counters_ = memory_.take<std::atomic<int>>((int64_t)model.ops.size());
  max_logits_ = memory_.take<MaxLogit>((int64_t)shape_.max_tokens * num_threads_);
  for (int i = 0; i < NUM_BUFFERS; i++) header_->formats[i].fetch_or(model.buffers[i].formats);
  for (header_->num_joined.fetch_add(1); header_->num_joined.load() < num_ranks_; std::this_thread::sleep_for(LOOK_AGAIN)) check();
  for (int i = 0; i < NUM_BUFFERS; i++) model.buffers[i].formats = header_->formats[i].load();
}

Ranks::~Ranks() {
  if (!header_ || rank_) return;
  header_->stopping.store(1);
  header_->steps.add(true);
}

void Ranks::check() const {
  if (is_lost()) throw std::runtime_error("a rank has ended");
}

TmStep Ranks::publish(const TmStep& step) {
  check();
  int64_t num_slots = 0, num_saves = 0;
  for (int i = 0; i < step.num_spans; i++) {
    const TmSpan& span = step.spans[i];
    if (span.base < 0) num_slots += span.start + span.count;
    num_saves = std::max(num_saves, span.first_save + span.num_saves);
  }
  if (step.num_tokens > shape_.max_tokens || step.num_stops > shape_.vocab || step.num_rows > shape_.max_tokens ||
      num_slots > shape_.max_tokens * shape_.num_positions || num_saves > shape_.max_tokens)
    throw std::invalid_argument("a step has more tokens than the ranks have memory for: " + std::to_string(step.num_tokens));
  const int32_t counts[] = {step.num_tokens, step.num_spans, step.rows ? step.num_rows : -1, step.num_stops, step.num_rows};
  copy(step_.counts, counts, 5);
  copy(step_.tokens, step.tokens, step.num_tokens), copy(step_.positions, step.positions, step.num_tokens);
  copy(step_.slots, step.slots, step.num_tokens), copy(step_.stops, step.stops, step.num_stops);
  if (step.rows) copy(step_.rows, step.rows, step.num_rows);
  copy(step_.saves, step.saves, num_saves), copy_spans(step);
  copy(step_.given, step.given, step.num_tokens * given_width_);
  header_->steps.add(true);
  TmStep published = step;
  published.logits = step_.logits;
  return published;
}

void Ranks::copy_spans(const TmStep& step) {
  int64_t* slots = step_.span_slots;
  for (int i = 0; i < step.num_spans; i++) {
    const TmSpan& span = step_.spans[i] = step.spans[i];
    for (int64_t rank = 0; rank < num_ranks_; rank++)
      step_.adapters[rank * shape_.max_tokens + i] = span.adapter ? span.adapter->in_ranks[rank] : nullptr;
    if (span.base >= 0) continue;
    copy(slots, span.slots, span.start + span.count);
    slots += span.start + span.count;
  }
}

void Ranks::give_logits(const TmStep& step) const {
  copy(step.logits, step_.logits, (int64_t)step.num_rows * shape_.vocab);
}

bool Ranks::wait_for_step() {
  header_->steps.wait_while(steps_seen_++, true);
  return !header_->stopping.load() && !is_lost();
}

TmStep Ranks::step() {
  const int32_t* counts = step_.counts;
  tokens_.assign(step_.tokens, step_.tokens + counts[0]), spans_.assign(step_.spans, step_.spans + counts[1]);
  const int64_t* slots = step_.span_slots;
  const TmAdapter* const* adapter = step_.adapters + (int64_t)rank_ * shape_.max_tokens;
  for (TmSpan& span : spans_) {
    span.adapter = *adapter++;
    if (span.base >= 0) continue;
    span.slots = slots, slots += span.start + span.count;
  }
  TmStep step{};
  step.num_tokens = counts[0], step.num_spans = counts[1], step.num_stops = counts[3], step.num_rows = counts[4];
  step.tokens = tokens_.data(), step.positions = step_.positions, step.slots = step_.slots;
  step.rows = counts[2] < 0 ? nullptr : step_.rows, step.spans = spans_.data(), step.saves = step_.saves;
  step.stops = step_.stops, step.logits = step_.logits, step.given = step_.given;
  return step;
}

void Ranks::finish() {
  if (header_ && !header_->ranks.meet(num_ranks_, &header_->lost)) check();
}

int64_t shared_bytes(const TmModel& description) {
  TmModel counted = description;
  counted.shared = nullptr;
  const Model model(counted);
  SharedMemory memory(nullptr);
  memory.take<RanksHeader>(1), place_step(memory, model);
  memory.take<std::atomic<int>>((int64_t)model.ops.size());
  memory.take<MaxLogit>((int64_t)counted.max_tokens * model.num_threads());
  StepMemory().lie_in(model, memory);
  ExpertRouting().lie_in(model, memory);
  return memory.num_bytes();
}

void lose(void* shared) {
  RanksHeader& header = *(RanksHeader*)shared;
  header.lost.store(1);
  header.steps.add(true);
}
