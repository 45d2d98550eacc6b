// Failures become as small as they go, and the line which is printed for one is that case.
#include "tests/fuzz/fuzz_case.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

constexpr int64_t kTries = 5000;

TEST(FuzzCase, IsReadAsItIsWritten) {
  Random random(TestSeed());
  for (int i = 0; i < 500; ++i) {
    const FuzzCase written{RandomSpec(random), RandomWay(Isa{static_cast<uint8_t>(i % AllIsas().size())}, random)};
    ASSERT_TRUE(IsConsistent(written.spec)) << ToText(written);
    const absl::StatusOr<FuzzCase> read = ParseFuzzCase(ToText(written));
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << ToText(written);
    EXPECT_EQ(ToText(*read), ToText(written));
  }
}

TEST(FuzzCase, OfAnMlpIsReadAsItIsWritten) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  for (int i = 0; i < 500; ++i) {
    const FuzzCase written{{}, {.threads = i % 3}, PlainMlp(RandomMlpSpec(random))};
    ASSERT_TRUE(IsConsistent(*written.mlp)) << ToText(written);
    const absl::StatusOr<FuzzCase> read = ParseFuzzCase(ToText(written));
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << ToText(written);
    EXPECT_EQ(ToText(*read), ToText(written));
  }
}

TEST(FuzzCase, WhatIsNoCaseIsAnError) {
  for (const char* text : {"m",
                           "m=",
                           "m=x",
                           "rows=3",
                           "mode=ragged",
                           "sizes=1,,2",
                           "c=2",
                           "m=4 sizes=1 : isa=avx",
                           "m=4 sizes=5",
                           "m=4 sizes=-1",
                           "m=4 sizes=2,2",
                           "mode=uniform problems=2",
                           "m=1 sizes=1 group_offset=1",
                           "m=1 sizes=1 beta=1",
                           "mode=all_ragged sizes=1 n_sizes=1",
                           "mlp tokens=0 sizes=1",
                           "mlp m=3",
                           "mlp offset=1",
                           "mlp sizes=3 local=1 offset=1",
                           "mlp sizes=3,-1",
                           "mlp hidden=3 weights=s8",
                           "mlp activation=swiglu_oai"}) {
    EXPECT_FALSE(ParseFuzzCase(text).ok()) << text;
  }
  EXPECT_TRUE(ParseFuzzCase("m=4 sizes=4 : isa=scalar").ok());
  EXPECT_TRUE(ParseFuzzCase("mlp tokens=0 : isa=scalar").ok());
}

// Any failing case to the one that is the least for this reason.
std::string Least(bool (*fails)(const FuzzCase&)) {
  Random random(TestSeed());
  while (true) {
    const FuzzCase fuzz_case{RandomSpec(random), RandomWay(AllIsas().front(), random)};
    const bool has_sizes = fuzz_case.spec.problems * fuzz_case.spec.groups > 0;
    if (has_sizes && fails(fuzz_case)) return ToText(Shrink(fuzz_case, fails, kTries));
  }
}

TEST(Shrink, ToTheCause) {
  EXPECT_EQ(Least([](const FuzzCase& c) { return c.spec.mode == RaggedMode::kRaggedM && c.spec.k >= 7; }),
            "k=7 sizes=0 : ");
  EXPECT_EQ(Least([](const FuzzCase& c) { return c.way.threads > 2 && c.spec.mode == RaggedMode::kUniform; }),
            "mode=uniform : threads=3");
  EXPECT_EQ(Least([](const FuzzCase& c) {
              return c.spec.bias && c.spec.mode == RaggedMode::kRaggedK && c.way.isa == AllIsas().front();
            }),
            absl::StrCat("mode=ragged_k sizes=0 bias=1 : ",
                         AllIsas().size() == 1 ? "" : absl::StrCat("isa=", IsaName(AllIsas().front()))));
}

TEST(Shrink, GroupsAndSegments) {
  EXPECT_EQ(Least([](const FuzzCase& c) {
              const std::vector<int64_t>& sizes = c.spec.sizes;
              return c.spec.mode == RaggedMode::kRaggedN &&
                     std::count(sizes.begin(), sizes.end(), 0) < std::ssize(sizes);
            }),
            "mode=ragged_n sizes=1 : ");
  EXPECT_EQ(Least([](const FuzzCase& c) { return c.spec.mode == RaggedMode::kRaggedM && c.spec.groups > 2; }),
            "groups=3 sizes=0,0,0 : ");
}

TEST(Shrink, OfAnMlp) {
  const auto fails = [](const FuzzCase& c) {
    const std::vector<int64_t>& sizes = c.mlp->sizes;
    return c.mlp->hidden >= 7 && std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 4; });
  };
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  FuzzCase fuzz_case;
  do {
    fuzz_case.mlp.emplace(RandomMlpSpec(random));
  } while (!fails(fuzz_case) || IsQuantized(fuzz_case.mlp->weights));
  EXPECT_EQ(ToText(Shrink(fuzz_case, fails, kTries)), "mlp hidden=7 sizes=5 : ");
}

TEST(Shrink, StopsAfterSoManyTries) {
  int64_t tries = 0;
  Random random(TestSeed());
  const FuzzCase fuzz_case{RandomSpec(random), RandomWay(Isa::kScalar, random)};
  Shrink(
      fuzz_case, [&](const FuzzCase&) { return ++tries > 0; }, 3);
  EXPECT_EQ(tries, 3);
}

}  // namespace
}  // namespace raggemm::test
