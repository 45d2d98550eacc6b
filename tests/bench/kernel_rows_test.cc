#include "bench/kernel_rows.h"

#include <cmath>
#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/cpu.h"
#include "raggemm/format.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

// Operands of a loop are those of an arena, which has the same numbers whatever its size.
struct Sum {
  double value = 0, magnitude = 0;  // the second of the products' magnitudes
};
Sum Expected(const KernelCall& call, int64_t i, int64_t j) {
  const Arena lhs(1 << 18, call.lhs(), call.lhs()), rhs(1 << 18, call.rhs, call.rhs);
  Sum sum;
  const int64_t group = call.row->lhs.k_group;
  for (int64_t k = 0; k < call.steps; ++k) {
    const int64_t at = (k / group * call.rows + i) * group + k % group;
    const double product =
        ToDouble({lhs.data(), call.lhs(), {}}, at) * ToDouble({rhs.data(), call.rhs, {}}, k * call.row->cols + j);
    sum.value += product;
    sum.magnitude += std::abs(product);
  }
  return sum;
}

TEST(KernelLoop, EveryKernelOfEveryRowGetsItsOperands) {
  for (const IsaRow& isa : IsaRows()) {
    if (!isa.usable()) continue;
    for (const KernelRow& row : isa.kernels) {
      for (const Format& format : kFormats) {
        for (RhsAs as : {RhsAs::kInPlace, RhsAs::kExpand}) {
          const KernelCall call = TallestInL1(row, format.dtype, as);
          if (call.kernel() == nullptr) continue;
          KernelLoop loop(call, 0);
          loop.Run();
          const DType sum = ArithmeticOf(row).sum;
          for (const auto& [i, j] : {std::pair{int64_t{0}, int64_t{0}}, {call.rows - 1, row.cols - 1}}) {
            const double got = ToDouble({loop.out().data(), sum, {}}, i * row.cols + j);
            const Sum expected = Expected(call, i, j);
            EXPECT_NEAR(got, expected.value, 1e-6 * expected.magnitude)
                << NameOf(row) << " " << format.name << static_cast<int>(as) << i;
          }
        }
      }
    }
  }
}

TEST(TallestInL1, FitsAndIsNoLongerThanAPanel) {
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) {
      const KernelCall call = TallestPacked(row);
      EXPECT_LE(PanelBytes(row.lhs, call.steps, row.rows + row.cols), HostCpu().l1_bytes);
      EXPECT_LE(call.steps, kPanel);
      EXPECT_GE(call.steps, 32);
      EXPECT_DOUBLE_EQ(call.flops(), 2.0 * call.steps * row.rows * row.cols);
    }
  }
}

TEST(KernelLoop, GoesThroughAllStrips) {
  const KernelCall call = TallestPacked(IsaRows().back().kernels[0]);
  EXPECT_GE(KernelLoop(call, 3 << 20).calls(), (3 << 20) / call.strip_bytes());
}

TEST(KernelTable, HasALineForEachRowThatCanBeUsedHere) {
  std::vector<std::string> lines = absl::StrSplit(KernelTable(/*turns=*/1), '\n', absl::SkipEmpty());
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) {
      const DType sum = ArithmeticOf(row).sum;
      const bool packed_only = sum == DType::kF64 || isa.isa == IsaOf("amx");  // reads nothing else where it lies
      const auto format = packed_only ? "%" : sum == DType::kS32 ? "s8 " : "bf16 ";
      const auto line = testing::AllOf(testing::StartsWith(NameOf(row)), testing::HasSubstr(format));
      EXPECT_EQ(testing::Value(lines, testing::Contains(line)), isa.usable()) << NameOf(row);
    }
  }
}

}  // namespace
}  // namespace raggemm::bench
