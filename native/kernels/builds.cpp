#include "kernels/builds.h"

#include <atomic>
#include <sstream>
#include <stdexcept>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace {

struct Build {
  const char* needs;
  const Kernels* kernels;
};

#define TM_NEEDS_AVX2 "avx2 fma f16c"
#define TM_NEEDS_AVX512 TM_NEEDS_AVX2 " avx512f avx512bw avx512vl avx512dq"

const Build BUILDS[] = {  // the best first
#if defined(TM_WITH_AMX)
    {TM_NEEDS_AVX512 " avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", &kernels_amx},
#endif
#if defined(TM_WITH_AVX512)
    {TM_NEEDS_AVX512 " avx512_vnni avx512_bf16", &kernels_avx512},
#endif
#if defined(TM_WITH_AVX512_VNNI)
    {TM_NEEDS_AVX512 " avx512_vnni", &kernels_avx512_vnni},
#endif
#if defined(TM_WITH_AVX512_CORE)
    {TM_NEEDS_AVX512, &kernels_avx512_core},
#endif
#if defined(TM_WITH_AVX2_VNNI)
    {TM_NEEDS_AVX2 " avx_vnni", &kernels_avx2_vnni},
#endif
#if defined(TM_WITH_AVX2)
    {TM_NEEDS_AVX2, &kernels_avx2},
#endif
#if defined(TM_WITH_DOTPROD)
    {"asimddp", &kernels_dotprod},
#endif
    {"", &kernels_portable}};

#if defined(__x86_64__)
// Asked of the processor itself: gcc 12's __builtin_cpu_supports does not know AVX-VNNI, and zig's runtime answers no to all.
class Processor {
 public:
  Processor() {
    unsigned high;
    read(1, 0, leaf1_);
    if (!(leaf1_.c >> 27 & 1)) return;  // the system saves only the registers that every x86-64 has
    __asm__("xgetbv" : "=a"(saved_), "=d"(high) : "c"(0));
    read(7, 0, leaf7_);
    if (leaf7_.a >= 1) read(7, 1, leaf71_);
  }

  std::string features() const {
    std::string found;
    const auto add = [&](const char* name, bool has, unsigned registers) {
      if (has && (saved_ & registers) == registers) found += (found.empty() ? "" : " ") + std::string(name);
    };
    constexpr unsigned YMM = 0x6, ZMM = 0xe6;  // bits of the register XCR0
    add("avx2", leaf7_.b >> 5 & 1, YMM), add("fma", leaf1_.c >> 12 & 1, YMM), add("f16c", leaf1_.c >> 29 & 1, YMM);
    add("avx_vnni", leaf71_.a >> 4 & 1, YMM);
    add("avx512f", leaf7_.b >> 16 & 1, ZMM), add("avx512bw", leaf7_.b >> 30 & 1, ZMM);
    add("avx512vl", leaf7_.b >> 31 & 1, ZMM), add("avx512dq", leaf7_.b >> 17 & 1, ZMM);
    add("avx512_vnni", leaf7_.c >> 11 & 1, ZMM), add("avx512_bf16", leaf71_.a >> 5 & 1, ZMM);
    const bool amx = may_use_amx();
    add("amx_tile", amx, ZMM), add("amx_int8", amx, ZMM), add("amx_bf16", amx, ZMM);
    return found;
  }

 private:
  struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
  };

  static void read(unsigned number, unsigned part, Leaf& leaf) {
    if (!__get_cpuid_count(number, part, &leaf.a, &leaf.b, &leaf.c, &leaf.d)) leaf = Leaf();
  }

  // Whether there is a matrix unit and the system lets this process use it. The system must be asked, because every thread that
  // uses the unit needs 8 KB more to save its registers.
  bool may_use_amx() const {
#if defined(__linux__)
    constexpr unsigned BFLOAT16 = 1u << 22, TILES = 1u << 24, INT8 = 1u << 25, ALL = BFLOAT16 | TILES | INT8;
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return (leaf7_.d & ALL) == ALL && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
  }

  Leaf leaf1_, leaf7_, leaf71_;
  unsigned saved_ = 0;
};
#endif

std::string find_features() {
#if defined(__x86_64__)
  return Processor().features();
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long DOT_PRODUCTS = 1 << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & DOT_PRODUCTS ? "asimddp" : "";
#elif defined(__aarch64__) && defined(__APPLE__)
  return "asimddp";  // every processor of Apple's computers has them
#else
  return "";
#endif
}

bool has_all(const std::string& features, const char* needs) {
  std::istringstream words(needs);
  for (std::string word; words >> word;)
    if ((" " + features + " ").find(" " + word + " ") == std::string::npos) return false;
  return true;
}

// Once: all models of a process take the same build.
const std::vector<const Kernels*>& builds_here() {
  static const std::vector<const Kernels*> builds = builds_for(processor_features());
  return builds;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

std::vector<const Kernels*> builds_for(const std::string& features) {
  std::vector<const Kernels*> found;
  for (const Build& build : BUILDS)
    if (has_all(features, build.needs)) found.push_back(build.kernels);
  return found;
}

const std::string& processor_features() {
  static const std::string features = find_features();
  return features;
}

const Kernels& find_kernels(const std::string& name) {
  if (name.empty()) return chosen ? *chosen : *builds_here().front();
  std::string names;
  for (const Kernels* build : builds_here()) {
    if (name == build->name) return *build;
    names += (names.empty() ? "" : ", ") + std::string(build->name);
  }
  throw std::runtime_error("this processor does not run the build " + name + ": it runs " + names);
}

void choose_build(const std::string& name) { chosen = &find_kernels(name); }
