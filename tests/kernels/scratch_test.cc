// Tests that a call takes no memory from the system if the same call ran before (a warm call).
#include "kernels/run/scratch.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "kernels/check/problem.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/run.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/problem_spec.h"

namespace {

std::atomic<int64_t> allocations{0};

void* Counted(void* memory) {
  ++allocations;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Replaces the global operators new and delete that all other forms call, to count allocations. The replacements are
// not inlined, because GCC would then warn about free() of memory from new.
#define RAGGEMM_NOINLINE __attribute__((noinline))
RAGGEMM_NOINLINE void* operator new(size_t bytes) { return Counted(std::malloc(bytes)); }
RAGGEMM_NOINLINE void* operator new(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  return Counted(posix_memalign(&memory, static_cast<size_t>(alignment), bytes) == 0 ? memory : nullptr);
}
RAGGEMM_NOINLINE void operator delete(void* memory) noexcept { std::free(memory); }
RAGGEMM_NOINLINE void operator delete(void* memory, size_t) noexcept { std::free(memory); }
RAGGEMM_NOINLINE void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
RAGGEMM_NOINLINE void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#undef RAGGEMM_NOINLINE

// Replaces aligned_alloc of the C library, to count its calls.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  ++allocations;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

namespace raggemm::test {
namespace {

struct Taken {
  int64_t faults = std::numeric_limits<int64_t>::max(), allocations = std::numeric_limits<int64_t>::max();
};

int64_t MinorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Returns how many page faults and allocations a warm call needs. Takes the smallest of several calls, because Linux
// may cause additional page faults at any time.
Taken TakenByWarm(absl::FunctionRef<void()> call) {
  constexpr int kCold = 3, kWarm = 5;
  for (int i = 0; i < kCold; ++i) call();
  Taken taken;
  for (int i = 0; i < kWarm; ++i) {
    const int64_t faults = MinorFaults(), allocated = allocations;
    call();
    taken.allocations = std::min(taken.allocations, allocations - allocated);
    taken.faults = std::min(taken.faults, MinorFaults() - faults);
  }
  return taken;
}

class ScratchTest : public IsaTest {
 protected:
  void ExpectNothingTaken(const ProblemSpec& spec) {
    TestProblem test(spec);
    const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(test.problem).count());
    std::vector<int64_t> workspace(size.constant + size.per_group * spec.groups);
    for (const Executor executor : {Executor::kSerial, Executor::kOpenMp}) {
      const Options options{.executor = executor, .isa = GetParam(), .threads = 2};
      absl::Status status;
      const Taken taken = TakenByWarm([&] {
        const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
        status.Update(plan.ok() ? raggemm::Run(*plan) : plan.status());
      });
      ASSERT_EQ(status, absl::OkStatus());
      EXPECT_EQ(taken.allocations, 0) << Describe(spec);
      EXPECT_EQ(taken.faults, 0) << Describe(spec);
    }
  }
};
RAGGEMM_FOR_EACH_ISA(ScratchTest);

TEST_P(ScratchTest, WarmForward) {
  ProblemSpec spec{.groups = 5, .m = 60, .n = 260, .k = 300, .sizes = {1, 6, 0, 16, 33}};
  for (bool rhs_flipped : {false, true}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      spec.rhs_flipped = rhs_flipped;
      spec.lhs = spec.rhs = spec.out = dtype;
      ExpectNothingTaken(spec);
    }
  }
}

TEST_P(ScratchTest, WarmWeightGradient) {
  ProblemSpec spec{.mode = RaggedMode::kRaggedK, .groups = 4, .m = 100, .n = 96, .k = 320, .sizes = {270, 0, 1, 40}};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    spec.out = dtype;
    ExpectNothingTaken(spec);
  }
}

TEST_P(ScratchTest, WarmWithEveryOptionalOperand) {
  ProblemSpec spec{.groups = 3, .m = 70, .n = 90, .k = 280, .sizes = {40, 0, 9}};
  spec.c = spec.bias = spec.alpha = spec.beta = true;
  ExpectNothingTaken(spec);
}

// A base class for tests that start without kept pack buffers (kernels/run/scratch.h).
class ScratchLeaseTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(others_.Acquire(CountKeptBuffers().count, 1), absl::OkStatus());
    ASSERT_EQ(CountKeptBuffers().count, 0);
    ASSERT_EQ(CountKeptBuffers().bytes, 0);
  }

 private:
  ScratchLease others_;
};

TEST_F(ScratchLeaseTest, TakesNoKeptBlockThatIsTooSmall) {
  constexpr int64_t kSmall = 1 << 10, kLarge = int64_t{48} << 20;
  {
    ScratchLease small;
    ASSERT_EQ(small.Acquire(1, kSmall), absl::OkStatus());
  }
  const KeptBuffers before = CountKeptBuffers();
  ASSERT_EQ(before.count, 1);
  {
    ScratchLease large;
    ASSERT_EQ(large.Acquire(1, kLarge), absl::OkStatus());
    ASSERT_EQ(CountKeptBuffers().count, before.count);
    std::memset(large.at(0), 1, kLarge);
  }
  EXPECT_EQ(CountKeptBuffers().count, 2);
  EXPECT_GE(CountKeptBuffers().bytes, before.bytes + kLarge);
}

TEST_F(ScratchLeaseTest, KeepsAtMost64Blocks) {
  for (int64_t count : {63, 64, 67}) {
    {
      ScratchLease lease;
      ASSERT_EQ(lease.Acquire(count, 1), absl::OkStatus());
    }
    EXPECT_EQ(CountKeptBuffers().count, std::min<int64_t>(count, 64));
  }
}

TEST_F(ScratchLeaseTest, NamesTheBytesInItsError) {
  ScratchLease lease;
  const absl::Status status = lease.Acquire(3, (int64_t{1} << 60) - 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "no memory for the pack buffers of 3 threads, 1152921504606846976 bytes each");
}

class RefusingPool : public TaskPool {
 public:
  int64_t num_threads() const override { return 4; }
  void Schedule(std::function<void()>) override {
    ++refused_;
    throw std::bad_alloc();
  }
  int64_t refused() const { return refused_; }

 private:
  int64_t refused_ = 0;
};

TEST(RefusingPoolTest, WarmCallsAllocateNothing) {
  TestProblem test({.groups = 2, .m = 150, .n = 170, .k = 160, .sizes = {70, 50}});
  RefusingPool pool;
  const Options options{.executor = Executor::kPool, .threads = 4, .pool = &pool};
  const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(test.problem).count());
  std::vector<int64_t> workspace(size.constant + size.per_group * 2);
  absl::Status status;
  const Taken taken = TakenByWarm([&] {
    const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
    status.Update(plan.ok() ? raggemm::Run(*plan) : plan.status());
  });
  ASSERT_EQ(status, absl::OkStatus());
  EXPECT_GE(pool.refused(), 8);
  EXPECT_EQ(taken.allocations, 0);
}

}  // namespace
}  // namespace raggemm::test
