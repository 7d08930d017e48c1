// The bytes of scratch memory that one attention job needs. attend.h and attend_amx.h divide it.
#pragma once
#include <algorithm>

#include "kernels/kernels.h"

// For all heads of a job together; `rows` are their queries.
inline int64_t attention_scratch_bytes(int head_dim, int64_t rows) {
  const int64_t lanes = rounded(rows, TILE), tiles = lanes / TILE + rows;  // each row may be another head's
  const int64_t by_matrix = SPLIT * lanes * 6 + SPLIT * 64 * 2 + 1024 + 32 * head_dim + tiles * 32 * head_dim;
  const int64_t by_rows = rows * (3 * SPLIT * 4 + rounded(4 * (head_dim + 16), 64)) + 16 * 4 * (2 * head_dim + 24);
  return std::max(by_matrix, by_rows);
}
