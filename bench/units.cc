#include "bench/units.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "bench/timing.h"

namespace raggemm::bench {
namespace {

// Number of independent accumulation chains. Two execution units with a latency of six cycles need more than twelve:
// with twelve chains, VDPBF16PS reached 118 instead of 128 flops per cycle (Zen 5). AVX2 has registers for only twelve
// chains (kFewChains), which suffice for its latency of at most five cycles.
constexpr int kChains = 24, kFewChains = 12;
#define RAGGEMM_FEW_CHAINS "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
#define RAGGEMM_CHAINS RAGGEMM_FEW_CHAINS ", 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23"

// A measurement has kPieces pieces of about 50 us. The highest rate is that of kWindow successive pieces.
constexpr int kPieces = 200, kWindow = 20;

// Operands of the chains as words of 32 bits: one f32, two bf16 or four bytes. A chain of f32 computes x = x * scale +
// shift, all other chains x = x + scale * shift. The values of chains stay normal numbers: denormals would be slow, and
// zeros would save power.
constexpr uint32_t kScale = 0x3F7FBE77, kShift = 0x3F800000;
constexpr uint32_t kPairScale = 0x3F7F3F7F, kPairShift = 0x3F803F80;

// Defines a function that steps all chains with one instruction. It is assembly, because this file is compiled without
// flags for instruction sets. Registers from 0 on hold the chains, and two more hold the scale and the shift. The
// compiler itself uses no register above 15.
#define RAGGEMM_STEP_CHAINS(instruction, registers, chains, scale_at, shift_at, scale, shift)                     \
  [](int64_t steps) {                                                                                             \
    asm volatile("vbroadcastss %1, %%" registers scale_at                                                         \
                 "\n"                                                                                             \
                 "vbroadcastss %2, %%" registers shift_at                                                         \
                 "\n"                                                                                             \
                 ".irp chain, " chains                                                                            \
                 "\n"                                                                                             \
                 "vmovaps %%" registers shift_at ", %%" registers                                                 \
                 "\\chain\n"                                                                                      \
                 ".endr\n"                                                                                        \
                 "1:\n"                                                                                           \
                 ".irp chain, " chains "\n" instruction " %%" registers shift_at ", %%" registers scale_at        \
                 ", %%" registers                                                                                 \
                 "\\chain\n"                                                                                      \
                 ".endr\n"                                                                                        \
                 "dec %0\n"                                                                                       \
                 "jnz 1b\n"                                                                                       \
                 "vzeroupper\n"                                                                                   \
                 : "+r"(steps)                                                                                    \
                 : "m"(scale), "m"(shift)                                                                         \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                   "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                                  \
  }

#define RAGGEMM_STEP_ZMM(instruction, scale, shift) \
  RAGGEMM_STEP_CHAINS(instruction, "zmm", RAGGEMM_CHAINS, "30", "31", scale, shift)

// Runs steps of a multiplication and an addition for each chain, on CPUs without fma.
void StepScalarChains(int64_t steps) {
  float chains[kFewChains] = {};
  for (; steps > 0; --steps) {
    for (float& chain : chains) chain = chain * 0.999F + 1;
    asm volatile("" : "+m"(chains));
  }
}

// AMX tiles that hold sums. An instruction can start every 16 cycles and takes about 50 cycles, so at least four tiles
// are needed. Tiles 6 and 7 are operands.
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

// Asks Linux for permission to use AMX tiles.
bool TilesPermitted() {
  constexpr int64_t kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr double FlopsOfChains(int chains, int lanes) { return 2.0 * chains * lanes; }

Unit Fma() {
  Unit fma = {"f32 fma", DType::kF32, FlopsOfChains(kFewChains, 1), 4'000'000, StepScalarChains};
  if (__builtin_cpu_supports("avx512f")) {
    fma.flops = FlopsOfChains(kChains, 16);
    fma.steps = 2'000'000;
    fma.run = RAGGEMM_STEP_ZMM("vfmadd213ps", kScale, kShift);
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    fma.flops = FlopsOfChains(kFewChains, 8);
    fma.run = RAGGEMM_STEP_CHAINS("vfmadd213ps", "ymm", RAGGEMM_FEW_CHAINS, "12", "13", kScale, kShift);
  }
  return fma;
}

Unit If(bool is_there, Unit unit) {
  if (!is_there) unit.run = nullptr;
  return unit;
}

}  // namespace

const std::array<Unit, kUnits>& Units() {
  constexpr double kTileRows = kTotals * 16;
  static const std::array<Unit, kUnits> units = {
      Fma(),
      If(__builtin_cpu_supports("avx512bf16"), {"VDPBF16PS", DType::kBF16, FlopsOfChains(kChains, 32), 1'000'000,
                                                RAGGEMM_STEP_ZMM("vdpbf16ps", kPairScale, kPairShift)}),
      If(__builtin_cpu_supports("amx-bf16") && TilesPermitted(),
         {"TDPBF16PS", DType::kBF16, 2 * kTileRows * 16 * 32, 250'000, RAGGEMM_STEP_TILES("tdpbf16ps")}),
      If(__builtin_cpu_supports("avx512vnni"), {"VPDPBUSD", DType::kS8, FlopsOfChains(kChains, 64), 1'000'000,
                                                RAGGEMM_STEP_ZMM("vpdpbusd", kPairScale, kPairShift)}),
      If(__builtin_cpu_supports("amx-int8") && TilesPermitted(),
         {"TDPBSSD", DType::kS8, 2 * kTileRows * 16 * 64, 250'000, RAGGEMM_STEP_TILES("tdpbssd")})};
  return units;
}

bool Multiplies(const Unit& unit, DType in) { return unit.run != nullptr && (unit.in == in || unit.in == DType::kF32); }

UnitRates MeasureUnit(const Unit& unit, int threads) {
  const int64_t steps = unit.steps / kPieces;
  const PieceRates rates = RunPieces(threads, kPieces, kWindow, [&](int) { unit.run(steps); });
  const double gflop = 1e-9 * static_cast<double>(steps) * unit.flops;
  return {gflop * rates.fastest, gflop * rates.overall};
}

}  // namespace raggemm::bench
