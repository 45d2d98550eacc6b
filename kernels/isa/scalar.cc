// Kernels that compute one element at a time. The kernels of all other instruction sets must give the same bits.
#include "kernels/isa/dequantize.h"
#include "kernels/isa/fma_rows.h"
#include "kernels/isa/scalar_traits.h"

namespace raggemm {

extern const KernelRow kScalarKernels[6];
constinit const KernelRow kScalarKernels[] = {
    MakeRow<ScalarTraits<float>, ArithmeticId::kF32>(),   MakeRow<ScalarTraits<double>, ArithmeticId::kF64>(),
    MakeRow<ScalarTraits<float>, ArithmeticId::kPairs>(), MakeRow<ScalarTraits<float>, ArithmeticId::kTiles>(),
    MakeRow<ScalarTraits<int32_t>, ArithmeticId::kS32>(), MakeRow<ScalarTraits<float>, ArithmeticId::kMmla>(),
};
extern const Dequantizers kScalarDequantizers;
constinit const Dequantizers kScalarDequantizers = MakeDequantizers<ScalarTraits<float>>();

}  // namespace raggemm
