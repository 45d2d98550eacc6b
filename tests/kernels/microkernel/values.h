#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/isa/microkernel.h"
#include "kernels/target/isa.h"
#include "tests/oracle/bits.h"
#include "tests/oracle/flushing.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// A buffer of random elements of one type.
class Values {
 public:
  Values(DType dtype, int64_t count, Random& random) : tensor_(dtype, {count}) {
    for (int64_t i = 0; i < count; ++i) {
      StoreNearest(tensor_.array(), i, IsMatrix(dtype) ? random.Unit() : static_cast<double>(random.Next() >> 32));
    }
  }
  void RoundAllTo(DType dtype) {
    for (int64_t i = 0; i < ElementCount(tensor_.array()); ++i) Set(i, RoundTo(dtype, (*this)[i]));
  }
  void* data() const { return tensor_.array().data; }
  void Set(int64_t i, double value) { StoreRounded(tensor_.array(), i, value); }
  double operator[](int64_t i) const { return ToDouble(tensor_.array(), i); }
  std::vector<double> All() const { return ValuesOf(tensor_.array()); }
  bool SurroundingsIntact() const { return tensor_.buffer().SurroundingsIntact(); }

 private:
  Tensor tensor_;
};

inline std::vector<DType> ResultTypesOf(const KernelRow& row) {
  if (ArithmeticOf(row).sum == DType::kS32) return {DType::kS32};
  std::vector<DType> types = {DType::kF16, DType::kBF16, DType::kF32};
  if (ArithmeticOf(row).sum == DType::kF64) types.push_back(DType::kF64);
  return types;
}
// Returns the types of operands. None for rounded rows, whose kernels have another contract and are tested by
// rounded_rows_test.cc.
inline std::vector<DType> TypesOf(const KernelRow& row) {
  if (row.arithmetic == ArithmeticId::kRounded) return {};
  if (ArithmeticOf(row).sum == DType::kS32) return {DType::kS8, DType::kU8};
  if (ArithmeticOf(row).product == DType::kBF16) return {DType::kBF16};
  return ResultTypesOf(row);
}

inline int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Returns a * b + c, rounded once to the compute type, or modulo 2^32 for s32.
inline double Fma(DType compute, double a, double b, double c) {
  if (compute == DType::kS32) {
    const auto sum = static_cast<int64_t>(a) * static_cast<int64_t>(b) + static_cast<int64_t>(c);
    return static_cast<int32_t>(static_cast<uint32_t>(sum));
  }
  if (compute == DType::kF64) return std::fma(a, b, c);
  return std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
}
inline double Add(DType compute, double a, double b) {
  return compute == DType::kS32 ? Fma(compute, a, 1, b) : compute == DType::kF64 ? a + b : static_cast<float>(a + b);
}
inline double Mul(DType compute, double a, double b) {
  return compute == DType::kS32 ? Fma(compute, a, b, 0) : compute == DType::kF64 ? a * b : static_cast<float>(a * b);
}

inline int64_t AtStep(const PackedLayout& layout, int64_t k, int64_t j, int64_t width) {
  return (k / layout.k_group * width + j) * layout.k_group + k % layout.k_group;
}
inline int64_t PanelElements(const PackedLayout& layout, int64_t k, int64_t width) {
  return PackedBytes(layout, k, width) / SizeOf(layout.element);
}
// Returns k, rounded up to whole words of a packed panel.
inline int64_t PaddedK(const KernelRow& row, int64_t k) { return row.rhs.k_group == 1 ? k : RoundUp(k, row.k_step); }

inline std::vector<double> FirstOf(std::vector<double> values, int64_t count) {
  values.resize(count);
  return values;
}

// Returns `sum` plus the products of all steps of k, added in the order of `rule`. add(k, x) returns x plus the product
// of step k. Does not flush denormals, so use larger numbers.
template <typename AddProduct>
double SumOf(const Arithmetic& rule, int64_t steps, double sum, AddProduct add) {
  if (rule.adds_pairs) {
    const auto product = [&](int64_t k) { return k < steps ? static_cast<float>(add(k, 0)) : 0; };
    for (int64_t k = 0; k < RoundUp(steps, rule.whole); k += 2) {
      sum = OddSum(static_cast<float>(sum), OddSum(product(k), product(k + 1)));
    }
    return sum;
  }
  if (rule.lanes == 1) {
    for (int64_t k = 0; k < steps; ++k) {
      const bool alone = k % 2 == 0 && k + 1 == steps;
      sum = add(rule.pair == 1 || alone ? k : k ^ 1, sum);
    }
    return sum;
  }
  for (int64_t begin = 0; begin < steps; begin += rule.chain) {
    double lanes[2] = {0, 0};
    for (int64_t k = begin; k < std::min(begin + rule.chain, steps); ++k) lanes[k % 2] = add(k, lanes[k % 2]);
    sum = Add(rule.sum, sum, Add(rule.sum, lanes[0], lanes[1]));
  }
  return sum;
}

// Returns the type of elements in packed panels. Panels with 8-bit integers have the type of the matrix (s8 or u8),
// others have layout.element.
inline DType PanelType(const PackedLayout& layout, DType matrix) {
  return layout.element == DType::kS8 ? matrix : layout.element;
}

// Returns true if kernels flip the top bit of each byte when they pack lhs. VPDPBUSD needs this if lhs and rhs have the
// same format, SDOT if the formats differ.
inline bool Flips(const KernelRow& row, bool same_format) {
  return row.lhs.element == DType::kS8 && row.lhs.k_group == 4 && same_format != IsaOf("neon").has_value();
}

inline double Flipped(DType dtype, double value) {
  return value < (dtype == DType::kS8 ? 0 : 128) ? value + 128 : value - 128;
}

// Returns a packed panel: k steps of random elements, then zeros up to k_padded steps.
inline Values Panel(const PackedLayout& layout, DType matrix, int64_t k, int64_t k_padded, int64_t width,
                    Random& random) {
  // NEON kernels may read one vector after the end of the panel, so the buffer has room for it.
  const int64_t slack = IsaOf("neon") ? 16 / SizeOf(PanelType(layout, matrix)) : 0;
  Values panel(PanelType(layout, matrix), PanelElements(layout, k_padded, width) + slack, random);
  for (; k < k_padded; ++k) {
    for (int64_t j = 0; j < width; ++j) panel.Set(AtStep(layout, k, j, width), 0);
  }
  return panel;
}

inline void RoundToProduct(const Arithmetic& rule, std::initializer_list<Values*> operands) {
  if (rule.product != DType::kBF16) return;
  for (Values* x : operands) x->RoundAllTo(rule.product);
}

}  // namespace raggemm::test
