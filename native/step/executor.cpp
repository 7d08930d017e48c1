#include "step/executor.h"

#include "plan/checks.h"
#include "step/worker.h"

Executor::Executor(const TmModel& description)
    : model_(description),
      threads_(description.num_threads),
      own_units_(model_, threads_),
      ranks_(model_, threads_),
      multi_step_(model_, ranks_.max_logits()),
      queues_(model_.ops.size(), description.num_threads, ranks_.counters(), model_.nodes),
      scratch_((size_t)description.num_threads) {
  if (!ranks_.are_several()) return;
  memory_.lie_in(model_, ranks_.memory());
  routing_.lie_in(model_, ranks_.memory());
}

void Executor::run(const TmStep& step) {
  check_step(model_.shape, step);
  check_adapters(model_, step);
  if (!ranks_.are_several()) return compute(step);
  compute(ranks_.publish(step));
  ranks_.give_logits(step);
}

void Executor::follow() {
  while (ranks_.wait_for_step()) compute(ranks_.step());
}

// A step that fails on one rank fails on all: the others would wait for it.
void Executor::compute(const TmStep& step) {
  try {
    if (!MultiStep::has_unknown(step)) return run_pass(step, nullptr), ranks_.finish();
    multi_step_.begin(step);
    while (const TmStep* pass = multi_step_.next_pass()) {
      run_pass(*pass, multi_step_.logit_rows());
      multi_step_.store_next_tokens();
    }
    ranks_.finish();
  } catch (...) {
    if (ranks_.are_several()) ranks_.lose();
    throw;
  }
}

// logit_rows: null where the step is one pass.
void Executor::run_pass(const TmStep& pass, const int64_t* logit_rows) {
  plan_.make(model_, pass, logit_rows);
  memory_.reserve(model_, plan_);
  routing_.reserve(model_, pass.num_tokens);
  for (ThreadScratch& scratch : scratch_) scratch.reserve(model_, plan_);
  fill_queues();
  threads_.run([this](int thread) {
    const StayOnNode stay(model_.nodes, thread);
    const Shared shared{model_, plan_, queues_, memory_, routing_, threads_, ranks_};
    Worker(shared, scratch_[(size_t)thread], thread).run();
    if (!plan_.logit_rows) return;
    multi_step_.find_max(ranks_.rank() * threads_.count() + thread);
    if (ranks_.are_several()) ranks_.meet();
  });
  ranks_.check();
}

void Executor::fill_queues() {
  for (size_t number = 0; number < model_.ops.size(); number++) {
    const TmOp& op = model_.ops[number];
    if (!ranks_.rank()) queues_.reset(number);
    if (op.kind == TM_LINEAR && op.experts) {  // once the experts are chosen
      for (size_t thread = 0; thread < scratch_.size(); thread++) queues_.fill(number, thread, 0);
    } else if (op.kind == TM_LINEAR) {
      const int64_t rounds = (plan_.step->num_tokens + tokens_per_round(op) - 1) / tokens_per_round(op);
      for (size_t thread = 0; thread < scratch_.size(); thread++)
        queues_.fill(number, thread, model_.shares[number][thread].size() * (uint64_t)rounds);
    } else if (op.kind == TM_RECUR) {
      const int slices = op.heads * (op.head_dim / op.columns), first = ranks_.rank() * threads_.count();
      for (int thread = 0; thread < threads_.count(); thread++) {
        const auto [from, to] = share_of(slices, first + thread, model_.num_threads());
        queues_.fill(number, (size_t)thread, (uint64_t)(to - from) * plan_.spans.size());
      }
    } else if (op.kind == TM_ATTEND) {
      const size_t first = (size_t)ranks_.rank() * scratch_.size();
      for (size_t thread = 0; thread < scratch_.size(); thread++)
        queues_.fill(number, thread, plan_.tasks_of[first + thread].size());
    }
  }
}
