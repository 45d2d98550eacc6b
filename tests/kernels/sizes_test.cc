// Tests wrong group sizes, as a router may compute them at run time.
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/check/problem.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/check.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

void Set(const Array& array, int64_t index, int64_t value) {
  const size_t bytes = SizeOf(array.dtype);
  std::memcpy(static_cast<char*>(array.data) + index * bytes, &value, bytes);
}

class Sizes : public testing::Test {
 protected:
  static void SetAll(const TestProblem& test, int64_t index, int64_t value) {
    const DimsArrays arrays(test.problem);
    for (const DimsArray& array : arrays.at) {
      if (array.is_set()) Set(**array.dims, index, value);
    }
  }
};

ProblemSpec SizesSpec(RaggedMode mode, DType sizes_type) {
  ProblemSpec spec{
      .mode = mode, .groups = 4, .m = 20, .n = 20, .k = 20, .sizes = {3, 7, 0, 5}, .sizes_type = sizes_type};
  if (mode == RaggedMode::kAllRagged) {
    spec.n_sizes = {2, 3, 4, 5};
    spec.k_sizes = {6, 1, 2, 3};
  }
  return spec;
}

constexpr RaggedMode kRaggedModes[] = {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN,
                                       RaggedMode::kAllRagged};

TEST_F(Sizes, ImpossibleValuesAreErrors) {
  for (RaggedMode mode : kRaggedModes) {
    for (DType dtype : kAllSizesTypes) {
      const int64_t most = dtype == DType::kS64 ? kMax : dtype == DType::kS32 ? 0x7FFFFFFF : 0xFFFFFFFF;
      for (const ProblemSpec& spec : StorageVariants(SizesSpec(mode, dtype))) {
        if (dtype != DType::kU32) {
          const TestProblem negative(spec);
          SetAll(negative, 2, -3);
          ExpectParts(ErrorOf(negative), {"_", "group 2", "-3", "0"});
        }
        const TestProblem overflowing(spec);
        SetAll(overflowing, 1, most);
        SetAll(overflowing, 2, most);
        ExpectParts(ErrorOf(overflowing), {"group 1", std::to_string(most)});
        if (mode == RaggedMode::kAllRagged) continue;
        const TestProblem test(spec);
        SetAll(test, 3, 11);  // The sum 3 + 7 + 0 + 11 exceeds the extent 20.
        ExpectParts(ErrorOf(test), {"_", "group 3", "11", "20"});
      }
    }
  }
}

TEST_F(Sizes, ErrorsNameProblemAndReplica) {
  ProblemSpec spec = SizesSpec(RaggedMode::kRaggedM, DType::kS32);
  spec.problems = 2;
  spec.replicas = 3;
  spec.sizes.assign(2 * 3 * 4, 2);
  const TestProblem test(spec);
  SetAll(test, (1 * 3 + 2) * 4 + 3, 15);
  ExpectParts(ErrorOf(test), {"group 3", "problem 1", "replica 2", "15", "20"});
}

TEST_F(Sizes, ReplicasOfRaggedNMustHaveTheSame) {
  ProblemSpec spec = SizesSpec(RaggedMode::kRaggedN, DType::kS32);
  spec.replicas = 2;
  spec.sizes = {1, 2, 3, 4, 1, 2, 2, 4};
  const TestProblem test(spec);
  ExpectParts(ErrorOf(test), {"group 2", "replica 1", "3", "2"});
}

TEST_F(Sizes, WrongShapesAreErrors) {
  const auto error = [](const std::vector<int64_t>& dims, const std::vector<int64_t>& values, bool both) {
    TestProblem test(SizesSpec(RaggedMode::kRaggedM, DType::kS32));
    test.problem.lhs.first_dims = test.AddIntegers(DType::kS32, dims, values);
    if (both) test.problem.out.first_dims = test.problem.lhs.first_dims;
    return ErrorOf(test);
  };
  ExpectParts(error({3}, {1, 2, 3}, false), {"lhs_first", "out_first", "[3]", "[4]"});
  ExpectParts(error({2, 2}, {1, 2, 3, 4}, true), {"lhs_first", "[2,2]", "[P,R,G]"});
  ExpectParts(error({}, {1}, true), {"lhs_first", "[G]"});
  ExpectParts(error({1, 1, 1, 4}, {1, 2, 3, 4}, true), {"lhs_first", "[1,1,1,4]"});
}

TEST_F(Sizes, AllRaggedHasOneReplica) {
  ProblemSpec spec = StorageVariants(SizesSpec(RaggedMode::kAllRagged, DType::kS32)).front();
  spec.problems = 1;
  spec.replicas = 2;
  for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) sizes->insert(sizes->end(), 4, 1);
  ExpectParts(ErrorOf(TestProblem(spec)), {"replica"});
}

// Each size alone fits into int64. Their product overflows, or is larger than the buffer.
TEST_F(Sizes, AllRaggedBlocksMustFitIntoTheBuffer) {
  for (const ProblemSpec& spec : StorageVariants(SizesSpec(RaggedMode::kAllRagged, DType::kS64))) {
    for (int64_t size : {int64_t{1} << 32, int64_t{100}}) {
      const TestProblem test(spec);
      SetAll(test, 3, size);
      ExpectParts(ErrorOf(test), {"group 3", std::to_string(size)});
    }
  }
}

TEST_F(Sizes, AllRaggedErrorsNameTheOperand) {
  const TestProblem test(StorageVariants(SizesSpec(RaggedMode::kAllRagged, DType::kS32)).front());
  for (const RaggedDims& dims : {test.problem.rhs.last_dims, test.problem.out.last_dims}) {
    static_cast<int32_t*>(dims->data)[3] = 100;
  }
  ExpectParts(ErrorOf(test), {"rhs: group 3 has"});
}

TEST_F(Sizes, SumBelowTheExtentIsLegal) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN}) {
    const TestProblem test(SizesSpec(mode, DType::kS32));
    EXPECT_EQ(GroupedGemm(test.problem), absl::OkStatus());
    SetAll(test, 3, 10);
    EXPECT_EQ(GroupedGemm(test.problem), absl::OkStatus());
  }
}

}  // namespace
}  // namespace raggemm::test
