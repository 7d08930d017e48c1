// The result of tm_make: a model with its threads and all memory that a step needs. A step is planned by the calling thread and
// then computed by all threads together.
#pragma once
#include <memory>
#include <vector>

#include "plan/model.h"
#include "plan/multi_step.h"
#include "plan/own_units.h"
#include "plan/step_plan.h"
#include "plan/work_queues.h"
#include "ranks/ranks.h"
#include "step/expert_routing.h"
#include "step/step_memory.h"
#include "step/thread_scratch.h"
#include "threads/threads.h"

class Executor {
 public:
  explicit Executor(const TmModel& description);
  void run(const TmStep& step);
  // Called by every other rank: computes the steps of rank 0 until rank 0 ends.
  void follow();

 private:
  void compute(const TmStep& step);
  void run_pass(const TmStep& pass, const int64_t* logit_rows);
  void fill_queues();

  Model model_;
  Threads threads_;
  OwnUnits own_units_;
  Ranks ranks_;
  MultiStep multi_step_;
  StepPlan plan_;
  WorkQueues queues_;
  StepMemory memory_;
  ExpertRouting routing_;
  std::vector<ThreadScratch> scratch_;  // [thread]
};
