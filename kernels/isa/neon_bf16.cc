// Kernels for BFMMLA of ARMv8.6, which multiplies bf16 (mmla_gemm.h).
#include <arm_neon.h>

#include "kernels/isa/dequantize.h"
#include "kernels/isa/mmla_gemm.h"
#include "kernels/isa/neon_f32.h"
#include "kernels/isa/neon_words.h"

namespace raggemm {
namespace {

struct NeonBf16 : NeonFlushing, NeonWords<BFloat16> {
  using Element = BFloat16;
  static constexpr int kGroup = 4;
  static constexpr bool kHasSigns = false;
  static constexpr int kPanelVectors = 2;
  // 10 rows have 20 vectors of sums. Neoverse V1 needs them to start 4 products per cycle, because each product takes 5
  // cycles. llvm-mca 19 predicts that 97 % of the pipes are in use, and 78 % with 8 rows.
  static constexpr int kRows = 10;

  static Words LowElements(Words a, Words b) { return Of16(vzip1q_u16(As16(a), As16(b))); }
  static Words HighElements(Words a, Words b) { return Of16(vzip2q_u16(As16(a), As16(b))); }
  static Vec Dot(Words a, Words b, Vec sum, bool) {
    asm volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
  }
  static void ToRows(Vec& x, Vec& y, bool) {
    const float64x2_t a = vreinterpretq_f64_f32(x), b = vreinterpretq_f64_f32(y);
    x = vreinterpretq_f32_f64(vzip1q_f64(a, b));
    y = vreinterpretq_f32_f64(vzip2q_f64(a, b));
  }
  static void FromRows(Vec& x, Vec& y, bool same_format) { ToRows(x, y, same_format); }

 private:
  static uint16x8_t As16(Words x) { return vreinterpretq_u16_u64(x); }
  static Words Of16(uint16x8_t x) { return vreinterpretq_u64_u16(x); }
};

constexpr KernelRow MakeBf16Row() {
  KernelRow row = MakeMmlaRow<NeonBf16>(ArithmeticId::kMmla, DType::kBF16);
  AddEpilogue<NeonF32, Float16>(row, DType::kF16);
  AddEpilogue<NeonF32, BFloat16>(row, DType::kBF16);
  AddEpilogue<NeonF32, float>(row, DType::kF32);
  AddScaling<NeonF32>(row);
  AddMmlaFormat<NeonBf16>(row, DType::kBF16);
  return row;
}

}  // namespace

extern const KernelRow kNeonBf16Kernels[1];
constinit const KernelRow kNeonBf16Kernels[] = {MakeBf16Row()};

}  // namespace raggemm
