#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/check/workspace.h"
#include "kernels/mlp/workspace.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {
namespace {

struct Region {
  const void* data;
  int64_t bytes;
  bool is_aligned = true;
};

// Returns the memory of every array of `b`. The sizes are those in the comments of kernels/mlp/workspace.h.
std::vector<Region> RegionsOf(const MlpBuffers& b, const MoeMlpExtents& e, bool is_backward) {
  const int64_t rows = std::min<int64_t>(e.rows, 256), all = is_backward ? ChunkRowsOf(e) : rows;
  const int64_t size = is_backward ? e.element_bytes : 4;
  std::vector<Region> regions = {{b.chunk_sizes, 8 * e.groups},
                                 {b.tokens, 8 * e.rows},
                                 {b.x, size * all * e.hidden},
                                 {b.a, size * all * e.intermediate},
                                 {b.up, 4 * rows * 2 * e.intermediate}};
  if (e.sums_tokens) regions.push_back({b.sums, 4 * e.tokens * e.hidden});
  const auto [constant, per_group] = WorkspaceSizeFor(2);
  for (absl::Span<int64_t> plan : {b.of_sizes, b.of_products, b.of_gate}) {
    EXPECT_EQ(static_cast<int64_t>(plan.size()), constant + per_group * e.groups);
    regions.push_back({plan.data(), static_cast<int64_t>(8 * plan.size())});
  }
  EXPECT_EQ(static_cast<const void*>(b.d), is_backward ? static_cast<const void*>(b.up) : b.x);
  if (!is_backward && e.has_slots) {
    const MlpPassBuffers& pass = b.pass;
    const int64_t in_pass = std::min<int64_t>(e.rows, 8192);
    for (const int64_t* x : {pass.slots, pass.order}) regions.push_back({x, 8 * e.rows});
    for (const int64_t* x : {pass.rows, pass.positions, pass.tokens}) regions.push_back({x, 8 * in_pass});
    regions.push_back({pass.sizes, 8 * e.groups});
    regions.push_back({pass.weights, 4 * in_pass});
    regions.push_back({pass.d, 4 * in_pass * e.hidden});
  }
  if (!is_backward && e.rounds_rows) {
    const auto add = [&](const RoundedLhs& x, int64_t x_rows, int64_t columns) {
      regions.push_back({x.codes, x_rows * ((columns + 15) / 16 * 16)});
      regions.push_back({x.scales, 4 * x_rows * ((columns + 31) / 32)});
    };
    add(b.rounded_x, std::max(e.tokens, rows), e.hidden);
    add(b.rounded_a, rows, e.intermediate);
    regions.push_back({b.is_routed, e.tokens});
  }
  if (!is_backward) return regions;
  // In gradient calls, MlpBuffers::d shares the memory of MlpBuffers::up, which is regions[4].
  regions[4].bytes = std::max(regions[4].bytes, 4 * rows * e.hidden);
  regions.push_back({b.a_gradient, 4 * rows * e.intermediate});
  regions.push_back({b.out_gradient, size * rows * e.hidden});
  regions.push_back({b.weighted, size * all * e.hidden});
  regions.push_back({b.up_gradient, size * all * 2 * e.intermediate});
  regions.push_back({b.ones, size * all});
  if (e.sums_weights && all < e.rows) {
    const MlpWeightSums& sums = b.weight_sums;
    for (const float* x : {sums.up, sums.gate, sums.down}) {
      regions.push_back({x, 4 * e.hidden * e.intermediate, x != sums.gate});
    }
    for (const float* x : {sums.b_up, sums.b_gate}) regions.push_back({x, 4 * e.intermediate, x == sums.b_up});
    regions.push_back({sums.b_down, 4 * e.hidden});
  }
  return regions;
}

TEST(MlpBuffersTest, DoNotOverlap) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  for (int i = 0; i < 400; ++i) {
    const MoeMlpExtents extents = {.tokens = up_to(200),
                                   .hidden = up_to(90),
                                   .intermediate = up_to(90),
                                   .rows = up_to(i % 2 == 0 ? 40 : 9000),
                                   .groups = up_to(9),
                                   .element_bytes = int64_t{2} << up_to(1),
                                   .sums_tokens = up_to(1) == 0,
                                   .sums_weights = up_to(1) == 0,
                                   .has_slots = up_to(1) == 0,
                                   .rounds_rows = up_to(1) == 0};
    for (bool is_backward : {false, true}) {
      const int64_t size = WorkspaceSizeFor(extents, is_backward);
      std::vector<int64_t> memory(static_cast<size_t>(size) + 8);
      const absl::Span<int64_t> workspace = absl::MakeSpan(memory).subspan(up_to(7), static_cast<size_t>(size));
      std::vector<Region> regions = RegionsOf({extents, is_backward, workspace.data()}, extents, is_backward);
      std::sort(regions.begin(), regions.end(), [](const Region& x, const Region& y) {
        return std::pair(x.data, x.bytes) < std::pair(y.data, y.bytes);
      });
      const auto* end = reinterpret_cast<const char*>(workspace.data());
      for (const auto& [data, bytes, is_aligned] : regions) {
        ASSERT_GE(static_cast<const char*>(data), end) << "call " << i << ", backward " << is_backward;
        ASSERT_TRUE(!is_aligned || reinterpret_cast<uintptr_t>(data) % 64 == 0);
        end = static_cast<const char*>(data) + bytes;
      }
      ASSERT_LE(end, reinterpret_cast<const char*>(workspace.data() + size));
    }
  }
}

// The workspace begins or ends close to an unmapped page: at most seven elements away.
TEST(MlpBuffersTest, StayWithinTheWorkspace) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  const std::vector<Isa> isas = HostIsas();
  for (size_t i = 0; i < 48; ++i) {
    const MlpSpec spec = RandomMlpSpec(random);
    SCOPED_TRACE(testing::Message() << "seed " << spec.seed);
    TestMlpBackward call(spec);
    const Options options = {.executor = Executor::kOpenMp, .isa = isas[i % isas.size()], .threads = 2};
    ASSERT_EQ(call.Run(options), absl::OkStatus());
    const std::vector<uint64_t> expected = call.Bits(), out = SequenceBits(call.mlp);
    for (Cliff cliff : {Cliff::kBehind, Cliff::kBefore}) {
      const auto with = [&](int64_t elements, auto run) {
        const GuardedBuffer memory(static_cast<size_t>(8 * elements), 8 * (i % 8), cliff);
        ASSERT_EQ(run(absl::Span<int64_t>(static_cast<int64_t*>(memory.data()), static_cast<size_t>(elements))),
                  absl::OkStatus());
        EXPECT_TRUE(memory.SurroundingsIntact());
      };
      call.ClearGradients();
      with(MoeMlpBackwardWorkspaceSize(call.Extents()),
           [&](absl::Span<int64_t> workspace) { return MoeMlpBackward(call.problem, options, workspace); });
      ASSERT_EQ(call.Bits(), expected);
      TestMlp mlp(spec);
      with(MoeMlpWorkspaceSize(mlp.Extents()),
           [&](absl::Span<int64_t> workspace) { return MoeMlp(mlp.problem, options, workspace); });
      ASSERT_EQ(mlp.OutBits(), out);
    }
  }
}

TEST(MlpBuffersTest, OneElementTooFewIsAnError) {
  TestMlpBackward call({});
  const int64_t needed = MoeMlpBackwardWorkspaceSize(call.Extents());
  std::vector<int64_t> memory(static_cast<size_t>(needed));
  const absl::Status status = MoeMlpBackward(call.problem, {}, absl::MakeSpan(memory).first(memory.size() - 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), absl::StrCat("int64_workspace has ", needed - 1, " elements, ", needed, " are needed"));
}

}  // namespace
}  // namespace raggemm::test
