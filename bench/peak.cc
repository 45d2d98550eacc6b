#include "bench/peak.h"

#include <cstdint>

#include "bench/team.h"

namespace raggemm::bench {
namespace {

// Chains that do not wait for each other: two units with a latency of at most five cycles need ten.
constexpr int kChains = 12;

// Each chain is x = x * scale + shift, which stays an ordinary number: denormals would be slow, zeros save power.
constexpr float kScale = 0.999F, kShift = 1;

// Assembly, because only the kernels are compiled for an ISA. Registers 0 to 11 hold the chains.
#define RAGGEMM_FMA_LOOP(registers)                                                                             \
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
                 "xmm11", "xmm12", "xmm13")

// Without an FMA instruction: one multiplication and one addition.
void ScalarLoop(int64_t steps) {
  float chains[kChains] = {};
  for (; steps > 0; --steps) {
    for (float& chain : chains) chain = chain * kScale + kShift;
    asm volatile("" : "+m"(chains));
  }
}

// Multiply-adds of one chain's step.
int RunLoop(Isa isa, int64_t steps) {
  switch (isa) {
    case Isa::kAvx512:
      RAGGEMM_FMA_LOOP("zmm");
      return 16;
    case Isa::kAvx2:
      RAGGEMM_FMA_LOOP("ymm");
      return 8;
    case Isa::kScalar:
      break;
  }
  ScalarLoop(steps);
  return 1;
}

}  // namespace

double FmaPeakGflops(Isa isa, int threads) {
  constexpr int64_t kSteps = 4'000'000;  // of 6 cycles
  int width = 0;
  const double seconds = SecondsOnThreads(threads, [&](int thread) {
    const int lanes = RunLoop(isa, kSteps);
    if (thread == 0) width = lanes;
  });
  return 2.0 * kSteps * kChains * width * threads / seconds * 1e-9;
}

}  // namespace raggemm::bench
