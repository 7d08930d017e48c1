// The functions of abi.h. No exception leaves them.
#include "abi.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "kernels/builds.h"
#include "kernels/sample_scratch.h"
#include "plan/checks.h"
#include "products/tile_bytes.h"
#include "ranks/ranks.h"
#include "step/executor.h"

namespace {

void explain(char* why, int bytes, const char* reason) {
  if (why && bytes > 0) std::snprintf(why, (size_t)bytes, "%s", reason);
}

const Kernels* kernels_or_null(const char* build) {
  try {
    return &find_kernels(build);
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

extern "C" {

int tm_abi(void) { return TM_ABI; }

const char* tm_best_build(void) { return find_kernels("").name; }

const char* tm_features(void) { return processor_features().c_str(); }

void tm_builds(const char* features, char* names, int bytes) {
  std::string all;
  for (const Kernels* build : builds_for(features ? features : processor_features())) all += (all.empty() ? "" : " ") + std::string(build->name);
  explain(names, bytes, all.c_str());
}

int tm_choose_build(const char* build, char* why, int why_bytes) {
  try {
    choose_build(build);
    return 0;
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return 1;
  }
}

void* tm_make(const TmModel* model, char* why, int why_bytes) {
  try {
    check_model(*model);
    return new Executor(*model);
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return nullptr;
  }
}

int tm_run(void* model, const TmStep* step, char* why, int why_bytes) {
  try {
    ((Executor*)model)->run(*step);
    return 0;
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return 1;
  }
}

void tm_free(void* model) { delete (Executor*)model; }

int64_t tm_shared_bytes(const TmModel* model) { return shared_bytes(*model); }

int tm_follow(void* model, char* why, int why_bytes) {
  try {
    ((Executor*)model)->follow();
    return 0;
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return 1;
  }
}

void tm_lose(void* shared) { lose(shared); }

void tm_argmax(const float* values, int64_t rows, int64_t size, int64_t* indices, float* max_values) {
  const Kernels& kernels = find_kernels("");
  for (int64_t row = 0; row < rows; row++, values += size) {
    indices[row] = kernels.argmax(values, size);
    max_values[row] = values[indices[row]];
  }
}

int tm_sample(const float* logits, int64_t rows, int64_t size, TmSample* samples) {
  const Kernels& kernels = find_kernels("");
  std::unique_ptr<uint8_t[]> scratch;
  for (int64_t row = 0; row < rows; row++, logits += size) {
    if (samples[row].temperature > 0 && !scratch) scratch.reset(new (std::nothrow) uint8_t[(size_t)sample_scratch_bytes(size)]);
    if (samples[row].temperature > 0 && !scratch) return 1;
    kernels.sample(logits, size, samples + row, scratch.get());
  }
  return 0;
}

int tm_score(const float* logits, int64_t rows, int64_t size, TmScore* scores, int64_t num_top, int64_t* top) {
  const Kernels& kernels = find_kernels("");
  std::unique_ptr<uint8_t[]> scratch;
  if (num_top) scratch.reset(new (std::nothrow) uint8_t[(size_t)sample_scratch_bytes(size)]);
  if (num_top && !scratch) return 1;
  for (int64_t row = 0; row < rows; row++, logits += size, top += num_top)
    kernels.score(logits, size, scores + row, num_top, top, scratch.get());
  return 0;
}

int tm_fit_grid(const char* build, const float* numbers, int64_t rows, int inputs, int bits, int kind, const float* weights,
                float* scratch, float* scales, float* minimums) {
  const Kernels* kernels = kernels_or_null(build);
  if (kernels) kernels->fit_grid(numbers, rows, inputs, bits, kind, weights, scratch, scales, minimums);
  return !kernels;
}

int tm_round_group(const char* build, const float* numbers, int64_t rows, int inputs, int bits, const float* scales,
                   const float* minimums, const float* factor, float* scratch, uint8_t* codes, float* errors) {
  const Kernels* kernels = kernels_or_null(build);
  if (kernels) kernels->round_group(numbers, rows, inputs, bits, scales, minimums, factor, scratch, codes, errors);
  return !kernels;
}

int64_t tm_tile_bytes(int scheme, int inputs) { return tile_bytes(scheme, inputs); }
}
