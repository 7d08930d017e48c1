// The functions of abi.h. No exception leaves them.
#include "abi.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

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

// Whether there is a matrix unit and the system lets this process use it. The system is asked because every thread that uses
// the unit needs 8 KB more to save its registers.
bool request_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned BFLOAT16 = 1u << 22, TILES = 1u << 24, INT8 = 1u << 25, ALL = BFLOAT16 | TILES | INT8;
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  unsigned a, b, c, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)
#if defined(__clang__) && defined(__linux__)
// Asked of the processor itself, because zig's runtime answers no to every __builtin_cpu_supports.
struct Features {
  unsigned basic = 0, extended = 0, vnni = 0, bfloat16 = 0;  // bits of leaves 1 (ecx), 7 (ebx, ecx) and 7.1 (eax)
  unsigned saved = 0;                                        // registers that the system saves
  Features() {
    unsigned a, b, c = 0, d, high;
    if (!__get_cpuid(1, &a, &b, &basic, &d) || !(basic & 1u << 27)) return;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    __get_cpuid_count(7, 0, &a, &extended, &vnni, &d);
    if (a >= 1) __get_cpuid_count(7, 1, &bfloat16, &b, &c, &d);
  }
};
bool has_avx2() {
  const Features have;
  return (have.saved & 0x6) == 0x6 && have.basic & 1u << 12 && have.basic & 1u << 29 && have.extended & 1u << 5;
}
bool has_avx512() {
  constexpr unsigned F = 1u << 16, DQ = 1u << 17, BW = 1u << 30, VL = 1u << 31, ALL = F | DQ | BW | VL;
  const Features have;
  return (have.saved & 0xe6) == 0xe6 && (have.extended & ALL) == ALL && have.vnni & 1u << 11 && have.bfloat16 & 1u << 5;
}
#else
bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif
#endif

}  // namespace

extern "C" {

int tm_abi(void) { return TM_ABI; }

const char* tm_best_build(void) {
#if defined(__x86_64__)
  if (has_avx512()) {
    static const bool amx = request_amx();  // once: all models of a process take the same build
    return amx ? "amx" : "avx512";
  }
  if (has_avx2()) return "avx2";
#elif defined(TM_WITH_DOTPROD) && defined(__linux__)
  constexpr unsigned long DOT_PRODUCTS = 1 << 20;  // HWCAP_ASIMDDP
  if (getauxval(AT_HWCAP) & DOT_PRODUCTS) return "dotprod";
#elif defined(TM_WITH_DOTPROD) && defined(__APPLE__)
  return "dotprod";  // every processor of Apple's computers has them
#endif
  return "portable";
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
  static const Kernels& kernels = find_kernels("");
  for (int64_t row = 0; row < rows; row++, values += size) {
    indices[row] = kernels.argmax(values, size);
    max_values[row] = values[indices[row]];
  }
}

int tm_sample(const float* logits, int64_t rows, int64_t size, TmSample* samples) {
  static const Kernels& kernels = find_kernels("");
  std::unique_ptr<uint8_t[]> scratch;
  for (int64_t row = 0; row < rows; row++, logits += size) {
    if (samples[row].temperature > 0 && !scratch) scratch.reset(new (std::nothrow) uint8_t[(size_t)sample_scratch_bytes(size)]);
    if (samples[row].temperature > 0 && !scratch) return 1;
    kernels.sample(logits, size, samples + row, scratch.get());
  }
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
