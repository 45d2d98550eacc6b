#include "tests/host/check.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/host/case_problem.h"
#include "tests/host/checksum.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

CaseProblem Make(const std::string& text) {
  proto::GroupedGemmCase parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed)) << text;
  absl::StatusOr<proto::GroupedGemmCase> full = MakeExplicit(parsed);
  EXPECT_TRUE(full.ok()) << full.status();
  absl::StatusOr<CaseProblem> made = MakeCaseProblem(*full);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// out as the reference has it.
void Solve(const GroupedGemmProblem& problem) {
  const absl::StatusOr<Reference> reference = ComputeReference(problem);
  ASSERT_TRUE(reference.ok());
  for (size_t i = 0; i < reference->want.size(); ++i) StoreRounded(problem.out, i, reference->want[i]);
}

TEST(CheckTest, FindsTheWorstOfWrongElements) {
  const CaseProblem made = Make("K: 40 N: 30 group_sizes: [5,0,7,1]");
  Solve(made.problem);
  EXPECT_LE(CheckOut(made.problem, 1)->max_error, 1);
  const double bound = ComputeReferenceAt(made.problem, {77})->bound[0];
  for (const auto& [element, bounds] : {std::pair<int64_t, int>{12, 9}, {77, 60}, {200, 8}}) {
    StoreRounded(made.problem.out, element, ToDouble(made.problem.out, element) + bounds * bound);
  }
  const absl::StatusOr<Check> check = CheckOut(made.problem, 1);
  ASSERT_TRUE(check.ok());
  EXPECT_NEAR(check->max_error, 60, 1.5);
  EXPECT_EQ(check->worst, 77);
  EXPECT_EQ(check->compared, 13 * 30);
}

TEST(SampleOutTest, CoversEveryGroupAndTheLastRowAndColumn) {
  // 6e6 elements and 1.2e7 multiply-adds, groups from one row to thousands.
  const CaseProblem made = Make("K: 2 N: 1000 group_sizes: [5000,0,1,3,996]");
  const absl::StatusOr<std::vector<GroupProduct>> products = GroupProducts(made.problem);
  ASSERT_TRUE(products.ok());
  const std::vector<int64_t> sample = SampleOut(made.problem, *products, kSampleSize, 7);
  EXPECT_GE(sample.size(), 4096u);
  EXPECT_EQ(sample, SampleOut(made.problem, *products, kSampleSize, 7));
  const std::set<int64_t> elements(sample.begin(), sample.end());
  EXPECT_EQ(*elements.rbegin(), 6000 * 1000 - 1);
  int64_t row = 0;
  for (int64_t size : {5000, 1, 3, 996}) {
    int inside = 0, last_row = 0, last_column = 0;
    for (int64_t e : elements) {
      if (e / 1000 < row || e / 1000 >= row + size) continue;
      ++inside;
      last_row += e / 1000 == row + size - 1;
      last_column += e % 1000 == 999;
    }
    EXPECT_GE(inside, 500) << "group at row " << row;
    EXPECT_GE(last_row, 2);
    EXPECT_GE(last_column, 1);
    row += size;
  }
}

// ---- checksums ----

template <typename Bits>
uint64_t Of(DType dtype, std::vector<Bits> bits) {
  const int64_t dims[] = {static_cast<int64_t>(bits.size())};
  return Checksum({bits.data(), dtype, dims});
}

// The first numbers of SplitMix64 from state 0, as everybody's implementation has them.
TEST(Checksum, OfZerosIsTheSumOfTheGenerator) {
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {}), 0u);
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {0}), 0xe220a8397b1dcdaf);
  EXPECT_EQ(Of<uint16_t>(DType::kF16, {0, 0}), 0xe220a8397b1dcdaf + 0x6e789e6aa1b965f4);
}

TEST(Checksum, TellsZerosApartButNotNaNs) {
  EXPECT_NE(Of<uint32_t>(DType::kF32, {0x80000000}), Of<uint32_t>(DType::kF32, {0}));
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {0xffc12345}), Of<uint32_t>(DType::kF32, {0x7fc00000}));
  EXPECT_EQ(Of<uint16_t>(DType::kF16, {0xfc01}), Of<uint16_t>(DType::kF16, {0x7e00}));
  EXPECT_EQ(Of<uint16_t>(DType::kBF16, {0xff81}), Of<uint16_t>(DType::kBF16, {0x7fc0}));
  EXPECT_EQ(Of<uint64_t>(DType::kF64, {~uint64_t{0}}), Of<uint64_t>(DType::kF64, {0x7ff8000000000000}));
  EXPECT_NE(Of<uint16_t>(DType::kBF16, {0x7f80}), Of<uint16_t>(DType::kBF16, {0x7fc0}));
}

}  // namespace
}  // namespace raggemm::host
