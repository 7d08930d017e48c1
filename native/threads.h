// A few threads that run the same function together and meet at barriers. The caller is one of them.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

class Threads {
 public:
  // Throws std::system_error where the system gives no thread.
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;

  int count() const { return count_; }
  // work(thread number), on every thread at once; returns when all are done.
  void run(const std::function<void(int)>& work);
  // Called by every thread from inside run: none goes on before all have come.
  void meet();

 private:
  void serve(int number);
  void wait_for_work(uint32_t seen);

  const int count_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};    // grows by one with each run; workers wait for it
  alignas(64) std::atomic<int> sleeping_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> meeting_{0};  // grows by one with each barrier passed
  std::atomic<bool> leaving_{false};
};
