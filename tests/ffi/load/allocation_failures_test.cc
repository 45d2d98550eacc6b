// Tests calls in which the first, second, ... allocation of memory fails. Each call must fail with an error or give the
// right result, and the next call must work.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/process.h"
#include "tests/support/task_pools.h"

namespace {

enum class Fail { kNever, kOnce, kFromThenOn };

std::atomic<Fail> fail = Fail::kNever;
std::atomic<int64_t> allocations = 0, first_to_fail = 0;
thread_local int in_host = 0;  // Nesting depth of host functions on this thread. Above 0, allocations never fail.

bool Fails() {
  if (fail == Fail::kNever || in_host > 0) return false;
  const int64_t number = ++allocations;
  const bool fails = fail == Fail::kOnce ? number == first_to_fail : number >= first_to_fail;
  if (fails) errno = ENOMEM;
  return fails;
}

}  // namespace

// Replaces the C library's allocation functions, which operator new calls, for all libraries of this process.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): glibc's names
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

void* malloc(size_t bytes) { return Fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return Fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* memory, size_t bytes) { return Fails() ? nullptr : __libc_realloc(memory, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return Fails() ? nullptr : __libc_memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  void* made = Fails() ? nullptr : __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}
int madvise(void* start, size_t bytes, int) noexcept {
  static_cast<void>(start), static_cast<void>(bytes);
  return Fails() ? -1 : 0;  // Succeeds without effect, because madvise only gives hints.
}
}

namespace raggemm::test {
namespace {

XLA_FFI_Api HostApi() {
  const host::Call nothing;
  return *host::CallFrame(nothing, XLA_FFI_ExecutionStage_EXECUTE, nullptr).get()->api;
}

// Calls a function of the host's XLA_FFI_Api. Allocations in this function never fail.
template <auto XLA_FFI_Api::*function, typename Args>
XLA_FFI_Error* ByHost(Args* args) {
  struct InHost {
    InHost() { ++in_host; }
    ~InHost() { --in_host; }
  } guard;
  static const XLA_FFI_Api host = HostApi();
  return (host.*function)(args);
}

const XLA_FFI_Api* ApiWithMemory() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api copy = HostApi();
    copy.XLA_FFI_Error_Create = ByHost<&XLA_FFI_Api::XLA_FFI_Error_Create>;
    copy.XLA_FFI_ThreadPool_Schedule = ByHost<&XLA_FFI_Api::XLA_FFI_ThreadPool_Schedule>;
    copy.XLA_FFI_ThreadPool_NumThreads = ByHost<&XLA_FFI_Api::XLA_FFI_ThreadPool_NumThreads>;
    return copy;
  }();
  return &api;
}

// Runs `body`, and makes its allocation number `first` fail. The count starts at 1. With Fail::kFromThenOn, all later
// allocations fail, too. Returns false if no allocation failed because `body` made fewer.
bool WithFailure(Fail how, int64_t first, absl::FunctionRef<void()> body) {
  allocations = 0;
  first_to_fail = first;
  fail = how;
  body();
  fail = Fail::kNever;
  return allocations >= first;
}

// The stages INSTANTIATE and EXECUTE of a call. The constructor makes the call frames, so Run does not allocate them.
class Stages {
 public:
  Stages(PluginCall& call, host::TaskRunner* pool)
      : attributes_{{}, {}, call.call().attributes},
        instantiate_(attributes_, XLA_FFI_ExecutionStage_INSTANTIATE, nullptr),
        execute_(call.call(), XLA_FFI_ExecutionStage_EXECUTE, pool) {
    instantiate_.get()->api = ApiWithMemory();
    execute_.get()->api = instantiate_.get()->api;
    call.problem().ClearOut();
  }
  host::Error Run() {
    host::Error error = host::Invoke(ThePlugin().instantiate, instantiate_);
    if (error.ok()) error = host::Invoke(ThePlugin().execute, execute_);
    return error;
  }
  XLA_FFI_CallFrame* execute() { return execute_.get(); }

 private:
  host::Call attributes_;
  host::CallFrame instantiate_, execute_;
};

struct Attempt {
  bool failed;
  std::string defect;  // Description of wrong behaviour of the plugin. "": none.
};

// Checks a call after failed allocations, and a next call without failures. `error` is the result of the first one.
// Returns a description of wrong behaviour, or "".
std::string DefectOf(PluginCall& call, const host::Error& error, host::TaskRunner* pool) {
  if (error.ok() && !call.IsRight()) return "the result is wrong";
  if (!error.ok() && !call.OutIsUntouched()) return "out was written to";
  if (!error.ok() && error.code != XLA_FFI_Error_Code_RESOURCE_EXHAUSTED) return "the error is: " + error.message;
  if (!error.ok() && error.message.find("memory") == std::string::npos) return "the error is: " + error.message;
  if (const host::Error next = call.Run(pool); !next.ok()) return "the next call has the error: " + next.message;
  return call.IsRight() ? "" : "the next result is wrong";
}

Attempt Try(PluginCall& call, host::TaskRunner* pool, Fail how, int64_t first) {
  Stages stages(call, pool);
  host::Error error;
  const bool failed = WithFailure(how, first, [&] { error = stages.Run(); });
  std::string defect = DefectOf(call, error, pool);
  if (!defect.empty()) defect = absl::StrCat("allocation ", first, how == Fail::kOnce ? ": " : " and on: ", defect);
  return {failed, defect};
}

ProblemSpec Everything() {
  ProblemSpec spec{.groups = 3, .m = 70, .n = 90, .k = 280, .sizes = {40, 0, 9}};
  spec.c = spec.bias = spec.alpha = spec.beta = true;
  spec.group_offset = 0;
  return spec;
}

std::unique_ptr<PluginCall> CallOn(const std::string& executor) {
  auto call = std::make_unique<PluginCall>(Everything());
  call->call().attributes["executor"] = executor;
  call->call().attributes["threads"] = int64_t{3};
  return call;
}

class AllocationFailures : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { EXPECT_EQ(host::LiveErrors(), 0); }
};
INSTANTIATE_TEST_SUITE_P(Executor, AllocationFailures, testing::Values("POOL", "OPENMP", "SERIAL"));

// Each attempt is the first call of a child process. The child loads the plugin, because raggemm does not use OpenMP in
// a child of a process that has loaded the plugin. libgomp ends the process if it has no memory for a team. raggemm
// makes a trial allocation first, but the later allocation by libgomp may still fail.
TEST_P(AllocationFailures, AreHandledInAFirstCall) {
  ASSERT_EQ(dlopen(RAGGEMM_FFI_LIBRARY, RTLD_NOW | RTLD_NOLOAD), nullptr) << "another test came first";
  const bool openmp = GetParam() == std::string("OPENMP");
  for (Fail how : {Fail::kOnce, Fail::kFromThenOn}) {
    int64_t first = 1, libgomp_exits = 0;
    for (std::string result; result != "all"; ++first) {
      result = InChild(20, [&]() -> std::string {
        const std::unique_ptr<PluginCall> call = CallOn(GetParam());
        host::ThreadPool pool(2);
        const Attempt attempt = Try(*call, &pool, how, first);
        return !attempt.defect.empty() ? attempt.defect : attempt.failed ? "" : "all";
      });
      if (openmp && result == "ended by exit 1") {
        ++libgomp_exits;
        result.clear();
      }
      ASSERT_TRUE(result.empty() || result == "all") << result << ", at allocation " << first;
    }
    std::printf("%ld places failed%s, and in libgomp %ld\n", static_cast<long>(first - 2 - libgomp_exits),
                how == Fail::kOnce ? "" : " with all after them", static_cast<long>(libgomp_exits));
    EXPECT_GT(first - libgomp_exits, 20);
    EXPECT_LE(libgomp_exits, openmp ? 12 : 0);
  }
}

// After a failed allocation, the next call must not allocate more than usual. Calls reuse the memory of earlier tasks.
// This pool runs tasks at once, so no earlier task still holds memory. Other tests need a process without earlier
// calls, so this test runs in a child process.
TEST(AllocationFailuresOnAPool, LeaveNothingBehind) {
  const std::string result = InChild(20, [&]() -> std::string {
    const std::unique_ptr<PluginCall> call = CallOn("POOL");
    InlinePool inline_pool(3);
    RunnerOf pool(inline_pool);
    for (int i = 0; i < 2; ++i) call->Run(&pool);
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    const auto run = [&](int64_t first) {
      Stages stages(*call, &pool);
      return WithFailure(Fail::kOnce, first, [&] { stages.Run(); });
    };
    run(kNone);
    const int64_t warm = allocations;
    int64_t first = 1;
    for (; run(first); ++first) {
      run(kNone);
      if (allocations == warm) continue;
      return absl::StrCat(allocations.load(), " allocations, not ", warm, ", after one in which ", first, " failed");
    }
    return first > warm ? "" : "not all have failed";
  });
  EXPECT_EQ(result, "");
}

TEST_P(AllocationFailures, AreHandledInAWrongCall) {
  const std::unique_ptr<PluginCall> call = CallOn(GetParam());
  host::ThreadPool pool(2);
  auto* sizes = static_cast<int32_t*>(call->problem().problem.lhs.first_dims->data);
  sizes[0] = 1000;
  for (Fail how : {Fail::kOnce, Fail::kFromThenOn}) {
    bool failed = true;
    for (int64_t first = 1; failed; ++first) {
      Stages stages(*call, &pool);
      host::Error error;
      failed = WithFailure(how, first, [&] { error = stages.Run(); });
      EXPECT_TRUE(error.code == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED ||
                  error.code == XLA_FFI_Error_Code_INVALID_ARGUMENT)
          << error.message;
      EXPECT_TRUE(call->OutIsUntouched());
    }
  }
}

TEST(PlanTextWithoutMemory, IsNull) {
  const std::string result = InChild(20, [&]() -> std::string {
    const std::unique_ptr<PluginCall> call = CallOn("POOL");
    Stages stages(*call, nullptr);
    int64_t nulls = 0;
    bool failed = true;
    for (int64_t first = 1; failed; ++first) {
      char* text = nullptr;
      failed = WithFailure(Fail::kFromThenOn, first, [&] { text = ThePlugin().plan_text(stages.execute()); });
      nulls += text == nullptr;
      ThePlugin().free_text(text);
    }
    return nulls > 0 ? "" : "no place found";
  });
  EXPECT_EQ(result, "");
}

}  // namespace
}  // namespace raggemm::test
