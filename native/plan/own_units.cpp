#include "plan/own_units.h"

#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include "products/tile_bytes.h"

namespace {

int64_t data_bytes(const TmOp& op, const TmUnit& unit, int scheme) {
  return (unit.count + TILE - 1) / TILE * tile_bytes(scheme, op.inputs);
}

// Gives back the pages that lie wholly within [begin, end). Pages of a file are read again if they are needed.
void give_back(const uint8_t* begin, const uint8_t* end) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t first = ((uintptr_t)begin + page - 1) / page * page, last = (uintptr_t)end / page * page;
  if (first < last) madvise((void*)first, last - first, MADV_DONTNEED);
}

}  // namespace

void OwnUnits::Unmap::operator()(uint8_t* memory) const { munmap(memory, num_bytes); }

OwnUnits::OwnUnits(Model& model, Threads& threads) {
  if (!model.nodes.are_several()) return;
  for (size_t number = 0; number < model.ops.size(); number++)
    if (model.ops[number].kind == TM_LINEAR) move(model, number, threads);
  for (TmOp& op : model.ops) {  // a tied embedding has the units of the head
    const auto moved = units_.find(op.units);
    if (moved != units_.end()) op.units = moved->second.data();
  }
}

void OwnUnits::move(Model& model, size_t number, Threads& threads) {
  const TmOp& op = model.ops[number];
  std::vector<TmUnit>& units = units_[op.units];
  units.assign(op.units, op.units + op.num_units);
  const int num_matrices = std::max(1, op.experts), each = op.num_units / num_matrices;
  std::vector<int64_t> sizes((size_t)threads.count(), 0);
  const uint8_t *begin = nullptr, *end = nullptr;
  for (int thread = 0; thread < threads.count(); thread++)
    for (int matrix = 0; matrix < num_matrices; matrix++)
      for (int i : model.shares[number][(size_t)thread]) {
        const TmUnit& unit = units[(size_t)(matrix * each + i)];
        const int64_t data = data_bytes(op, unit, unit.scheme), gate = unit.gate ? data_bytes(op, unit, unit.gate_scheme) : 0;
        sizes[(size_t)thread] += data + gate;
        if (!begin || unit.data < begin) begin = unit.data;
        end = std::max({end, unit.data + data, unit.gate ? unit.gate + gate : nullptr});
      }
  const size_t first = memory_.size();
  for (int64_t size : sizes) {
    const size_t num_bytes = (size_t)std::max<int64_t>(size, 1);
    void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_.emplace_back((uint8_t*)memory, Unmap{num_bytes});
  }
  threads.run([&](int thread) {
    const StayOnNode stay(model.nodes, thread);
    uint8_t* to = memory_[first + (size_t)thread].get();
    const auto copy = [&](const uint8_t*& data, int64_t bytes) {
      memcpy(to, data, (size_t)bytes);
      data = to, to += bytes;
    };
    for (int matrix = 0; matrix < num_matrices; matrix++)
      for (int i : model.shares[number][(size_t)thread]) {
        TmUnit& unit = units[(size_t)(matrix * each + i)];
        copy(unit.data, data_bytes(op, unit, unit.scheme));
        if (unit.gate) copy(unit.gate, data_bytes(op, unit, unit.gate_scheme));
      }
  });
  give_back(begin, end);
}
