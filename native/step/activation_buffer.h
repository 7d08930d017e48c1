// The activations that linears read, [tokens, width] in every format that one of them reads. Widths are padded to PAD. The width
// belongs to the present contents, and is at most the width for which memory was reserved.
#pragma once
#include "kernels/kernels.h"
#include "plan/model.h"
#include "step/aligned_buffer.h"

class ActivationBuffer {
 public:
  void reserve(const BufferLayout& layout, int64_t tokens) {
    formats_ = layout.formats, width_ = (int)rounded(layout.width, PAD);
    const int64_t groups = width_ / GROUP;
    if (has(AS_FLOAT32)) floats_.reserve(tokens * width_);
    if (has(AS_BFLOAT16)) bfloats_.reserve((tokens + TILE - 1) * width_);  // see Activations
    if (has(AS_INT8)) {
      codes_.reserve(tokens * width_), scales_.reserve(tokens * groups);
      scaled_sums_.reserve(tokens * groups), offsets_.reserve(tokens * groups), first_offsets_.reserve(tokens * groups);
    }
  }

  // As `reserve`, in memory that ranks share, with room for every format.
  void lie_in(SharedMemory& memory, const BufferLayout& layout, int64_t tokens) {
    const int64_t width = rounded(layout.width, PAD), groups = width / GROUP;
    floats_.lie_in(memory, tokens * width), bfloats_.lie_in(memory, (tokens + TILE - 1) * width);
    codes_.lie_in(memory, tokens * width);
    for (auto* list : {&scales_, &scaled_sums_}) list->lie_in(memory, tokens * groups);
    for (auto* list : {&offsets_, &first_offsets_}) list->lie_in(memory, tokens * groups);
  }

  Activations as(int format, int width) const {
    return {format,        width,          floats_.get(), bfloats_.get(), codes_.get(),
            scales_.get(), scaled_sums_.get(), offsets_.get(), first_offsets_.get(), nullptr};
  }

  // Writes columns [from, to) of the tokens [first, first + count) in every format. Rows of x begin at column `from`.
  void store(const Kernels& kernels, const float* x, int64_t stride, int first, int count, int from, int to, int width) const {
    for (int format = 0; format < 3; format++)
      if (has(format)) kernels.convert(x, stride, as(format, width), first, count, from, to);
  }

  // Copies a row of the contents of a buffer that has at least these formats. width: of both contents, a multiple of PAD.
  void copy_row(int64_t row, const ActivationBuffer& from, int64_t from_row, int64_t width) {
    const int64_t groups = width / GROUP;
    if (has(AS_FLOAT32)) copy(floats_, row, from.floats_, from_row, width);
    if (has(AS_BFLOAT16)) copy(bfloats_, row, from.bfloats_, from_row, width);
    if (has(AS_INT8)) {
      copy(codes_, row, from.codes_, from_row, width), copy(scales_, row, from.scales_, from_row, groups);
      copy(scaled_sums_, row, from.scaled_sums_, from_row, groups), copy(offsets_, row, from.offsets_, from_row, groups);
      copy(first_offsets_, row, from.first_offsets_, from_row, groups);
    }
  }

 private:
  bool has(int format) const { return formats_ & 1 << format; }

  template <typename T>
  static void copy(AlignedBuffer<T>& to, int64_t row, const AlignedBuffer<T>& from, int64_t from_row, int64_t width) {
    memcpy(to.get() + row * width, from.get() + from_row * width, sizeof(T) * (size_t)width);
  }

  int formats_ = 0, width_ = 0;
  AlignedBuffer<float> floats_, scales_, scaled_sums_;
  AlignedBuffer<uint16_t> bfloats_;
  AlignedBuffer<int8_t> codes_;
  AlignedBuffer<int32_t> offsets_, first_offsets_;
};
