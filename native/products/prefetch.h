// Prefetching of weights and of the KV cache during products. Included by products.h and products_amx.h.
#pragma once
#include "kernels/kernels.h"
#include "products/tile_bytes.h"
#include "vector/vector.h"

namespace {

// Weights are prefetched into the first-level cache, and products of L2_MIN_TOKENS tokens and more prefetch them earlier into the
// second-level cache, too.
#if defined(__AMX_INT8__)
// The hardware prefetcher of these processors does not reach far enough ahead.
constexpr int L1_DISTANCE = 6144, L2_DISTANCE = 0, L2_MIN_TOKENS = 1;
#elif defined(TM_AVX2) && !defined(TM_VNNI)
// Products of one token take as long as their reads here, and the hardware prefetcher waits for them: decoding is faster by 5
// (bfloat16, 4 bits) to 35 % (8 bits) with both prefetches.
constexpr int L1_DISTANCE = 4096, L2_DISTANCE = 16384, L2_MIN_TOKENS = 1;
#else
// Codes of superblocks read by one or two tokens come at 0.98 of a plain read with one prefetch, at 0.86 to 0.9 with two or none.
// With eight tokens the instructions in flight are mostly arithmetic, and either prefetch alone is slower by a tenth to a third.
constexpr int L1_DISTANCE = 4096, L2_DISTANCE = 16384, L2_MIN_TOKENS = 3;
#endif

// For a product of N tokens. COLD: these are the first tokens that read the weights, which have to come from memory.
template <int N, bool COLD> TM_INLINE void prefetch(const void* l1, const void* l2) {
  if (COLD && L2_DISTANCE && N >= L2_MIN_TOKENS) TM_PREFETCH(l2, 2);
  TM_PREFETCH(l1, 3);
}
template <int N, bool COLD> TM_INLINE void prefetch(const void* weights) {
  prefetch<N, COLD>((const uint8_t*)weights + L1_DISTANCE, (const uint8_t*)weights + L2_DISTANCE);
}

// A block of 64 inputs in each of R tiles that are read side by side. The tiles lie one behind the other, `size` bytes each;
// BLOCK is the size of a block. IS_SUPER: blocks share heads.
template <int R, int N, bool COLD, int BLOCK, bool IS_SUPER> class TileBlock {
 public:
  TileBlock(const uint8_t* tiles, int64_t size, int block)
      : block_(tiles + block_at(block, BLOCK, IS_SUPER)),
        head_(IS_SUPER ? tiles + head_at(block, BLOCK) : block_),
        l1_(tiles + address_after(L1_DISTANCE, size, block)),
        l2_(tiles + address_after(L2_DISTANCE, size, block)),
        size_(size) {}
  const uint8_t* at(int r, int offset) const { return block_ + r * size_ + offset; }
  const uint8_t* head(int r) const { return head_ + r * size_; }
  // Always inlined: gcc takes a function that does nothing but prefetch for one without effect, and may leave out its calls.
  __attribute__((always_inline)) void prefetch_ahead(int offset) const {
    for (int r = 0; r < R; r++) prefetch<N, COLD>(l1_ + r * size_ + offset, l2_ + r * size_ + offset);
  }

 private:
  // The address that is read `bytes` bytes after this block: in the same tiles, or in the R tiles behind them.
  static int64_t address_after(int bytes, int64_t size, int block) {
    if (R == 1) return block_at(block, BLOCK, IS_SUPER) + bytes;
    int64_t at = block_at(block + (bytes + R * BLOCK - 1) / (R * BLOCK), BLOCK, IS_SUPER), passed = 0;
    for (; at >= size; at -= size) passed += R * size;
    return passed + at;
  }

  const uint8_t *block_, *head_, *l1_, *l2_;
  int64_t size_;
};

// Prefetches the next PREFETCH_BYTES of the KV cache into the second-level cache. Products of integer weights with eight tokens
// leave memory idle.
template <bool PREFETCHES_KV> TM_INLINE void prefetch_kv(const uint8_t*& at) {
  if (!PREFETCHES_KV) return;
  for (int i = 0; i < PREFETCH_BYTES; i += 64) TM_PREFETCH(at + i, 2);
  at += PREFETCH_BYTES;
}

}  // namespace
