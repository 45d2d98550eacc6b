// How to compute it: checked operands, kernels, tiles and their order. A Plan is made once per call, never changes,
// and prints (ToString in grouped_gemm.h).
#ifndef RAGGEMM_PLAN_H_
#define RAGGEMM_PLAN_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "raggemm/problem.h"
#include "raggemm/types.h"

namespace raggemm {

// What a plan needs to know of a CPU.
struct Cpu {
  Isa widest = Isa::kScalar;
  int64_t l2_bytes = 512 << 10;  // per core
  // What the kernels of each ISA do from cache, GFLOP/s in f32; 0 where not measured. All give the same bits, so the
  // fastest may be taken: the widest, unless a narrower one is clearly faster, as where AVX-512 lowers the clock rate.
  std::array<float, kIsas> probed_gflops = {};
};
const Cpu& HostCpu();  // probed at the first call, which takes a millisecond
Isa PreferredIsa(const Cpu& cpu);
std::string ToString(const Cpu& cpu);
std::string HostCpuBrand();  // as the CPU names itself; empty where it does not

// Somebody else's threads, such as XLA's intra-op pool. Schedule may run the task at once on the calling thread,
// late, or on any thread: Run never waits for a task that has not started.
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
  std::optional<Isa> isa = std::nullopt;  // PreferredIsa(cpu); one that cpu lacks is an error, never a fallback
  int64_t threads = 0;                    // at most kMaxThreads; 0: all that the executor has
  TaskPool* pool = nullptr;               // not owned; must outlive the call
  Cpu cpu = HostCpu();                    // plans can be made and printed for any CPU
};

// One of the six dims arrays, read and checked: [P,R,G] sizes, and for each group where it starts within its
// segment. Where both axes of an operand are ragged, first's starts are those of the blocks, in elements.
struct GroupExtents {
  const int64_t* sizes = nullptr;  // null where the array is not set
  const int64_t* starts = nullptr;
};

// A checked operand: equal repetitions of rows x cols elements, one per segment, group or problem.
struct PlannedOperand {
  enum class Repeat : uint8_t { kSegment, kGroup, kProblem };
  char* data = nullptr;
  DType dtype = DType::kF32;
  bool is_trans = false;
  bool packed = false;
  Repeat repeat = Repeat::kSegment;
  int64_t rows = 0;  // as stored, before is_trans; a ragged axis has its full extent
  int64_t cols = 0;
  GroupExtents first, last;
};

// alpha, beta or bias: one row per group, per group and replica, or for all.
struct GroupValues {
  enum class Per : uint8_t { kCall, kGroup, kReplica };
  const char* data = nullptr;  // null where it is not given
  DType dtype = DType::kF32;
  Per per = Per::kCall;
};

// Cache blocks: rows and columns of the largest tile.
struct Blocking {
  int64_t m = 0;
  int64_t n = 0;
};

struct Plan {
  // What, checked.
  RaggedMode mode = RaggedMode::kUniform;
  DType compute = DType::kF32;                     // or kF64
  int64_t problems = 1, replicas = 1, groups = 0;  // P, R, G
  int64_t local_groups = 0;
  PlannedOperand lhs, rhs, out;
  const char* c = nullptr;
  GroupValues alpha, beta, bias;
  const int64_t* first_group = nullptr;  // [P,R], that is processed

  // How. A unit is the product of one group (and replica, but for ragged K), in memory order of the weights.
  Executor executor = Executor::kSerial;
  Isa isa = Isa::kScalar;
  int64_t threads = 1;
  TaskPool* pool = nullptr;
  Blocking blocking;
  int64_t units = 0;
  const int64_t* tile_prefix = nullptr;  // [units + 1] tiles before each unit
  const int64_t* cost_prefix = nullptr;  // [units + 1] cost before each unit
  int64_t gemm_tiles = 0;
  int64_t fill_tiles = 0;  // slices of out with elements of no processed group, numbered after the gemm tiles
};

// Tiles of a thread's own range: cost-equal, contiguous, in order of thread. Which thread computes a tile never
// changes its bits, so threads that are done take tiles from the others' ranges. thread == plan.threads gives the end.
int64_t FirstTile(const Plan& plan, int64_t thread);

}  // namespace raggemm

#endif  // RAGGEMM_PLAN_H_
