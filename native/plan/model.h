// A model as it stays for all steps: its shape, its operations, the kernels of this processor, and how the units of every
// matrix are divided among the threads. Built once by tm_make from Python's description; the threads only read it.
#pragma once
#include <algorithm>
#include <vector>

#include "abi.h"
#include "kernels/kernels.h"
#include "threads/nodes.h"

constexpr int NUM_BUFFERS = 6;  // enum TmBuffer
constexpr int MAX_STREAMS = 8;

// The contents of an activation buffer for the linears that read it.
struct BufferLayout {
  int width = 0;    // inputs of those linears
  int formats = 0;  // bit 1 << Format for each format that one of them reads
};

// The end of the columns of stored products that an operation writes.
int64_t stored_columns(const TmOp& op);

struct Model {
  explicit Model(const TmModel& description);

  TmModel shape;
  Nodes nodes;
  std::vector<TmOp> ops;
  const Kernels& kernels;
  int max_heads = 0, max_head_dim = 0, max_group = 0;  // of all layers
  std::vector<int> kv_heads;            // the different numbers of kv heads
  int max_experts = 0, max_chosen = 0, max_by_head = 0;
  int64_t max_normed = 0;               // stored columns that a norm takes as rows of TM_LATENT
  int64_t stored_stride = 0;            // columns of stored products, padded to PAD
  int64_t inputs_stride = 0;            // columns of TM_INPUTS, padded to PAD
  int streams = 0;                      // of a token; 0 where the residual stream is all
  int64_t max_plain = 0;                // columns of a head's query that TM_LATENT_ROWS gathers
  int64_t max_coded = 0;                // columns of a coded table of TM_INPUTS
  int64_t max_kept = 0;                 // columns of a sparse TM_GATE
  int64_t max_pair = 0, given_width = 0;  // columns of TM_PAIR, and of the rows that it is given
  int64_t max_before = 0, max_gated = 0;  // inputs that a task of a convolution begins with; columns of TM_GATE
  BufferLayout buffers[NUM_BUFFERS];
  std::vector<std::vector<std::vector<int>>> shares;  // [op][thread of this rank]: the units that this thread computes first
  std::vector<const TmOp*> next_attention;            // [op]: the first attention from this operation on, or null
  std::vector<int> first_matrix;                      // [op], and the number of all matrices: see TmAdapter

  // Pairs of a token and an expert, or a head, in TM_GATHERED.
  int64_t max_pairs() const { return std::max(max_chosen, max_by_head); }
  int64_t hidden_stride() const { return rounded(shape.hidden, PAD); }
  // Threads of all ranks, which are numbered rank by rank.
  int num_threads() const { return shape.num_ranks * shape.num_threads; }

  // Sizes in the layer to which `op`, TM_QKV or an attention, belongs: query heads of one kv head; head_dim and value_dim,
  // padded to a multiple of TILE; entries of the results of all heads; bytes of one head in a cached row of K or V.
  static int group(const TmOp& op) { return op.heads / op.num_kv_heads; }
  static int head_width(const TmOp& op) { return (int)rounded(op.head_dim, TILE); }
  static int value_width(const TmOp& op) { return (int)rounded(op.value_dim, TILE); }
  static int64_t attended_width(const TmOp& op) { return (int64_t)op.heads * op.value_dim; }
  int64_t bias_stride() const { return 2 * shape.num_positions + 16; }  // of TmOp.distance_bias
  int64_t head_bytes(const TmOp& op, bool is_v) const {
    return format_bytes(shape.cache_format) * (int64_t)(is_v ? op.value_dim : op.head_dim);
  }

  // The largest of these over all layers.
  int max_head_width() const { return (int)rounded(max_head_dim, TILE); }
  int64_t attended_stride() const { return rounded((int64_t)max_heads * max_head_dim, PAD); }

  // The end of the positions to which a query at `position` of a text of `length` tokens attends.
  static int64_t end_of_visible(const TmOp& op, int64_t position, int64_t length) {
    if (!op.both_ways) return position + 1;
    return op.window ? std::min(length, position + op.window) : length;
  }

  // The first position to which a query at `position` attends.
  static int64_t first_visible(const TmOp& op, int64_t position) {
    return op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
  }

 private:
  void lay_out_buffers();
  std::vector<std::vector<int>> divide(const TmOp& op) const;
  std::vector<std::vector<int>> divide_by_cost(const std::vector<int>& own, const std::vector<int64_t>& cost) const;
};
