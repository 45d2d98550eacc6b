// How to compute it: on which CPU, with which instruction set and whose threads.
#ifndef RAGGEMM_PLAN_H_
#define RAGGEMM_PLAN_H_

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

// Somebody else's threads, such as XLA's intra-op pool. Schedule may run the task at once on the calling thread,
// late, or on any thread, but must not itself wait for one that runs elsewhere: a task that has started may wait for
// its caller, who never waits for one that has not.
class TaskPool {
 public:
  virtual ~TaskPool() = default;
  virtual int64_t num_threads() const = 0;
  virtual void Schedule(std::function<void()> task) = 0;
};

enum class Executor : uint8_t { kAuto, kOpenMp, kPool, kSerial };
absl::string_view NameOf(Executor executor);  // "auto", "openmp", "pool", "serial"

inline constexpr int64_t kMaxThreads = 256;
int64_t OpenMpThreads();  // all that the executor OpenMP has: OMP_NUM_THREADS, else the CPUs that the process may use

// What a field leaves open is for the environment to say (environment.h): RAGGEMM_EXECUTOR, RAGGEMM_ISA and
// RAGGEMM_THREADS, with the fields' own meaning. Where that is silent too, the defaults named here hold.
struct Options {
  Executor executor = Executor::kAuto;    // the pool where there is one, else OpenMP
  std::optional<Isa> isa = std::nullopt;  // PreferredIsa; one that cpu lacks is an error, never a fallback
  int64_t threads = 0;                    // at most kMaxThreads; 0: all that the executor has
  TaskPool* pool = nullptr;               // not owned; must outlive the call
  Cpu cpu = HostCpu();
};

struct Schedule;  // kernels/plan/schedule.h

// A planned call: checked operands, instruction set, tiles and their order. A plan never changes. It points into the
// operands and the workspace of its call. ToString (grouped_gemm.h) prints it.
class Plan {
 public:
  explicit Plan(std::shared_ptr<const Schedule> schedule) : schedule_(std::move(schedule)) {}
  const Schedule& schedule() const { return *schedule_; }

 private:
  std::shared_ptr<const Schedule> schedule_;
};

// Pack buffers that the process keeps for its next calls.
struct KeptBuffers {
  int64_t count, bytes;
};
KeptBuffers CountKeptBuffers();

}  // namespace raggemm

#endif  // RAGGEMM_PLAN_H_
