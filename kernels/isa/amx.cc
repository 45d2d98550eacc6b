// Kernels for AMX, which multiply tiles of bf16 or of bytes. Rounded rows of at most eight rows use VPDPBUSD. The
// instructions are in assembly, because GCC's intrinsics do not accept a template argument as a tile's number.
#include "kernels/isa/amx_gemm.h"
#include "kernels/isa/amx_rounded.h"
#include "kernels/isa/avx512_codes.h"
#include "kernels/isa/avx512_quantized.h"

namespace raggemm {
namespace {

// The operand of LDTILECFG, which sets the shape of each tile.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes_per_row[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == kMatrixUnitState);

struct AmxTiles {
  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void Load(const char* p, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
  }
  template <int kTile>
  static void Store(char* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
  }
#define RAGGEMM_DOT(lhs, rhs, instruction)                                                           \
  template <int kTotal, int kLhs, int kRhs>                                                          \
  static void Dot(lhs, rhs) {                                                                        \
    asm volatile(instruction " %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTotal), "i"(kLhs), "i"(kRhs)); \
  }
  RAGGEMM_DOT(BFloat16, BFloat16, "tdpbf16ps")
  RAGGEMM_DOT(int8_t, int8_t, "tdpbssd")
  RAGGEMM_DOT(int8_t, uint8_t, "tdpbsud")
  RAGGEMM_DOT(uint8_t, int8_t, "tdpbusd")
  RAGGEMM_DOT(uint8_t, uint8_t, "tdpbuud")
#undef RAGGEMM_DOT

  static void SetUp(void* saved, int64_t bytes) {
    asm volatile("sttilecfg %0" : "=m"(*static_cast<TileConfig*>(saved)));
    TileConfig config = {};
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_lhs = tile == 4 || tile == 5, is_rhs = tile > 5;
      config.bytes_per_row[tile] = static_cast<uint16_t>(is_lhs ? bytes : kLine);
      config.rows[tile] = static_cast<uint8_t>(is_rhs ? bytes / 4 : kTileRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  // Restores the tile configuration that SetUp saved. If it is empty, releases the tiles: context switches then need
  // not save them.
  static void Restore(const void* saved) {
    const TileConfig& config = *static_cast<const TileConfig*>(saved);
    if (config.palette == 0) {
      asm volatile("tilerelease");
    } else {
      asm volatile("ldtilecfg %0" : : "m"(config));
    }
  }
};

// Traits for kernels of rounded rows.
struct AmxCodes : Avx512Codes {
  using Source = const uint8_t*;
  static constexpr int kGroup = 4;
};

// Packers and streaming GEMVs of AVX-512 VNNI.
template <DType kDtype, int kBits>
constexpr FormatKernels kVnniCodes = [] {
  KernelRow row = {};
  AddAvx512Codes<Avx512Codes, 0, kDtype, kBits>(row);
  return row.formats[static_cast<int>(kDtype)];
}();

template <DType kDtype, int kBits>
constexpr void AddAmxCodes(KernelRow& row) {
  AddRoundedTilesFormat<AmxCodes, AmxTiles, kVnniCodes<kDtype, kBits>>(row, kDtype);
}

}  // namespace

extern const KernelRow kAmxKernels[3];
constinit const KernelRow kAmxKernels[] = {[] {
                                             KernelRow row = MakeAmxRow<Avx512Pairs, AmxTiles>();
                                             AddQuantized<Avx512Pairs, false>(row);
                                             return row;
                                           }(),
                                           MakeAmxByteRow<Avx512Quads, AmxTiles>(),
                                           [] {
                                             KernelRow row = MakeRoundedTilesRow<AmxCodes, AmxTiles>();
                                             row.reads_scales = true;
                                             AddAmxCodes<DType::kS8, 8>(row);
                                             AddAmxCodes<DType::kU8, 8>(row);
                                             AddAmxCodes<DType::kS4, 4>(row);
                                             AddAmxCodes<DType::kU4, 4>(row);
                                             AddAmxCodes<DType::kF4E2M1FN, 4>(row);
                                             return row;
                                           }()};

}  // namespace raggemm
