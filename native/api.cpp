// The functions of abi.h.
#include "abi.h"

#include <cstdio>
#include <exception>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "model.h"

namespace {

void explain(char* why, int bytes, const char* reason) {
  if (why && bytes > 0) std::snprintf(why, (size_t)bytes, "%s", reason);
}

// Whether there is a matrix unit and the system lets this process use it: its registers take 8 KB of each thread that does.
bool ask_for_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned BFLOAT16 = 1u << 22, TILES = 1u << 24, INT8 = 1u << 25, ALL = BFLOAT16 | TILES | INT8;
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  unsigned a, b, c, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}

}  // namespace

int64_t tile_bytes(int scheme, int k) {
  const int64_t padded = rounded(k, PAD);
  switch (scheme) {
    case FLOAT32: return padded * TILE * 4;
    case BFLOAT16: return padded * TILE * 2;
    case Q8: return padded / PAD * (64 + 1024);
    case Q4:
    case Q4_PAIR: return padded / PAD * (64 + 512);
    case Q4_MIN: return padded / PAD * (128 + 512);
    default: return padded / PAD * (256 + 512);
  }
}

int64_t attend_scratch_bytes(int head_dim, int64_t rows) {
  const int64_t lanes = rounded(rows, TILE), tiles = lanes / TILE + rows;  // each row may be another head's
  const int64_t by_matrix = SPLIT * lanes * 6 + SPLIT * 64 * 2 + 1024 + 32 * head_dim + tiles * 32 * head_dim;
  const int64_t by_rows = rows * (SPLIT * 4 + rounded(4 * (head_dim + 16), 64)) + 16 * 4 * (head_dim + 4) + 16 * 4 * (head_dim + 16);
  return std::max(by_matrix, by_rows);
}

extern "C" {

int tm_abi(void) { return TM_ABI; }

const char* tm_best_build(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    static const bool amx = ask_for_amx();  // once: all models of a process take the same build
    return amx ? "amx" : "avx512";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return "avx2";
#endif
  return "portable";
}

void* tm_make(const TmModel* model, char* why, int why_bytes) {
  try {
    return new Model(*model);
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return nullptr;
  }
}

int tm_run(void* model, const TmStep* step, char* why, int why_bytes) {
  try {
    ((Model*)model)->run(*step);
    return 0;
  } catch (const std::exception& error) {
    explain(why, why_bytes, error.what());
    return 1;
  }
}

void tm_free(void* model) { delete (Model*)model; }

void tm_largest(const float* numbers, int64_t rows, int64_t size, int64_t* places, float* values) {
  static const Kernels& kernels = Model::find_build("");
  for (int64_t row = 0; row < rows; row++, numbers += size) {
    places[row] = kernels.largest(numbers, size);
    values[row] = numbers[places[row]];
  }
}

int64_t tm_tile_bytes(int scheme, int inputs) { return tile_bytes(scheme, inputs); }
}
