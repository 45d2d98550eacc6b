// Kernels that compute one element at a time. The kernels of all other instruction sets must give the same bits.
#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"
#include "kernels/isa/rounded_gemm.h"
#include "kernels/isa/scalar_traits.h"

namespace raggemm {
namespace {

struct ScalarCodes : ScalarTraits<int32_t> {
  using Floats = ScalarTraits<float>;
  using Words = uint32_t;
  static constexpr int32_t kByteOffset = 128;
  static Words LoadWords(const uint32_t* p) { return *p; }
  static Words Pinned(Words x) { return x; }
  static float ToFloats(int32_t x) { return static_cast<float>(x); }
  template <int kMr>
  static int32_t DotGroup(const uint32_t* p, const Words (&b)[kGroupWords], int32_t sum) {
    for (int i = 0; i < kRoundedSteps; ++i) {
      sum += static_cast<int8_t>(p[i / 4 * kMr] >> i % 4 * 8) * static_cast<int32_t>(b[i / 4] >> i % 4 * 8 & 0xff);
    }
    return sum;
  }
};

}  // namespace

extern const KernelRow kScalarKernels[7];
constinit const KernelRow kScalarKernels[] = {
    MakeRow<ScalarTraits<float>, ArithmeticId::kF32>(),
    MakeRow<ScalarTraits<double>, ArithmeticId::kF64>(),
    MakeRow<ScalarTraits<float>, ArithmeticId::kPairs>(),
    MakeRow<ScalarTraits<float>, ArithmeticId::kTiles>(),
    MakeRow<ScalarTraits<int32_t>, ArithmeticId::kS32>(),
    MakeRow<ScalarTraits<float>, ArithmeticId::kMmla>(),
    MakeRoundedRow<ScalarCodes, 4, 4>(),
};
extern const Dequantizers kScalarDequantizers;
constinit const Dequantizers kScalarDequantizers = MakeDequantizers<ScalarTraits<float>>();

}  // namespace raggemm
