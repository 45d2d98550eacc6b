// Tests the guarantee of raggemm/grouped_gemm.h: the bits of a result do not depend on the ISA, the executor, the
// number of threads, or the threads' floating point flags.
//
// The results of edge.textproto and formats.textproto are compared with proto/cases/checksums.txt, recorded with scalar
// code on one thread. Other tests compare with the oracle, which computes each row and group alone.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "proto/read_cases.h"
#include "raggemm/element.h"
#include "tests/ffi/plugin_call.h"
#include "tests/host/case_problem.h"
#include "tests/host/checksum.h"
#include "tests/oracle/values.h"
#include "tests/support/float_mode.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/task_pools.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using proto::GroupedGemmCase;

constexpr int64_t kThreads = 16;

// Returns {"NAME DTYPES" of a case: the recorded checksum of its result}.
std::map<std::string, uint64_t> ReadChecksums() {
  std::map<std::string, uint64_t> checksums;
  std::ifstream file(RAGGEMM_CASES_DIR "/checksums.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    checksums[absl::StrCat(fields.at(0), " ", fields.at(1))] = std::stoull(fields.at(2), nullptr, 16);
  }
  return checksums;
}

class RecordedCase {
 public:
  RecordedCase(const GroupedGemmCase& full, uint64_t recorded)
      : name_(absl::StrCat(full.name(), " ", host::DTypesOf(full))),
        recorded_(recorded),
        made_(host::MakeCaseProblem(full).value()),
        workspace_(host::WorkspaceElements(made_.problem, ThePlugin().workspace_coefficients)),
        multiply_adds_(host::MultiplyAdds(GroupProducts(made_.problem).value())) {}

  bool is_large() const { return multiply_adds_ > 1'000'000; }

  // Returns "" if the result has the recorded checksum, else a message.
  std::string Run(const host::Attributes& execution, host::TaskRunner& pool) {
    const Array& out = made_.problem.out;
    if (out.data != nullptr) std::memset(out.data, 0xFF, BytesOf(out));
    host::Call call = host::MakeCall(made_.problem, absl::MakeSpan(workspace_));
    call.attributes.insert(execution.begin(), execution.end());
    if (host::Error error = host::Execute(ThePlugin().execute, call, &pool); !error.ok()) return error.message;
    const uint64_t got = host::Checksum(out);
    return got == recorded_ ? "" : absl::StrCat(name_, ": ", absl::Hex(got), ", recorded ", absl::Hex(recorded_));
  }

 private:
  std::string name_;
  uint64_t recorded_;
  host::CaseProblem made_;
  std::vector<int64_t> workspace_;
  int64_t multiply_adds_;
};

struct RecordedCases {
  std::deque<RecordedCase> as_given, in_other_types;
};

RecordedCases& Cases() {
  static RecordedCases& all = *new RecordedCases([] {
    RecordedCases made;
    const std::map<std::string, uint64_t> checksums = ReadChecksums();
    const auto add = [&](const GroupedGemmCase& full, std::deque<RecordedCase>& to) {
      const auto found = checksums.find(absl::StrCat(full.name(), " ", host::DTypesOf(full)));
      EXPECT_NE(found, checksums.end()) << full.name() << ": not recorded; ./dev checksums --record";
      if (found != checksums.end()) to.emplace_back(full, found->second);
    };
    using Sums = proto::GroupedGemmConfig::Bf16Sums;
    const proto::GroupedGemmCases formats = ReadCases(RAGGEMM_CASES_DIR "/formats.textproto").value();
    for (GroupedGemmCase full : formats.cases()) {
      for (const auto& [sums, to] : {std::pair{Sums::PAIRS, &made.as_given}, {Sums::TILES, &made.in_other_types}}) {
        full.mutable_config()->set_bf16_sums(sums);
        add(full, *to);
      }
    }
    const proto::GroupedGemmCases sources = ReadCases(RAGGEMM_CASES_DIR "/edge.textproto").value();
    for (const GroupedGemmCase& source : sources.cases()) {
      GroupedGemmCase full = host::MakeExplicit(source).value();
      full.mutable_config()->set_bf16_sums(Sums::PAIRS);
      add(full, made.as_given);
      for (const auto& [dtype, sums] : {std::pair{DType::kF16, Sums::AUTO},
                                        {DType::kBF16, Sums::PAIRS},
                                        {DType::kBF16, Sums::TILES},
                                        {DType::kBF16, Sums::FMA},
                                        {DType::kBF16, Sums::MMLA},
                                        {DType::kF64, Sums::AUTO}}) {
        GroupedGemmCase other = full;
        host::SetMatrixDType(dtype, other);
        other.mutable_config()->set_bf16_sums(sums);
        add(other, made.in_other_types);
      }
    }
    return made;
  }());
  return all;
}

host::Attributes Execution(Isa isa, const std::string& executor, int64_t threads) {
  host::Attributes execution;
  execution["isa"] = absl::AsciiStrToUpper(IsaName(isa));
  execution["executor"] = executor;
  execution["threads"] = threads;
  return execution;
}

TEST(RecordedBits, AreTheSameForEveryIsaExecutorAndNumberOfThreads) {
  host::ThreadPool pool(kThreads);
  for (Isa isa : HostIsas()) {
    for (const std::string executor : {"SERIAL", "OPENMP", "POOL"}) {
      for (int64_t threads = 1; threads <= (executor == "SERIAL" ? 1 : kThreads); ++threads) {
        SCOPED_TRACE(absl::StrCat(IsaName(isa), " ", executor, " ", threads));
        for (RecordedCase& one : Cases().as_given) {
          if (one.is_large() && threads > 2 && threads < kThreads) continue;
          if (executor != "SERIAL" && !Sampled(threads > 2 ? 12 : 3)) continue;
          EXPECT_EQ(one.Run(Execution(isa, executor, threads), pool), "");
        }
      }
    }
  }
}

TEST(RecordedBits, AreTheSameInOtherTypes) {
  host::ThreadPool pool(kThreads);
  for (Isa isa : HostIsas()) {
    for (RecordedCase& one : Cases().in_other_types) {
      if (!Sampled(8)) continue;
      EXPECT_EQ(one.Run(Execution(isa, "POOL", 3), pool), "") << IsaName(isa);
    }
  }
}

class HostileFlags {
 public:
  HostileFlags() : saved_(ThreadMode()) { SetThreadMode(kHostileMode); }
  ~HostileFlags() { SetThreadMode(saved_); }
  bool AreStillThere() const { return ThreadMode() == kHostileMode; }

 private:
  uint64_t saved_;
};

// A pool that runs tasks in the float mode kHostileMode. Counts the tasks that leave their thread in another mode.
class HostileRunner : public host::TaskRunner {
 public:
  HostileRunner(int threads, std::atomic<int>& changed) : changed_(changed), pool_(threads) {}
  int64_t num_threads() const override { return pool_.num_threads(); }
  void Schedule(XLA_FFI_Task* task, void* data) override {
    pool_.Schedule([this, task, data] {
      const HostileFlags flags;
      task(data);
      changed_ += !flags.AreStillThere();
    });
  }

 private:
  std::atomic<int>& changed_;
  ThreadedPool pool_;
};

// Threads of an OpenMP team: the caller and one helper, which OpenMP keeps for the next team of this size.
constexpr int kTeam = 2;
#ifdef _OPENMP
constexpr int kHelpersOfTeam = kTeam - 1;
#else
constexpr int kHelpersOfTeam = 0;
#endif

void SetFlagsOfTeam(uint64_t flags) {
#pragma omp parallel num_threads(kTeam)
  SetThreadMode(flags);
}

int HostileThreadsOfTeam() {
  int count = 0;
#pragma omp parallel num_threads(kTeam) reduction(+ : count)
  count += ThreadMode() == kHostileMode;
  return count;
}

TEST(FloatingPointFlags, HaveNoEffectAndStayOnEveryThread) {
  Cases();  // Makes the cases before the float mode of this thread changes.
  const uint64_t usual = ThreadMode();
  std::atomic<int> changed = 0;
  auto pool = std::make_unique<HostileRunner>(4, changed);
  SetFlagsOfTeam(kHostileMode);
  SetThreadMode(usual);
  for (Isa isa : HostIsas()) {
    for (const std::string executor : {"SERIAL", "OPENMP", "POOL"}) {
      for (RecordedCase& one : Cases().as_given) {
        std::string error;
        bool kept;
        {
          const HostileFlags flags;
          error = one.Run(Execution(isa, executor, executor == "POOL" ? 5 : kTeam), *pool);
          kept = flags.AreStillThere();
        }
        EXPECT_EQ(error, "") << IsaName(isa) << " " << executor;
        EXPECT_TRUE(kept) << "of the caller, " << IsaName(isa) << " " << executor;
      }
      EXPECT_EQ(HostileThreadsOfTeam(), kHelpersOfTeam) << "all but the caller, " << IsaName(isa) << " " << executor;
    }
  }
  SetFlagsOfTeam(usual);
  pool.reset();
  EXPECT_EQ(changed, 0);
}

}  // namespace
}  // namespace raggemm::test
