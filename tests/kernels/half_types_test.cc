#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "tests/oracle/values.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {
namespace {

constexpr int64_t kPatterns = 1 << 16;

class HalfTypes : public IsaTest {
 protected:
  static std::vector<const KernelRow*> FloatRows() {
    std::vector<const KernelRow*> rows;
    for (const KernelRow& row : RowOf(GetParam()).kernels) {
      if (IsMatrix(ArithmeticOf(row).sum)) rows.push_back(&row);
    }
    return rows;
  }
};
RAGGEMM_FOR_EACH_ISA(HalfTypes);

Tensor AllPatterns(DType dtype) {
  Tensor patterns(dtype, {kPatterns});
  for (int64_t bits = 0; bits < kPatterns; ++bits) {
    static_cast<uint16_t*>(patterns.array().data)[bits] = static_cast<uint16_t>(bits);
  }
  return patterns;
}

bool Same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

TEST_P(HalfTypes, WidenEveryPatternExactly) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor patterns = AllPatterns(dtype);
    for (const KernelRow* row : FloatRows()) {
      const DType compute = ArithmeticOf(*row).sum;
      const Tensor widened(compute, {kPatterns + row->vector});
      KernelsOf(*row, dtype)
          .pack_bias({.src = patterns.array().data,
                      .src_stride = 0,
                      .k = 1,
                      .k_padded = 1,
                      .width = kPatterns,
                      .dst = widened.array().data,
                      .dst_stride = 0,
                      .prefetch = nullptr});
      for (int64_t bits = 0; bits < kPatterns; ++bits) {
        ASSERT_TRUE(Same(ToDouble(widened.array(), bits), ToDouble(patterns.array(), bits))) << bits;
      }
    }
  }
}

// Returns the middle between numbers i and i + 1 of `patterns`, which is hard to round. With nudge = -1 or 1, returns
// the number of the compute type just below or above this middle.
double Halfway(DType compute, const Array& patterns, int64_t i, int nudge) {
  const double next = ToDouble(patterns, std::min(i + 1, kPatterns - 1));
  const double half = RoundTo(compute, ToDouble(patterns, i) / 2 + next / 2);
  if (nudge == 0) return half;
  return compute == DType::kF32 ? std::nextafter(static_cast<float>(half), nudge * HUGE_VALF)
                                : std::nextafter(half, nudge * HUGE_VAL);
}

TEST_P(HalfTypes, RoundValuesBetweenNeighboursCorrectly) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor patterns = AllPatterns(dtype);
    for (const KernelRow* row : FloatRows()) {
      const DType compute = ArithmeticOf(*row).sum;
      for (int nudge : {-1, 0, 1}) {
        const Tensor total(compute, {kPatterns + row->vector}), out(dtype, {kPatterns});
        for (int64_t i = 0; i < kPatterns; ++i) {
          StoreRounded(total.array(), i, Halfway(compute, patterns.array(), i, nudge));
        }
        EpilogueArgs args{};
        args.rows = 1;
        args.columns = kPatterns;
        args.total = total.array().data;
        args.out = out.array().data;
        KernelsOf(*row, dtype).epilogue(args);
        for (int64_t i = 0; i < kPatterns; ++i) {
          const double exact = ToDouble(total.array(), i);
          ASSERT_TRUE(Same(ToDouble(out.array(), i), RoundTo(dtype, exact))) << exact;
        }
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
