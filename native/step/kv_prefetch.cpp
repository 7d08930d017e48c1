// Prefetching of cached rows while products are computed. With eight or more tokens a product is bound by arithmetic and leaves
// memory idle; where attention tasks are assigned beforehand, a thread knows which rows its next attention reads.
#include "step/worker.h"

// Begins with the rows that this attention reads, if they are known and all of them are read.
void Worker::start_prefetch(const TmOp* attention) {
  const bool known = attention && !attention->window && !plan_.slots_of[(size_t)thread_].empty();
  scratch_.prefetch = {known ? attention : nullptr, 0, false, 0};
}

// The address of the next `bytes` bytes to prefetch, which may reach beyond the rows; null where nothing is left.
const uint8_t* Worker::next_prefetch(int64_t bytes) {
  KvPrefetch& at = scratch_.prefetch;
  if (!at.attention || !bytes) return nullptr;
  const int64_t row = model_.head_bytes(*at.attention, at.values) * at.attention->num_kv_heads;
  const std::vector<SlotRange>& ranges = plan_.slots_of[(size_t)thread_];
  const SlotRange& range = ranges[at.range];
  const uint8_t* rows = (const uint8_t*)(at.values ? at.attention->v_rows : at.attention->k_rows);
  const uint8_t* next = rows + range.slot * row + at.offset;
  const int64_t left = range.count * row - at.offset;
  at.offset += bytes;
  if (left <= bytes) {
    at.offset = 0, at.values = !at.values;
    if (!at.values && ++at.range == ranges.size()) at.attention = nullptr;
  }
  return 2 * left < bytes ? nullptr : next;
}
