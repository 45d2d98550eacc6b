// XLA's side of the C interface, told to misbehave one way at a time. Each case ends with a defined error and out
// untouched, or with the right answer: against the bits of the rule and against the float64 reference.
//
//   frames.cc       the frame, its API, its lists, each of its buffers
//   attributes.cc   each attribute in every wrong form
//   buffers.cc      types, shapes, places, the workspace, memory that operands share
//   sizes.cc        what a router may write; extents without elements
//   pools.cc        the pool, and many calls at once
//   moe_mlp.cc      types, sizes and extents of expert MLPs; the first three files go through all custom calls
//
// Here every buffer of a call lies between two unmapped pages, once flush with its end and once with its beginning: a
// byte that is read or written beyond it ends the process.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

void IsRightWithEveryIsa(const ProblemSpec& spec, host::TaskRunner* pool) {
  HostileCall call(spec);
  for (Isa isa : HostIsas()) {
    call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
    ASSERT_EQ(call.Execute(pool).message, "") << Describe(spec);
    ASSERT_TRUE(call.IsRight()) << IsaName(isa) << ", " << Describe(spec);
  }
}

// Extents around the widths of vectors and register tiles.
struct Extents {
  int64_t m, n, k;
};
constexpr Extents kExtents[] = {{1, 1, 1}, {3, 17, 5}, {8, 33, 300}, {15, 64, 31}, {30, 95, 16}};

TEST(GuardPagesTest, EveryStorageOfEveryModeFlushWithBoth) {
  host::ThreadPool pool(2);
  for (Cliff cliff : {Cliff::kBehind, Cliff::kBefore}) {
    for (const ProblemSpec& base : OneOfEachMode(/*with_c=*/true)) {
      for (const Extents& extents : kExtents) {
        for (ProblemSpec spec : StorageVariants(base)) {
          spec.m = extents.m, spec.n = extents.n, spec.k = extents.k;
          const int64_t extent = spec.mode == RaggedMode::kRaggedM   ? spec.m
                                 : spec.mode == RaggedMode::kRaggedN ? spec.n
                                                                     : spec.k;
          // All of the extent, so that the last group ends where the buffer does.
          if (spec.sizes.size() == 4 && spec.mode != RaggedMode::kAllRagged) {
            spec.sizes = {extent / 3, 0, extent / 4, extent - extent / 3 - extent / 4};
          }
          if (spec.mode == RaggedMode::kAllRagged) {
            spec.sizes = {0, extents.m, 2, 1}, spec.n_sizes = {3, extents.n, 0, 7}, spec.k_sizes = {1, extents.k, 4, 2};
            spec.slack = 0;
          }
          spec.alpha = spec.beta = true;
          spec.lhs = kAllFloats[extents.n % 4], spec.rhs = kAllFloats[extents.k % 4];
          spec.cliff = cliff;
          IsRightWithEveryIsa(spec, &pool);
        }
      }
    }
  }
}

TEST(GuardPagesTest, RandomProblemsFlushWithBoth) {
  Random random(TestSeed() + 1);
  host::ThreadPool pool(2);
  for (int i = 0; i < 500; ++i) {
    ProblemSpec spec = RandomSpec(random);
    spec.gap_elements = 0;
    spec.cliff = i % 2 == 0 ? Cliff::kBehind : Cliff::kBefore;
    IsRightWithEveryIsa(spec, &pool);
  }
}

}  // namespace
}  // namespace raggemm::test
