// Memory nodes: on machines with several, memory is fastest for the processors of its own node.
#pragma once
#include <cstdint>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#endif

// The nodes of a model's threads, and of the processors of this machine; none where there is one node.
struct Nodes {
  const int32_t* of_threads = nullptr;
  const int32_t* of_processors = nullptr;  // -1 for a processor that the process may not use
  int num_processors = 0;

  bool are_several() const { return of_threads; }
  bool share(int thread, int other) const { return !of_threads || of_threads[thread] == of_threads[other]; }
};

// While this lives, the thread that made it runs on the processors of its node alone.
class StayOnNode {
 public:
  StayOnNode(const Nodes& nodes, int thread) {
#if defined(__linux__)
    if (!nodes.are_several()) return;
    const size_t bytes = CPU_ALLOC_SIZE(nodes.num_processors);
    std::vector<uint8_t> wanted(bytes);
    before_.resize(bytes);
    if (sched_getaffinity(0, bytes, (cpu_set_t*)before_.data())) {  // there are more processors than Python has counted
      before_.clear();
      return;
    }
    for (int i = 0; i < nodes.num_processors; i++)
      if (nodes.of_processors[i] == nodes.of_threads[thread]) CPU_SET_S((size_t)i, bytes, (cpu_set_t*)wanted.data());
    sched_setaffinity(0, bytes, (const cpu_set_t*)wanted.data());  // where the system refuses it, nothing is gained
#else
    (void)nodes, (void)thread;
#endif
  }
  ~StayOnNode() {
#if defined(__linux__)
    if (!before_.empty()) sched_setaffinity(0, before_.size(), (const cpu_set_t*)before_.data());
#endif
  }
  StayOnNode(const StayOnNode&) = delete;

 private:
  std::vector<uint8_t> before_;
};
