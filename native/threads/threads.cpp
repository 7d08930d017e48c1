#include "threads/threads.h"

Threads::Threads(int count) : count_(count) {
  try {
    for (int thread = 1; thread < count; thread++) threads_.emplace_back([this, thread] { serve(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() { stop(); }

void Threads::stop() {
  stopping_ = true;
  runs_.add();
  for (auto& thread : threads_) thread.join();
}

void Threads::run(const std::function<void(int)>& work) {
  work_ = &work;
  runs_.add();
  work(0);
  ends_.meet(count_);  // all other threads have returned from work
}

void Threads::serve(int thread) {
  for (uint32_t runs_seen = 0;;) {
    runs_.wait_while(runs_seen++);
    if (stopping_.load()) return;
    (*work_)(thread);
    ends_.meet(count_);
  }
}
