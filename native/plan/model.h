// A model as it stays for all steps: its shape, its operations, the kernels of this processor, and how the units of every
// matrix are divided among the threads. Built once by tm_make from what Python describes; the threads only read it.
#pragma once
#include <algorithm>
#include <vector>

#include "abi.h"
#include "kernels/kernels.h"

constexpr int NUM_BUFFERS = 5;  // enum TmBuffer

// What an activation buffer must hold for the linears that read it.
struct BufferLayout {
  int width = 0;    // inputs of those linears
  int formats = 0;  // bit 1 << Format for each format that one of them reads
};

struct Model {
  explicit Model(const TmModel& description);

  TmModel shape;
  std::vector<TmOp> ops;
  const Kernels& kernels;
  int head_width;  // head_dim, padded to a multiple of TILE
  int group;       // query heads of one kv head
  int max_experts = 0, max_chosen = 0;
  BufferLayout buffers[NUM_BUFFERS];
  std::vector<std::vector<std::vector<int>>> shares;  // [op][thread]: the units that this thread computes first
  std::vector<const TmOp*> next_attention;            // [op]: the first attention from this operation on, or null

  int64_t hidden_stride() const { return rounded(shape.hidden, PAD); }
  int64_t attended_width() const { return (int64_t)shape.num_heads * shape.head_dim; }
  int64_t attended_stride() const { return rounded(attended_width(), PAD); }

  // Bytes of one head in a cached row.
  int64_t head_bytes() const { return format_bytes(shape.cache_format) * (int64_t)shape.head_dim; }

  // The first position that a query at `position` attends to.
  static int64_t first_visible(const TmOp& op, int64_t position) {
    return op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
  }

 private:
  void lay_out_buffers();
  std::vector<std::vector<int>> divide(const TmOp& op) const;
  std::vector<std::vector<int>> divide_experts(const TmOp& op) const;
  std::vector<std::vector<int>> divide_by_cost(const std::vector<int64_t>& cost) const;
};

// The kernels of a build by its name, "" for the best that this processor runs. std::runtime_error where there is none.
const Kernels& find_kernels(const char* wanted);
