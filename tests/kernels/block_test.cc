// Tests which cache lines of rhs are prefetched for a tile, and which pages are translated. Other tests cover the
// division of a tile into blocks.
#include "kernels/plan/block.h"

#include <cstdint>
#include <memory>
#include <optional>
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
  void MakeScheduleOf(const ProblemSpec& spec, const Options& options = {.isa = Isa::kScalar}) {
    problem_ = std::make_unique<TestProblem>(spec);
    workspace_.resize(1000);
    schedule_ = MakeSchedule(problem_->problem, options, absl::MakeSpan(workspace_)).value();
  }

  // Returns a CPU for which the cost model uses both orders of prefetches and several blocks in a row of rhs.
  static Cpu CpuWithAllPlans() {
    Cpu cpu = HostCpu();
    cpu.fmas_per_cycle = 32;
    cpu.memory_bytes_per_cycle = 5.5;
    cpu.l2_bytes_per_cycle = 32;
    cpu.cycles_per_call = 120;
    cpu.l1_bytes = 48 << 10;
    cpu.l2_bytes = 2 << 20;
    cpu.block_bytes = 384 << 10;
    cpu.gemv_row_bytes = 0;
    cpu.prefetch_panels_below = 1.25;
    return cpu;
  }

  // Uses up `prefetch` like a kernel. Adds the indices of the prefetched cache lines to `lines`, counted from `data`.
  static void AddLines(Prefetch& prefetch, const char* data, std::set<int64_t>& lines) {
    for (; prefetch.count > 0; --prefetch.count) {
      lines.insert((prefetch.line - data) / 64);
      const bool ends = --prefetch.run_left == 0;
      prefetch.line += ends ? prefetch.skip : 64;
      if (ends) prefetch.run_left = prefetch.run;
    }
  }

  // Adds to `lines` all cache lines that are prefetched during `block`, counted from block.rhs.data.
  void PrefetchAll(Prefetcher& prefetcher, const TileTask& task, const Block& block, std::set<int64_t>& lines) {
    Panel panel;
    for (int64_t col = 0; col < block.cols; col += panel.cols) {
      panel = NextPanel(schedule_.tile, task, block.cols - col);
      if (!panel.mode->reads_rhs) AddLines(*prefetcher.For(Prefetcher::Work::kPack), block.rhs.data, lines);
      for (int64_t i = 0; i < task.rows.count; ++i)
        AddLines(*prefetcher.For(Prefetcher::Work::kKernel), block.rhs.data, lines);
    }
  }

  static int64_t PageAt(const char* at) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) / 4096); }
  // Returns the pages that `block` of an f32 rhs reads.
  static std::set<int64_t> PagesOf(const TileTask& task, const Block& block) {
    std::set<int64_t> pages;
    for (int64_t k = block.k; k < block.k + block.steps; ++k) {
      for (int64_t col = block.col; col < block.col + block.cols; ++col) {
        pages.insert(PageAt(ElementAt(block.rhs, DType::kF32, k, task.window.col + col)));
      }
    }
    return pages;
  }

  std::unique_ptr<TestProblem> problem_;
  std::vector<int64_t> workspace_;
  Schedule schedule_;
};

// While one block is computed, all cache lines of the next block are prefetched, and no others.
TEST_F(BlockTest, PrefetchesTheNextBlock) {
  const Cpu cpu = CpuWithAllPlans();
  for (bool rhs_flipped : {false, true}) {
    for (int64_t rows : {rhs_flipped ? 230 : 1, 90}) {
      ProblemSpec spec{.groups = 1, .m = rows, .n = 640, .k = 512, .sizes = {rows}};
      spec.rhs_flipped = rhs_flipped;
      MakeScheduleOf(spec, {.isa = Isa::kScalar, .cpu = cpu});
      const TileTask task(schedule_, 0);
      Block block, next;
      ASSERT_TRUE(FirstBlock(schedule_.tile, task, block));
      next = block;
      ASSERT_TRUE(NextBlock(schedule_.tile, task, next));
      EXPECT_EQ(task.plan.prefetch_order,
                rows == 1 && !rhs_flipped ? TilePlan::Order::kPanels : TilePlan::Order::kRows);
      Prefetcher prefetcher(schedule_, task, 0);
      prefetcher.StartBlock(block, &next);
      const int64_t size = SizeOf(schedule_.tile.call.rhs.dtype);
      // Indices of cache lines: `want` has those of the next block, `got` those that were prefetched. They count 64
      // bytes each from the start of the matrix, which need not be aligned to a cache line.
      std::set<int64_t> want, got;
      for (int64_t k = 0; k < next.steps; ++k) {
        for (int64_t col = 0; col < next.cols; ++col) {
          const int64_t at = (next.k + k) * next.rhs.row_step + (next.col + col) * next.rhs.col_step;
          want.insert(at * size / 64);
        }
      }
      PrefetchAll(prefetcher, task, block, got);
      EXPECT_EQ(got, want) << "rows " << rows << (rhs_flipped ? ", flipped" : "");
    }
  }
}

// This tile computes its blocks along k first. While the first columns are computed, all cache lines of the next
// columns are prefetched, and no others.
TEST_F(BlockTest, PrefetchesTheNextColumns) {
  for (int64_t k : {511, 2048}) {
    ProblemSpec spec{.groups = 1, .m = 3, .n = 640, .k = k, .sizes = {3}};
    spec.rhs_flipped = true;
    MakeScheduleOf(spec);
    const TileTask task(schedule_, 0);
    ASSERT_TRUE(task.blocks.k_inner);
    Block block;
    ASSERT_TRUE(FirstBlock(schedule_.tile, task, block));
    const int64_t begin = block.cols * k, size = SizeOf(schedule_.tile.call.rhs.dtype);
    Prefetcher prefetcher(schedule_, task, 0);
    std::set<int64_t> want, got;
    for (int64_t at = begin; at < begin + block.cols * k; ++at) want.insert(at * size / 64);
    while (block.col == 0) {
      Block next = block;
      ASSERT_TRUE(NextBlock(schedule_.tile, task, next));
      prefetcher.StartBlock(block, &next);
      PrefetchAll(prefetcher, task, block, got);
      block = next;
    }
    // The last line of `want` is ignored if k does not fill whole cache lines: it may also belong to later columns.
    if (k % 16 != 0) got.erase(*want.rbegin()), want.erase(*want.rbegin());
    EXPECT_EQ(got, want) << k;
  }
}

// Pages are translated before the block that first reads them. Few of them were known before. Such a page also has the
// end of a row that an earlier block has read.
TEST_F(BlockTest, TranslatesNewPages) {
  struct Case {
    int64_t rows, k, n;
    bool rhs_flipped;
  };
  for (const auto& [rows, k, n, rhs_flipped] : {Case{1, 600, 1500, false}, Case{200, 600, 1500, false},
                                                Case{16, 2500, 200, true}, Case{230, 2500, 200, true}}) {
    ProblemSpec spec{.groups = 1, .m = rows, .n = n, .k = k, .sizes = {rows}};
    spec.rhs_flipped = rhs_flipped;
    MakeScheduleOf(spec, {.threads = 1, .cpu = CpuWithAllPlans()});  // With the kernels of the host.
    const TileTask task(schedule_, 0);
    NextTile next_tile(schedule_, 0);
    Block block, next;
    ASSERT_TRUE(FirstBlock(schedule_.tile, task, block));
    // A GEMV translates pages of its own block. Nothing translates the first rows of its tile, or the first columns of
    // a tile whose blocks go along k.
    const bool is_gemv = task.plan.mode == RhsMode::kGemv;
    std::set<int64_t> known;
    if (!is_gemv) known = PagesOf(task, block);
    for (next = block; NextBlock(schedule_.tile, task, next); block = next) {
      const PrefetchTarget target =
          LayoutOf(schedule_.tile).prefetch_target(schedule_.tile, task, block, &next, next_tile);
      int64_t known_before = 0;
      ForEachNewPage(target, [&](const char* at) { known_before += !known.insert(PageAt(at)).second; });
      EXPECT_LE(known_before, 2 + target.rows / 2) << "rows " << rows << ", k " << block.k << ", column " << block.col;
      if (is_gemv ? block.k == 0 : task.blocks.k_inner && next.col == 0) continue;
      for (int64_t page : PagesOf(task, is_gemv ? block : next)) {
        EXPECT_TRUE(known.contains(page)) << "rows " << rows << ", k " << block.k << ", column " << block.col;
      }
    }
  }
}

// A GEMV prefetches along rows of at least Cpu::gemv_row_bytes, and no other lines. It prefetches shorter rows as a
// whole, unless it has several register tiles.
TEST_F(BlockTest, PrefetchesAlongLongRows) {
  const std::optional<Isa> avx2 = IsaOf("avx2");
  if (!avx2 || !HostCpu().Has(*avx2)) GTEST_SKIP() << "this CPU does not have AVX2";
  Cpu cpu = CpuWithAllPlans();
  struct Case {
    DType dtype;
    int64_t rows, n, row_bytes, want;
  };
  for (const auto& [dtype, rows, n, row_bytes, want] :
       {Case{DType::kF32, 1, 2560, 10240, 64}, Case{DType::kF32, 1, 2560, 10241, 0}, Case{DType::kF32, 1, 2560, 0, 0},
        Case{DType::kF32, 12, 2560, 10241, 64}, Case{DType::kF32, 12, 2560, 0, 0},
        Case{DType::kBF16, 1, 2560, 5120, 192}, Case{DType::kF64, 1, 2560, 20480, 0}}) {
    ProblemSpec spec{.groups = 1, .m = rows, .n = n, .k = 600, .sizes = {rows}};
    spec.lhs = spec.rhs = dtype;
    spec.out = dtype == DType::kF64 ? dtype : DType::kF32;
    cpu.gemv_row_bytes = row_bytes;
    MakeScheduleOf(spec, {.isa = *avx2, .threads = 1, .cpu = cpu});
    const TileTask task(schedule_, 0);
    ASSERT_EQ(task.plan.mode, RhsMode::kGemv);
    NextTile next_tile(schedule_, 0);
    Block block;
    ASSERT_TRUE(FirstBlock(schedule_.tile, task, block));
    Block next = block;
    ASSERT_TRUE(NextBlock(schedule_.tile, task, next));
    const PrefetchTarget target =
        LayoutOf(schedule_.tile).prefetch_target(schedule_.tile, task, block, &next, next_tile);
    EXPECT_EQ(target.along_rows, want) << NameOf(dtype) << ", rows " << rows << ", limit " << row_bytes;
    EXPECT_EQ(target.rows == 0, want != 0) << NameOf(dtype) << ", rows " << rows << ", limit " << row_bytes;
  }
}

}  // namespace
}  // namespace raggemm::test
