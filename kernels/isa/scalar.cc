// Kernels that compute one element at a time. The kernels of all other instruction sets must give the same bits.
#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"
#include "kernels/isa/rounded_gemm.h"
#include "kernels/isa/scalar_traits.h"

namespace raggemm {
namespace {

struct ScalarCodes : ScalarTraits<int32_t> {
  using Floats = ScalarTraits<float>;
  static uint32_t LoadWords(const uint32_t* p) { return *p; }
  static uint32_t Pinned(uint32_t x) { return x; }
  static int32_t Pinned(int32_t x) { return x; }
  static float ToFloats(int32_t x) { return static_cast<float>(x); }
  static int32_t DotCodes(const uint32_t* p, uint32_t b, int32_t sum) {
    for (int byte = 0; byte < 4; ++byte) {
      sum += static_cast<int8_t>(*p >> 8 * byte) * static_cast<int32_t>(b >> 8 * byte & 0xff);
    }
    return sum;
  }
};

}  // namespace

extern const KernelRow kScalarKernels[7];
constinit const KernelRow kScalarKernels[] = {
    MakeRow<ScalarTraits<float>, ArithmeticId::kF32>(),   MakeRow<ScalarTraits<double>, ArithmeticId::kF64>(),
    MakeRow<ScalarTraits<float>, ArithmeticId::kPairs>(), MakeRow<ScalarTraits<float>, ArithmeticId::kTiles>(),
    MakeRow<ScalarTraits<int32_t>, ArithmeticId::kS32>(), MakeRow<ScalarTraits<float>, ArithmeticId::kMmla>(),
    MakeRoundedRow<ScalarCodes, 4, 4>(),
};
extern const Dequantizers kScalarDequantizers;
constinit const Dequantizers kScalarDequantizers = MakeDequantizers<ScalarTraits<float>>();

}  // namespace raggemm
