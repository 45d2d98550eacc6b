// Options and plans of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "raggemm/cpu.h"
#include "raggemm/types.h"

namespace raggemm {

// A thread pool of the caller, such as XLA's intra-op pool. Schedule may run the task at once on the calling thread, or
// later on any thread. Schedule must not wait for tasks on other threads. A task that has started may wait for the
// library call that scheduled it. The call never waits for a task that has not started.
class TaskPool {
 public:
  virtual ~TaskPool() = default;
  virtual int64_t num_threads() const = 0;
  virtual void Schedule(std::function<void()> task) = 0;
};

enum class Executor : uint8_t { kAuto, kOpenMp, kPool, kSerial };
// Returns "auto", "openmp", "pool" or "serial".
absl::string_view NameOf(Executor executor);

inline constexpr int64_t kMaxThreads = 256;
// Returns omp_get_max_threads(), by default OMP_NUM_THREADS or the number of usable CPUs. Returns 1 in a forked child
// and in builds without OpenMP.
int64_t OpenMpThreads();

// The options of a call. Environment variables can set executor, isa and threads if they keep their defaults:
// RAGGEMM_EXECUTOR, RAGGEMM_ISA and RAGGEMM_THREADS (environment.h).
struct Options {
  Executor executor = Executor::kAuto;    // Source of threads. kAuto: `pool` if it is given, else OpenMP.
  std::optional<Isa> isa = std::nullopt;  // Instruction set. The CPU in `cpu` must have it. Default: PreferredIsa.
  // Number of threads, at most kMaxThreads. 0: all threads of the executor, or fewer if the call has little work.
  int64_t threads = 0;
  TaskPool* pool = nullptr;  // Pool of Executor::kPool. Must outlive the call.
  Cpu cpu = HostCpu();
};

struct Schedule;  // kernels/plan/schedule.h

// A planned call: checked operands, and all decisions before the first product. A plan is immutable, and points to the
// operands and the workspace of the call.
class Plan {
 public:
  explicit Plan(std::shared_ptr<const Schedule> schedule) : schedule_(std::move(schedule)) {}
  const Schedule& schedule() const { return *schedule_; }

 private:
  std::shared_ptr<const Schedule> schedule_;
};

// The pack buffers that the process keeps for later calls.
struct KeptBuffers {
  int64_t count, bytes;
};
KeptBuffers CountKeptBuffers();

}  // namespace raggemm
