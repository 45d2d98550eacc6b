#include "bench/limits.h"

#include <algorithm>
#include <utility>

#include "bench/timing.h"

namespace raggemm::bench {
namespace {

// Chains that do not wait for each other: two units with a latency of at most five cycles need ten.
constexpr int kChains = 12;

// Each chain is x = x * scale + shift, which stays an ordinary number: denormals would be slow, zeros save power.
constexpr float kScale = 0.999F, kShift = 1;

constexpr int64_t kLine = 64;
constexpr int64_t kPart = kBeyondCaches / 4;

// What registers of one width do; in assembly, because only the kernels are compiled for an instruction set.
struct Registers {
  int floats;
  void (*step_chains)(int64_t steps);
  void (*store)(char* begin, int64_t bytes);  // whatever one of them holds, non-temporal
};

// Registers 0 to 11 hold the chains.
#define RAGGEMM_STEP_CHAINS(registers)                                                                            \
  [](int64_t steps) {                                                                                             \
    asm volatile("vbroadcastss %1, %%" registers                                                                  \
                 "12\n"                                                                                           \
                 "vbroadcastss %2, %%" registers                                                                  \
                 "13\n"                                                                                           \
                 ".irp chain, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"                                             \
                 "vmovaps %%" registers "13, %%" registers                                                        \
                 "\\chain\n"                                                                                      \
                 ".endr\n"                                                                                        \
                 "1:\n"                                                                                           \
                 ".irp chain, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"                                             \
                 "vfmadd213ps %%" registers "13, %%" registers "12, %%" registers                                 \
                 "\\chain\n"                                                                                      \
                 ".endr\n"                                                                                        \
                 "dec %0\n"                                                                                       \
                 "jnz 1b\n"                                                                                       \
                 "vzeroupper\n"                                                                                   \
                 : "+r"(steps)                                                                                    \
                 : "m"(kScale), "m"(kShift)                                                                       \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                   "xmm11", "xmm12", "xmm13");                                                                    \
  }

// Without an FMA instruction: one multiplication and one addition.
void StepScalarChains(int64_t steps) {
  float chains[kChains] = {};
  for (; steps > 0; --steps) {
    for (float& chain : chains) chain = chain * kScale + kShift;
    asm volatile("" : "+m"(chains));
  }
}

#define RAGGEMM_STORE_LINES(instructions)                           \
  [](char* begin, int64_t bytes) {                                  \
    for (char* line = begin; line < begin + bytes; line += kLine) { \
      asm volatile("" instructions : : "r"(line) : "memory");       \
    }                                                               \
    asm volatile("sfence" : : : "memory");                          \
  }

const Registers& WidestRegisters() {
  static constexpr Registers kZmm = {16, RAGGEMM_STEP_CHAINS("zmm"), RAGGEMM_STORE_LINES("vmovntdq %%zmm0, (%0)")};
  static constexpr Registers kYmm = {8, RAGGEMM_STEP_CHAINS("ymm"),
                                     RAGGEMM_STORE_LINES("vmovntdq %%ymm0, (%0)\nvmovntdq %%ymm0, 32(%0)")};
  static constexpr Registers kXmm = {1, StepScalarChains,
                                     RAGGEMM_STORE_LINES("movntdq %%xmm0, (%0)\nmovntdq %%xmm0, 16(%0)\n"
                                                         "movntdq %%xmm0, 32(%0)\nmovntdq %%xmm0, 48(%0)")};
  if (__builtin_cpu_supports("avx512f")) return kZmm;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kYmm : kXmm;
}

// One word of each line: the whole line comes from memory. The streams lie side by side in the part.
void Read(const char* begin, int64_t bytes, int streams, int64_t prefetch) {
  const int64_t stream = bytes / streams / kLine * kLine;
  uint64_t sum = 0;
  for (int64_t at = 0; at < stream; at += kLine) {
    for (int s = 0; s < streams; ++s) {
      const char* line = begin + s * stream + at;
      if (prefetch != 0) __builtin_prefetch(line + prefetch);
      sum += *reinterpret_cast<const uint64_t*>(line);
    }
  }
  asm volatile("" : : "r"(sum));  // used, so that nothing is left out
}

// Of one pass, each thread over its share of a part.
double Gbps(int threads, char* part, absl::FunctionRef<void(char* begin, int64_t bytes)> pass) {
  const int64_t share = kPart / threads / kLine * kLine;
  const double seconds = SecondsOnThreads(threads, [&](int thread) { pass(part + thread * share, share); });
  return static_cast<double>(kPart) / seconds * 1e-9;
}

Limits QuantileOf(const std::vector<Limits>& samples, double share) {
  const auto quantile = [&](double Limits::*limit) {
    std::vector<double> values;
    for (const Limits& sample : samples) values.push_back(sample.*limit);
    return Quantile(std::move(values), share);
  };
  return {quantile(&Limits::fma_gflops), quantile(&Limits::read_gbps), quantile(&Limits::store_gbps)};
}

}  // namespace

double FmaPeakGflops(int threads, int64_t steps) {
  const Registers& registers = WidestRegisters();
  const double seconds = SecondsOnThreads(threads, [&](int) { registers.step_chains(steps); });
  return 2e-9 * static_cast<double>(steps) * kChains * registers.floats * threads / seconds;
}

LimitsMeter::LimitsMeter() : memory_(kBeyondCaches + kPart, DType::kF32, DType::kF32) {}

Limits LimitsMeter::Measure(int threads) {
  return {FmaPeakGflops(threads), ReadGbps(threads), Gbps(threads, NextPart(), WidestRegisters().store)};
}

// With how many streams a thread and how many bytes ahead, 0 leaving it to the hardware. Emerald Rapids, two threads,
// GB/s: one stream 20, four 30, four with prefetch 32; on Zen 3 prefetch makes it worse. Chosen once for all, at a
// moment when others were busy, the slowest was taken for a whole run, whose decoding then was 20 % above the limit.
double LimitsMeter::ReadGbps(int threads) {
  struct Way {
    int streams;
    int64_t prefetch;
  };
  constexpr Way kWays[] = {{1, 0}, {4, 0}, {4, 1024}, {8, 1024}};
  double fastest = 0;
  for (const Way& way : kWays) {
    const auto read = [&](char* begin, int64_t bytes) { Read(begin, bytes, way.streams, way.prefetch); };
    fastest = std::max(fastest, Gbps(threads, NextPart(), read));
  }
  return fastest;
}

// A part beyond the last is never asked for: prefetch may run past the end of one.
char* LimitsMeter::NextPart() {
  char* part = memory_.data() + next_part_ * kPart;
  next_part_ = (next_part_ + 1) % (kBeyondCaches / kPart);
  return part;
}

Limits UpperQuartileOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.75); }
Limits MedianOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.5); }

}  // namespace raggemm::bench
