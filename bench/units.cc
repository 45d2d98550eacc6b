#include "bench/units.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "bench/timing.h"

namespace raggemm::bench {
namespace {

// Chains that do not wait for each other: two units with a latency of at most five cycles need ten.
constexpr int kChains = 12;

// Each chain is x = x * scale + shift, or x = x + scale * shift by pairs: both stay ordinary numbers. Denormals would
// be slow, zeros save power. In words of 32 bits: f32, pairs of bf16, four bytes.
constexpr uint32_t kScale = 0x3F7FBE77, kShift = 0x3F800000;
constexpr uint32_t kPairScale = 0x3F7F3F7F, kPairShift = 0x3F803F80;

// Registers 0 to 11 hold the chains. In assembly, because only the kernels are compiled for an instruction set.
#define RAGGEMM_STEP_CHAINS(instruction, registers, scale, shift)                                                    \
  [](int64_t steps) {                                                                                                \
    asm volatile("vbroadcastss %1, %%" registers                                                                     \
                 "12\n"                                                                                              \
                 "vbroadcastss %2, %%" registers                                                                     \
                 "13\n"                                                                                              \
                 ".irp chain, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"                                                \
                 "vmovaps %%" registers "13, %%" registers                                                           \
                 "\\chain\n"                                                                                         \
                 ".endr\n"                                                                                           \
                 "1:\n"                                                                                              \
                 ".irp chain, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n" instruction " %%" registers "13, %%" registers \
                 "12, %%" registers                                                                                  \
                 "\\chain\n"                                                                                         \
                 ".endr\n"                                                                                           \
                 "dec %0\n"                                                                                          \
                 "jnz 1b\n"                                                                                          \
                 "vzeroupper\n"                                                                                      \
                 : "+r"(steps)                                                                                       \
                 : "m"(scale), "m"(shift)                                                                            \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",    \
                   "xmm11", "xmm12", "xmm13");                                                                       \
  }

// Without an FMA instruction: one multiplication and one addition.
void StepScalarChains(int64_t steps) {
  float chains[kChains] = {};
  for (; steps > 0; --steps) {
    for (float& chain : chains) chain = chain * 0.999F + 1;
    asm volatile("" : "+m"(chains));
  }
}

// Six totals, for an instruction takes 16 cycles and its result some 50; tiles 6 and 7 are operands. All have 16 rows
// of 64 bytes.
constexpr int kTotals = 6;

struct alignas(64) TileShape {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShape) == 64);

#define RAGGEMM_STEP_TILES(instruction)                            \
  [](int64_t steps) {                                              \
    const TileShape shape;                                         \
    alignas(64) uint32_t operand[256];                             \
    std::fill(std::begin(operand), std::end(operand), kPairScale); \
    asm volatile(                                                  \
        "ldtilecfg %1\n"                                           \
        "tileloadd (%2,%3,1), %%tmm6\n"                            \
        "tileloadd (%2,%3,1), %%tmm7\n"                            \
        ".irp total, 0, 1, 2, 3, 4, 5\n"                           \
        "tilezero %%tmm\\total\n"                                  \
        ".endr\n"                                                  \
        "1:\n"                                                     \
        ".irp total, 0, 1, 2, 3, 4, 5\n" instruction               \
        " %%tmm7, %%tmm6, %%tmm\\total\n"                          \
        ".endr\n"                                                  \
        "dec %0\n"                                                 \
        "jnz 1b\n"                                                 \
        "tilerelease\n"                                            \
        : "+r"(steps)                                              \
        : "m"(shape), "r"(operand), "r"(int64_t{64})               \
        : "cc", "memory");                                         \
  }

// Once for the process, before its first tile. The kernel refuses where it does not know tiles.
bool TilesPermitted() {
  constexpr int64_t kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr double FlopsOfChains(int lanes) { return 2.0 * kChains * lanes; }

Unit Fma() {
  Unit fma = {"f32 fma", DType::kF32, FlopsOfChains(1), 4'000'000, StepScalarChains};
  if (__builtin_cpu_supports("avx512f")) {
    fma.flops = FlopsOfChains(16);
    fma.run = RAGGEMM_STEP_CHAINS("vfmadd213ps", "zmm", kScale, kShift);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    fma.flops = FlopsOfChains(8);
    fma.run = RAGGEMM_STEP_CHAINS("vfmadd213ps", "ymm", kScale, kShift);
  }
  return fma;
}

Unit DotOfPairs() {
  Unit dot = {"VDPBF16PS", DType::kBF16, FlopsOfChains(32), 2'000'000, nullptr};
  if (__builtin_cpu_supports("avx512bf16")) dot.run = RAGGEMM_STEP_CHAINS("vdpbf16ps", "zmm", kPairScale, kPairShift);
  return dot;
}

Unit Tiles() {
  Unit tiles = {"TDPBF16PS", DType::kBF16, 2.0 * kTotals * 16 * 16 * 32, 250'000, nullptr};
  if (__builtin_cpu_supports("amx-bf16") && TilesPermitted()) tiles.run = RAGGEMM_STEP_TILES("tdpbf16ps");
  return tiles;
}

Unit DotOfBytes() {
  Unit dot = {"VPDPBUSD", DType::kS8, FlopsOfChains(64), 2'000'000, nullptr};
  if (__builtin_cpu_supports("avx512vnni")) dot.run = RAGGEMM_STEP_CHAINS("vpdpbusd", "zmm", kPairScale, kPairShift);
  return dot;
}

Unit TilesOfBytes() {
  Unit tiles = {"TDPBSSD", DType::kS8, 2.0 * kTotals * 16 * 16 * 64, 250'000, nullptr};
  if (__builtin_cpu_supports("amx-int8") && TilesPermitted()) tiles.run = RAGGEMM_STEP_TILES("tdpbssd");
  return tiles;
}

}  // namespace

const std::array<Unit, kUnits>& Units() {
  static const std::array<Unit, kUnits> units = {Fma(), DotOfPairs(), Tiles(), DotOfBytes(), TilesOfBytes()};
  return units;
}

bool Multiplies(const Unit& unit, DType in) { return unit.run != nullptr && (unit.in == in || unit.in == DType::kF32); }

double PeakGflops(const Unit& unit, int threads, int parts) {
  const int64_t steps = unit.steps / parts;
  const double seconds = SecondsOnThreads(threads, [&](int) { unit.run(steps); });
  return 1e-9 * static_cast<double>(steps) * unit.flops * threads / seconds;
}

double PeakGflops(DType in, int threads, int parts) {
  double peak = 0;
  for (const Unit& unit : Units()) {
    if (Multiplies(unit, in)) peak = std::max(peak, PeakGflops(unit, threads, parts));
  }
  return peak;
}

}  // namespace raggemm::bench
