// Tests of the prefetches during the walk over a tile. The bits of results show whether the walk itself is right.
#include "kernels/plan/block.h"

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/check/problem.h"
#include "kernels/plan/rhs_layout.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/plan/strategy.h"
#include "kernels/run/prefetch.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

class BlockTest : public testing::Test {
 protected:
  void Make(const ProblemSpec& spec, const Cpu& cpu = HostCpu()) {
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    plan_ = MakeSchedule(problem_->problem, {.isa = Isa::kScalar, .cpu = cpu}, absl::MakeSpan(workspace_)).value();
  }

  // Numbers of the lines from data on. Moves on, as kernels do.
  static void AddLines(Prefetch& prefetch, const char* data, std::set<int64_t>& lines) {
    for (; prefetch.count > 0; --prefetch.count) {
      lines.insert((prefetch.line - data) / 64);
      const bool ends = --prefetch.run_left == 0;
      prefetch.line += ends ? prefetch.skip : 64;
      if (ends) prefetch.run_left = prefetch.run;
    }
  }

  // What the parts of all strips and row tiles of a block fetch, as lines from the start of rhs.
  void PrefetchAll(Prefetcher& fetch, const TileTask& place, const Block& block, std::set<int64_t>& lines) {
    Panel panel;
    for (int64_t col = 0; col < block.cols; col += panel.cols) {
      panel = NextPanel(plan_.tile, place, block.cols - col);
      if (!panel.mode->reads_rhs) AddLines(*fetch.For(Prefetcher::Work::kPack), block.rhs.data, lines);
      for (int64_t i = 0; i < place.rows.count; ++i)
        AddLines(*fetch.For(Prefetcher::Work::kKernel), block.rhs.data, lines);
    }
  }

  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  Schedule plan_;
};

// The parts of all strips of a block are each line of the next block once, in either order, few rows or many.
TEST_F(BlockTest, FetchesTheNextBlock) {
  Cpu cpu = HostCpu();  // with numbers that give both orders
  cpu.fmas_per_cycle = 32;
  cpu.memory_bytes_per_cycle = 5.5;
  cpu.l2_bytes_per_cycle = 32;
  cpu.cycles_per_call = 120;
  cpu.l1_bytes = 48 << 10;
  cpu.l2_bytes = 2 << 20;
  cpu.block_bytes = 384 << 10;
  cpu.prefetch_panels_below = 1.25;
  for (bool rhs_flipped : {false, true}) {
    for (int64_t rows : {rhs_flipped ? 230 : 1, 90}) {
      ProblemSpec spec{.groups = 1, .m = rows, .n = 640, .k = 512, .sizes = {rows}};
      spec.rhs_flipped = rhs_flipped;
      Make(spec, cpu);
      const TileTask place(plan_, 0);
      Block block, next;
      ASSERT_TRUE(FirstBlock(plan_.tile, place, block));
      next = block;
      ASSERT_TRUE(NextBlock(plan_.tile, place, next));
      EXPECT_EQ(place.plan.prefetch, rows == 1 && !rhs_flipped ? TilePlan::Order::kPanels : TilePlan::Order::kRows);
      Prefetcher fetch(plan_, place, 0);
      fetch.StartBlock(block, &next);
      const int64_t size = SizeOf(plan_.tile.call.rhs.dtype);
      std::set<int64_t> want, got;  // lines of the matrix, which need not begin with one of memory
      for (int64_t k = 0; k < next.steps; ++k) {
        for (int64_t col = 0; col < next.cols; ++col) {
          const int64_t at = (next.k + k) * next.rhs.row_step + (next.col + col) * next.rhs.col_step;
          want.insert(at * size / 64);
        }
      }
      PrefetchAll(fetch, place, block, got);
      EXPECT_EQ(got, want) << "rows " << rows << (rhs_flipped ? ", flipped" : "");
    }
  }
}

// Where all blocks along k come first, they fetch the columns behind them together, each line once.
TEST_F(BlockTest, FetchesTheNextColumns) {
  for (int64_t k : {511, 2048}) {
    ProblemSpec spec{.groups = 1, .m = 3, .n = 640, .k = k, .sizes = {3}};
    spec.rhs_flipped = true;
    Make(spec);
    const TileTask place(plan_, 0);
    ASSERT_TRUE(place.blocks.k_inner);
    Block block;
    ASSERT_TRUE(FirstBlock(plan_.tile, place, block));
    const int64_t begin = block.cols * k, size = SizeOf(plan_.tile.call.rhs.dtype);
    Prefetcher fetch(plan_, place, 0);
    std::set<int64_t> want, got;
    for (int64_t at = begin; at < begin + block.cols * k; ++at) want.insert(at * size / 64);
    while (block.col == 0) {
      Block next = block;
      ASSERT_TRUE(NextBlock(plan_.tile, place, next));
      fetch.StartBlock(block, &next);
      PrefetchAll(fetch, place, block, got);
      block = next;
    }
    // A column that does not begin with a line shares one with the column before.
    if (k % 16 != 0) got.erase(*want.rbegin()), want.erase(*want.rbegin());
    EXPECT_EQ(got, want) << k;
  }
}

}  // namespace
}  // namespace raggemm::test
