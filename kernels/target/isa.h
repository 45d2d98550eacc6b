#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "kernels/isa/microkernel.h"
#include "kernels/target/target.h"
#include "raggemm/cpu.h"
#include "raggemm/types.h"

namespace raggemm {

const IsaRow& RowOf(Isa isa);

// Returns a name such as "f32_14x32_avx512": arithmetic, largest register tile, instruction set.
std::string NameOf(const KernelRow& kernels);

inline const Arithmetic& ArithmeticOf(const KernelRow& row) { return kArithmetics[static_cast<int>(row.arithmetic)]; }
// Returns the kernels for an arithmetic. If the ISA has none, returns those of its base (IsaRow).
const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic);
const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic);
const Dequantizers& DequantizersFor(Isa isa);
inline const FormatKernels& KernelsOf(const KernelRow& row, DType dtype) {
  return row.formats[static_cast<int>(dtype)];
}

// Returns the bytes of a packed panel with k steps and `width` rows or columns. If k is a multiple of k_group, this is
// also the offset of step k in a longer panel.
int64_t PackedBytes(const PackedLayout& layout, int64_t k, int64_t width);

class MatrixUnitScope {
 public:
  explicit MatrixUnitScope(const KernelRow& kernels, int64_t stretch = 0) : kernels_(kernels) {
    if (kernels.set_up != nullptr) kernels.set_up(saved_, stretch);
  }
  ~MatrixUnitScope() {
    if (kernels_.restore != nullptr) kernels_.restore(saved_);
  }
  MatrixUnitScope(const MatrixUnitScope&) = delete;
  MatrixUnitScope& operator=(const MatrixUnitScope&) = delete;

 private:
  const KernelRow& kernels_;
  alignas(64) unsigned char saved_[kMatrixUnitState];
};

}  // namespace raggemm
