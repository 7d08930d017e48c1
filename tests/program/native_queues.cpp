// Work queues of four threads on two memory nodes: who may take from whom.
#include <cstdio>
#include <cstdlib>
#include <set>

#include "plan/work_queues.h"

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

int main() {
  const int32_t of_threads[] = {0, 0, 1, 1}, of_processors[] = {0, 1};
  for (int taker = 0; taker < 4; taker++) {
    WorkQueues queues(1, 4, nullptr, Nodes{of_threads, of_processors, 2});
    for (size_t thread = 0; thread < 4; thread++) queues.fill(0, thread, 5);
    std::set<int> owners;
    int count = 0;
    for (WorkItem item; (item = queues.take(0, taker)).owner >= 0; count++) owners.insert(item.owner);
    const int first = taker / 2 * 2;
    require(owners == std::set<int>{first, first + 1}, "a thread takes from its own node, and from both threads of it");
    require(count == 9, "all of its own, and of its neighbour's all but the last");
  }
  std::puts("ok");
}
