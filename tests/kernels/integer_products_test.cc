// Tests that 8-bit integer products are exact modulo 2^32 on every ISA of the host. The oracle computes in 64 bits.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/check.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

ProblemSpec IntegerSpec(DType lhs, DType rhs, int64_t m, int64_t n, int64_t k) {
  ProblemSpec spec = OneGroup(lhs, rhs, m, n, k);
  spec.out = spec.bias_type = DType::kS32;
  return spec;
}

class IntegerProducts : public IsaTest {};
RAGGEMM_FOR_EACH_ISA(IntegerProducts);

// Every ISA has its own integer kernels, except avx512_bf16, neon_bf16, and AMX on CPUs without 8-bit tiles.
TEST_P(IntegerProducts, UseTheUnitOfTheIsa) {
  const TestProblem test(IntegerSpec(DType::kU8, DType::kS8, 3, 33, 100));
  std::vector<int64_t> workspace(1000);
  const std::string plan = ToString(MakePlan(test.problem, With(GetParam()), absl::MakeSpan(workspace)).value());
  const bool is_bf16_only = IsaName(GetParam()) == "avx512_bf16" || IsaName(GetParam()) == "neon_bf16";
  const bool own = !is_bf16_only && !(IsaName(GetParam()) == "amx" && HostLacksTilesOfBytes());
  EXPECT_EQ(plan.find(IsaName(GetParam()) + "\nblocking: ") != std::string::npos, own) << plan;
}

// beta = INT_MIN has the bits of -0.0f. It must not be taken for zero.
TEST_P(IntegerProducts, ReadCIfBetaIsTheLowestInteger) {
  ProblemSpec spec = IntegerSpec(DType::kS8, DType::kS8, 2, 3, 1);
  spec.c = spec.beta = true;
  const TestProblem test(spec);
  StoreRounded(*test.problem.beta, 0, -0x1p31);
  for (int64_t i = 0; i < 6; ++i) StoreRounded(*test.problem.c, i, 3);
  const std::vector<double> want = ExpectedOut(test.problem).value();
  ASSERT_TRUE(GroupedGemm(test.problem, With(GetParam())).ok());
  EXPECT_TRUE(HasBits(test.problem.out, want));
}

// Expects `want` on every ISA of the host. `want` must be computed without tests/oracle.
void ExpectOnEveryIsa(TestProblem& test, const std::vector<double>& want, const std::string& what) {
  for (Isa isa : HostIsas()) {
    test.ClearOut();
    ASSERT_TRUE(GroupedGemm(test.problem, {.executor = Executor::kSerial, .isa = isa}).ok());
    ASSERT_TRUE(HasBits(test.problem.out, want)) << IsaName(isa) << " " << what;
  }
}

TEST(IntegerProductsOnEveryIsa, EveryPairOfBytes) {
  for (DType lhs : kAllBytes) {
    for (DType rhs : kAllBytes) {
      for (int64_t k : {1, 2, 3, 4, 5}) {
        for (int64_t at = 0; at < k; ++at) {
          TestProblem test(IntegerSpec(lhs, rhs, 256, 256, k));
          const GroupedGemmProblem& problem = test.problem;
          for (int64_t i = 0; i < 256 * k; ++i) {
            const bool is_at = i % k == at;
            StoreRounded(problem.lhs, i, is_at ? static_cast<double>(i / k) : 0);
            StoreRounded(problem.rhs, i, i / 256 == at ? static_cast<double>(i % 256) : 255);
          }
          std::vector<double> want;
          for (int64_t i = 0; i < 256; ++i) {
            for (int64_t j = 0; j < 256; ++j) {
              const int64_t a = lhs == DType::kS8 ? static_cast<int8_t>(i) : i;
              want.push_back(static_cast<double>(a * (rhs == DType::kS8 ? static_cast<int8_t>(j) : j)));
            }
          }
          ExpectOnEveryIsa(test, want, absl::StrCat(NameOf(lhs), NameOf(rhs), k, at));
        }
      }
    }
  }
}

// The larger extents of k let sums exceed 2^31 or 2^32.
TEST(IntegerProductsOnEveryIsa, WrapAround) {
  for (DType lhs : kAllBytes) {
    for (DType rhs : kAllBytes) {
      for (int64_t k : {256, 33'026, 70'000, 140'003}) {
        for (int ends = 0; ends < 4; ++ends) {
          if (!Sampled(8)) continue;
          TestProblem test(IntegerSpec(lhs, rhs, 3, 33, k));
          const GroupedGemmProblem& problem = test.problem;
          const auto fill = [](const Array& array, bool high) {
            const double low = array.dtype == DType::kS8 ? -128 : 0, top = array.dtype == DType::kS8 ? 127 : 255;
            std::memset(array.data, static_cast<int>(high ? top : low), static_cast<size_t>(ElementCount(array)));
            return static_cast<int64_t>(high ? top : low);
          };
          const int64_t a = fill(problem.lhs, ends & 1), b = fill(problem.rhs, ends & 2);
          const std::vector<double> want(ElementCount(problem.out), static_cast<int32_t>(a * b * k));
          ExpectOnEveryIsa(test, want, absl::StrCat(NameOf(lhs), NameOf(rhs), k, " ", ends));
        }
      }
    }
  }
}

TEST(IntegerProductsOnEveryIsa, MisalignedStartsAndSpecialValues) {
  ProblemSpec spec = IntegerSpec(DType::kS8, DType::kS8, 24, 64, 64);
  spec.groups = 3;
  spec.sizes = {1, 7, 16};
  spec.c = spec.bias = spec.alpha = spec.beta = spec.special_values = true;
  for (spec.gap_elements = 0; spec.gap_elements < 9; ++spec.gap_elements) {
    for (Cliff cliff : {Cliff::kBehind, Cliff::kBefore}) {
      spec.cliff = cliff;
      for (const ProblemSpec& variant : StorageVariants(spec)) ASSERT_TRUE(GivesExpectedBits(variant));
    }
  }
}

}  // namespace
}  // namespace raggemm::test
