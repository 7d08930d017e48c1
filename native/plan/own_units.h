// Units of matrices where the threads read them: on a machine with several memory nodes, each thread copies its units into
// memory that it touches first, which then lies on its node.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "plan/model.h"
#include "threads/threads.h"

class OwnUnits {
 public:
  // Moves the units of all linears and gives back the memory where they lay. Does nothing where there is one node.
  OwnUnits(Model& model, Threads& threads);

 private:
  void move(Model& model, size_t number, Threads& threads);

  struct Unmap {
    size_t num_bytes;
    void operator()(uint8_t* memory) const;
  };
  std::map<const TmUnit*, std::vector<TmUnit>> units_;
  std::vector<std::unique_ptr<uint8_t, Unmap>> memory_;
};
