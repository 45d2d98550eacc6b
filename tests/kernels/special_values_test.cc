#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void Fill(const Array& array, double value) {
  for (int64_t i = 0; i < ElementCount(array); ++i) StoreRounded(array, i, value);
}

void Fill(const Array& array, const MatrixView& view, double value) {
  for (int64_t i = 0; i < view.rows; ++i) {
    for (int64_t j = 0; j < view.cols; ++j) StoreRounded(array, view.At(i, j), value);
  }
}

class SpecialValues : public IsaTest {
 protected:
  void Run(const TestProblem& test) { ASSERT_EQ(GroupedGemm(test.problem, With(GetParam())), absl::OkStatus()); }

  // Computes a problem of one group. All elements of lhs are `lhs`, and all elements of rhs are `rhs`.
  void RunFilled(ProblemSpec spec, double lhs, double rhs, std::vector<double>* out) {
    spec.sizes = {spec.m};
    TestProblem test(spec);
    Fill(test.problem.lhs, lhs);
    Fill(test.problem.rhs, rhs);
    Run(test);
    *out = ValuesOf(test.problem.out);
  }
};
RAGGEMM_FOR_EACH_ISA(SpecialValues);

TEST_P(SpecialValues, StayInTheirGroup) {
  for (RaggedMode mode : kAllModes) {
    ProblemSpec base{.mode = mode, .groups = 3, .m = 24, .n = 24, .k = 24, .sizes = {7, 6, 9}};
    if (mode == RaggedMode::kAllRagged) base.n_sizes = base.k_sizes = {5, 8, 7};
    for (ProblemSpec spec : StorageVariants(base)) {
      for (double bad : {kNaN, kInfinity}) {
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          spec.lhs = spec.rhs = dtype;
          TestProblem test(spec);
          const std::vector<double> good = ExpectedOut(test.problem).value();
          const GroupProduct middle = GroupProducts(test.problem).value()[1];
          Fill(test.problem.rhs, middle.terms[0].rhs, bad);
          if (mode != RaggedMode::kRaggedN) Fill(test.problem.lhs, middle.terms[0].lhs, bad);
          const std::vector<double> expected = ExpectedOut(test.problem).value();
          std::vector<double> others = expected;
          for (int64_t i = 0; i < middle.out.rows; ++i) {
            for (int64_t j = 0; j < middle.out.cols; ++j) {
              const int64_t index = middle.out.At(i, j);
              ASSERT_FALSE(std::isfinite(expected[index]));
              others[index] = good[index];
            }
          }
          ASSERT_EQ(others, good) << Describe(spec);
          Run(test);
          ASSERT_TRUE(HasBits(test.problem.out, expected)) << Describe(spec);
        }
      }
    }
  }
}

TEST_P(SpecialValues, OutsideProcessedGroupsHaveNoEffect) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK}) {
    ProblemSpec base{.mode = mode, .groups = 3, .m = 30, .n = 20, .k = 30, .sizes = {4, 9, 5}};
    base.local_groups = 1;
    base.group_offset = 1;
    for (const ProblemSpec& spec : StorageVariants(base)) {
      TestProblem test(spec);
      const std::vector<double> expected = ExpectedOut(test.problem).value();
      const GroupProduct product = GroupProducts(test.problem).value()[0];
      const TestProblem original(spec);
      Fill(test.problem.lhs, kNaN);
      const MatrixView lhs = product.terms[0].lhs;
      for (int64_t i = 0; i < lhs.rows; ++i) {
        for (int64_t j = 0; j < lhs.cols; ++j) {
          StoreRounded(test.problem.lhs, lhs.At(i, j), ToDouble(original.problem.lhs, lhs.At(i, j)));
        }
      }
      Run(test);
      ASSERT_TRUE(HasBits(test.problem.out, expected)) << Describe(spec);
    }
  }
}

TEST_P(SpecialValues, BetaZeroNeverReadsC) {
  for (RaggedMode mode : kAllModes) {
    ProblemSpec spec{.mode = mode, .groups = 2, .m = 20, .n = 21, .k = 22, .sizes = {9, 8}, .c = true, .beta = true};
    if (mode == RaggedMode::kAllRagged) spec.n_sizes = spec.k_sizes = {3, 5};
    TestProblem test(StorageVariants(spec).front());
    StoreRounded(*test.problem.beta, 1, -0.0);
    Fill(*test.problem.c, GroupProducts(test.problem).value()[1].out, kNaN);
    const std::vector<double> expected = ExpectedOut(test.problem).value();
    for (double value : expected) ASSERT_TRUE(std::isfinite(value));
    Run(test);
    EXPECT_TRUE(HasBits(test.problem.out, expected)) << Describe(spec);
  }
}

// If a NaN with a payload of all ones were rounded like a number, the carry would turn it into a zero.
TEST_P(SpecialValues, NaNsOfAnyPayloadAndSignStayNaN) {
  for (DType out : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (uint32_t bits : {0x7fffffffU, 0xffffffffU, 0x7fc00000U, 0xffc00001U, 0x7f800001U, 0xffbfffffU}) {
      ProblemSpec spec{.m = 15, .n = 37, .k = 3, .sizes = {15}, .out = out};
      TestProblem test(spec);
      for (int64_t i = 0; i < ElementCount(test.problem.lhs); i += spec.k) {
        std::memcpy(static_cast<uint32_t*>(test.problem.lhs.data) + i, &bits, sizeof(bits));
      }
      Run(test);
      for (int64_t i = 0; i < ElementCount(test.problem.out); ++i) {
        ASSERT_TRUE(std::isnan(ToDouble(test.problem.out, i))) << "element " << i << ", bits " << bits;
      }
    }
  }
}

// The total is a copy of the first accumulation chain, and the epilogue adds no zero. So a sum of -0 stays -0.
TEST_P(SpecialValues, SignedZeros) {
  std::vector<double> out;
  RunFilled({.m = 3, .n = 5, .k = 1}, -0.0, 1, &out);
  for (double value : out) EXPECT_TRUE(value == 0 && !std::signbit(value));  // fma(-0, 1, +0) is +0.
  ProblemSpec spec{.m = 3, .n = 5, .k = 300, .alpha = true};
  spec.sizes = {3};
  TestProblem test(spec);
  Fill(test.problem.lhs, -1e-30);
  Fill(test.problem.rhs, 1e-30);
  const std::vector<double> expected = ExpectedOut(test.problem).value();
  Run(test);
  EXPECT_TRUE(HasBits(test.problem.out, expected));
}

TEST_P(SpecialValues, TotalIsACopyOfTheFirstChain) {
  // The first fma rounds a tiny negative product to -0. Adding this to a total of +0 would lose the sign.
  std::vector<double> out;
  RunFilled({.m = 7, .n = 40, .k = 1}, -0x1p-100, 0x1p-100, &out);
  for (double value : out) EXPECT_TRUE(value == 0 && std::signbit(value));
}

TEST_P(SpecialValues, DenormalsAreKept) {
  std::vector<double> out;
  // lhs and the results are f32 denormals.
  RunFilled({.m = 9, .n = 35, .k = 3}, 0x1p-140, 0.5, &out);
  for (double value : out) EXPECT_EQ(value, 3 * 0x1p-141);
  for (const auto& [dtype, smallest] : {std::pair{DType::kF16, 0x1p-24}, {DType::kBF16, 0x1p-133}}) {
    ProblemSpec spec{.m = 9, .n = 35, .k = 3};
    // rhs stays f32, because products of bf16 flush denormals.
    spec.lhs = spec.out = dtype;
    RunFilled(spec, smallest, 1, &out);
    for (double value : out) EXPECT_EQ(value, 3 * smallest);
  }
}

// alpha multiplies the loss of products that round to zero. So alpha must multiply the error bound, too.
TEST_P(SpecialValues, LossesAmongDenormalsAreWithinTheBoundForAnyAlpha) {
  for (double alpha : {0.0, 0x1p-100, 1.0, 3.0, 0x1p120}) {
    ProblemSpec spec{.m = 9, .n = 35, .k = 300, .sizes = {9}, .alpha = true};
    TestProblem test(spec);
    // 0.6875 * 2^-150 is less than half of the smallest denormal, 2^-149, so the products round to zero.
    Fill(test.problem.lhs, 0.6875 * 0x1p-75);
    Fill(test.problem.rhs, 0x1p-75);
    StoreRounded(*test.problem.alpha, 0, alpha);
    Run(test);
    EXPECT_TRUE(IsWithinBound(test.problem.out, ComputeReference(test.problem).value())) << alpha;
  }
}

TEST_P(SpecialValues, EmptyContractionIgnoresAlpha) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK}) {
    ProblemSpec spec{.mode = mode, .groups = 1, .m = 6, .n = 18, .k = 0, .sizes = {0}, .alpha = true};
    if (mode == RaggedMode::kRaggedM) spec.sizes = {6};
    TestProblem test(spec);
    StoreRounded(*test.problem.alpha, 0, kNaN);
    Run(test);
    EXPECT_TRUE(HasBits(test.problem.out, std::vector<double>(6 * 18, 0.0)));
  }
}

// The first product of each sum underflows to -0. The sum stays -0 if all further products are -0, and becomes +0 if
// one is +0. So the sign of a result shows the sign of zeros in rhs.
TEST_P(SpecialValues, QuantizedZerosKeepTheirSign) {
  for (DType lhs : {DType::kBF16, DType::kF32}) {
    for (DType rhs : {DType::kF4E2M1FN, DType::kF8E4M3FN, DType::kF8E5M2}) {
      for (int64_t rows : {1, 4, 12, 40}) {
        for (bool flipped : {false, true}) {
          ProblemSpec spec{
              .m = rows, .n = 64, .k = 64, .sizes = {rows}, .rhs_flipped = flipped, .lhs = lhs, .rhs = rhs};
          spec.rhs_scale = flipped ? std::vector<int64_t>{1, 32} : std::vector<int64_t>{32, 1};
          spec.scale_type = DType::kF8E8M0FNU;
          // kTiles sums odd steps of k in a separate lane. This would stay +0 and hide the sign.
          spec.bf16_sums = ArithmeticId::kPairs;
          TestProblem test(spec);
          const auto at = [&](int64_t k, int64_t column) { return flipped ? column * 64 + k : k * 64 + column; };
          Fill(test.problem.lhs, -1);
          Fill(test.problem.rhs, 0);
          Fill(*test.problem.rhs_scale, 1);
          for (int64_t i = 0; i < rows; ++i)
            StoreRounded(test.problem.lhs, i * 64, lhs == DType::kF32 ? -0x1p-149 : -0x1p-126);
          for (int64_t column = 0; column < 64; ++column) {
            StoreRounded(test.problem.rhs, at(0, column), .5);
            if (column % 2 == 1) StoreRounded(test.problem.rhs, at(30, column), -0.0);
          }
          Run(test);
          for (int64_t i = 0; i < rows * 64; ++i) {
            const double got = ToDouble(test.problem.out, i);
            ASSERT_TRUE(got == 0 && std::signbit(got) == (i % 2 == 0)) << Describe(spec) << " " << i << " " << got;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
