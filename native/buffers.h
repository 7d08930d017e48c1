// Memory that a step works in, and activations in every form that the products read.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "abi.h"
#include "kernels.h"

constexpr int NUM_BUFFERS = 5;

inline int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that starts on a cache line and is zero; grows, never shrinks.
template <typename T>
class Room {
 public:
  T* at_least(int64_t count) {
    if (count > count_) {
      T* fresh = (T*)std::aligned_alloc(64, (size_t)rounded(count * (int64_t)sizeof(T), 64));
      if (!fresh) throw std::bad_alloc();
      memset((void*)fresh, 0, (size_t)rounded(count * (int64_t)sizeof(T), 64));
      std::free(held_), held_ = fresh, count_ = count;
    }
    return held_;
  }
  T* get() const { return held_; }
  Room() = default;
  Room(const Room&) = delete;
  ~Room() { std::free(held_); }

 private:
  T* held_ = nullptr;
  int64_t count_ = 0;
};

// Activations of one buffer, in every form that some linear reads.
struct Buffer {
  int k = 0, forms = 0;
  Room<float> floats, scales, moments;
  Room<uint16_t> bfloats;
  Room<int8_t> bytes;
  Room<int32_t> offsets;

  void make(int64_t tokens) {
    const int64_t padded = rounded(k, PAD), groups = padded / GROUP;
    if (forms & 1 << AS_FLOAT32) floats.at_least(tokens * padded);
    if (forms & 1 << AS_BFLOAT16) bfloats.at_least((tokens + TILE - 1) * padded);
    if (forms & 1 << AS_INT8) {
      bytes.at_least(tokens * padded), scales.at_least(tokens * groups);
      moments.at_least(tokens * groups), offsets.at_least(tokens * groups);
    }
  }
  template <typename T>
  static void copy_row(Room<T>& to, int64_t to_row, const Room<T>& from, int64_t from_row, int64_t width) {
    memcpy(to.get() + to_row * width, from.get() + from_row * width, sizeof(T) * (size_t)width);
  }
  // The same row in every form.
  void take(int64_t row, const Buffer& other, int64_t other_row) {
    const int64_t padded = rounded(k, PAD), groups = padded / GROUP;
    if (forms & 1 << AS_FLOAT32) copy_row(floats, row, other.floats, other_row, padded);
    if (forms & 1 << AS_BFLOAT16) copy_row(bfloats, row, other.bfloats, other_row, padded);
    if (forms & 1 << AS_INT8) {
      copy_row(bytes, row, other.bytes, other_row, padded), copy_row(scales, row, other.scales, other_row, groups);
      copy_row(moments, row, other.moments, other_row, groups), copy_row(offsets, row, other.offsets, other_row, groups);
    }
  }
  Act as(int form) const {
    return {form, (int)rounded(k, PAD), floats.get(), bfloats.get(), bytes.get(), scales.get(), moments.get(), offsets.get(), nullptr};
  }
  // Columns of some tokens' rows; x has zeros up to the padded width.
  void put(const Kernels& kernels, const float* x, int64_t stride, int first, int count, int from, int to) const {
    for (int form = 0; form < 3; form++)
      if (forms & 1 << form) kernels.put(x, stride, as(form), first, count, from, to);
  }
};

inline int form_of(int scheme) { return scheme == FLOAT32 ? AS_FLOAT32 : scheme == BFLOAT16 ? AS_BFLOAT16 : AS_INT8; }

constexpr int MADE = 64 * 64;  // outputs of products that wait for what follows on them

// Those of one unit for some tokens, and where they lie in a desk's tile and gate, `stride` numbers for each token.
struct Made {
  const TmUnit* unit;
  int first, count, at, stride;
};

// What one thread has for itself. made: whose products lie in tile and gate, made_size numbers. coming: the attention whose
// cached rows are fetched while products are computed, or null; stretch, of_values, offset: how far.
struct Desk {
  const TmOp* coming = nullptr;
  size_t stretch = 0;
  bool of_values = false;
  int64_t offset = 0;
  Buffer buffers[NUM_BUFFERS];
  Room<float> row, tile, gate, values, best, total;
  Room<uint8_t> attend;
  Made made[MADE / GROUP];
  int num_made = 0, made_size = 0;
  std::vector<const float*> q;
  std::vector<int64_t> first, last;
};
