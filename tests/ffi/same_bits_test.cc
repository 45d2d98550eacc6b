// The guarantee of raggemm/grouped_gemm.h, attacked: one input has one result, bit by bit, whatever the ISA, executor,
// threads, floating point flags of the threads, company in the batch and order of the groups.
//
// The cases of edge.textproto and formats.textproto are compared with checksums that were recorded with the scalar ISA
// on one thread (proto/cases/checksums.txt), on whatever machine that was: two ISAs that agree with it agree with each
// other, and so do two machines. Other tests have the rule itself (support/bits_rule.h), batches and shards.
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

// By "name dtypes".
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

// A case as a call, and what it must give.
class RecordedCase {
 public:
  RecordedCase(const GroupedGemmCase& full, uint64_t recorded)
      : name_(absl::StrCat(full.name(), " ", host::DTypesOf(full))),
        recorded_(recorded),
        made_(host::MakeCaseProblem(full).value()),
        workspace_(host::WorkspaceElements(made_.problem, ThePlugin().workspace_coefficients)),
        multiply_adds_(host::MultiplyAdds(GroupProducts(made_.problem).value())) {}

  bool is_large() const { return multiply_adds_ > 1'000'000; }

  // Empty if it gives its checksum.
  std::string Run(const host::Attributes& how, host::TaskRunner& pool) {
    const Array& out = made_.problem.out;
    if (out.data != nullptr) std::memset(out.data, 0xFF, BytesOf(out));
    host::Call call = host::MakeCall(made_.problem, absl::MakeSpan(workspace_));
    call.attributes.insert(how.begin(), how.end());
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

host::Attributes How(Isa isa, const std::string& executor, int64_t threads) {
  host::Attributes how;
  how["isa"] = absl::AsciiStrToUpper(IsaName(isa));
  how["executor"] = executor;
  how["threads"] = threads;
  return how;
}

TEST(RecordedBits, OfEveryIsaExecutorAndNumberOfThreads) {
  host::ThreadPool pool(kThreads);
  for (Isa isa : HostIsas()) {
    for (const std::string executor : {"SERIAL", "OPENMP", "POOL"}) {
      for (int64_t threads = 1; threads <= (executor == "SERIAL" ? 1 : kThreads); ++threads) {
        SCOPED_TRACE(absl::StrCat(IsaName(isa), " ", executor, " ", threads));
        for (RecordedCase& one : Cases().as_given) {
          if (threads > 2 && (one.is_large() ? threads < kThreads : !Sampled(4))) continue;
          EXPECT_EQ(one.Run(How(isa, executor, threads), pool), "");
        }
      }
    }
  }
}

TEST(RecordedBits, InOtherTypes) {
  host::ThreadPool pool(kThreads);
  for (Isa isa : HostIsas()) {
    for (RecordedCase& one : Cases().in_other_types) {
      if (!Sampled(3)) continue;
      EXPECT_EQ(one.Run(How(isa, "POOL", 3), pool), "") << IsaName(isa);
    }
  }
}

// The flags of the calling thread while it lives.
class HostileFlags {
 public:
  HostileFlags() : saved_(ThreadMode()) { SetThreadMode(kHostileMode); }
  ~HostileFlags() { SetThreadMode(saved_); }
  bool AreStillThere() const { return ThreadMode() == kHostileMode; }

 private:
  uint64_t saved_;
};

// Runs tasks on threads with hostile flags and counts those that come back with others.
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

// OpenMP's team: one helper, which lives from region to region as long as no region has another size.
constexpr int kTeam = 2;
#ifdef _OPENMP
constexpr int kOthersOfTeam = kTeam - 1;
#else
constexpr int kOthersOfTeam = 0;
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

TEST(FloatingPointFlags, OfEveryThreadAreWithoutEffectAndStay) {
  Cases();  // made with the usual flags
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
          error = one.Run(How(isa, executor, executor == "POOL" ? 5 : kTeam), *pool);
          kept = flags.AreStillThere();
        }
        EXPECT_EQ(error, "") << IsaName(isa) << " " << executor;
        EXPECT_TRUE(kept) << "of the caller, " << IsaName(isa) << " " << executor;
      }
      EXPECT_EQ(HostileThreadsOfTeam(), kOthersOfTeam) << "all but the caller, " << IsaName(isa) << " " << executor;
    }
  }
  SetFlagsOfTeam(usual);
  pool.reset();  // runs what is left
  EXPECT_EQ(changed, 0);
}

// The bits of one row of out, alone and with 4095 others, beside groups of other sizes.
TEST(Company, OfARowInABatchOf4096IsWithoutEffect) {
  constexpr int64_t kRows = 4096;
  for (const auto& [dtype, rule, precision] : {std::tuple{DType::kF32, ArithmeticId::kF32, Precision::kDefault},
                                               {DType::kBF16, ArithmeticId::kPairs, Precision::kDefault},
                                               {DType::kBF16, ArithmeticId::kTiles, Precision::kDefault},
                                               {DType::kBF16, ArithmeticId::kF32, Precision::kDefault},
                                               {DType::kBF16, ArithmeticId::kMmla, Precision::kDefault},
                                               {DType::kF32, ArithmeticId::kPairs, Precision::kBf16X3},
                                               {DType::kF32, ArithmeticId::kTiles, Precision::kBf16X6}}) {
    ProblemSpec spec{.groups = 3, .m = kRows + 60, .n = 48, .k = 300, .sizes = {17, kRows, 40}};
    spec.lhs = spec.rhs = dtype;
    spec.bf16_sums = rule;
    spec.precision = precision;
    TestProblem batch(spec);
    ASSERT_EQ(GroupedGemm(batch.problem, {.isa = Isa::kScalar}), absl::OkStatus());
    std::vector<float> out(spec.n);
    const int64_t lhs_dims[] = {1, spec.k}, out_dims[] = {1, spec.n};
    for (Isa isa : HostIsas()) {
      for (int64_t row : {int64_t{17}, int64_t{18}, int64_t{80}, int64_t{1000}, 17 + kRows - 1}) {
        GroupedGemmProblem alone = batch.problem;
        alone.lhs.data = static_cast<char*>(alone.lhs.data) + row * spec.k * SizeOf(dtype);
        alone.lhs.dims = lhs_dims;
        alone.out.data = out.data();
        alone.out.dims = out_dims;
        alone.lhs.first_dims = alone.out.first_dims = batch.AddIntegers(DType::kS32, {3}, {0, 1, 0});
        ASSERT_EQ(GroupedGemm(alone, {.isa = isa}), absl::OkStatus());
        EXPECT_EQ(std::memcmp(out.data(), static_cast<float*>(batch.problem.out.data) + row * spec.n,
                              out.size() * sizeof(float)),
                  0)
            << IsaName(isa) << " row " << row;
      }
    }
  }
}

void Copy(const Array& from, const MatrixView& source, const Array& to, const MatrixView& target) {
  for (int64_t i = 0; i < source.rows; ++i) {
    for (int64_t j = 0; j < source.cols; ++j) StoreRounded(to, target.At(i, j), ToDouble(from, source.At(i, j)));
  }
}

std::vector<double> ValuesOf(const Array& array, const MatrixView& view) {
  std::vector<double> values;
  for (int64_t i = 0; i < view.rows; ++i) {
    for (int64_t j = 0; j < view.cols; ++j) values.push_back(ToDouble(array, view.At(i, j)));
  }
  return values;
}

constexpr int kOrder[] = {3, 0, 4, 2, 1};  // of five groups

std::vector<int64_t> Reordered(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> other;
  for (size_t g = 0; g < sizes.size(); ++g) other.push_back(sizes[kOrder[g]]);
  return other;
}

// Whether the groups of `spec` in another order have the same results.
testing::AssertionResult OrderIsWithoutEffect(const ProblemSpec& spec, Isa isa) {
  ProblemSpec other_spec = spec;
  for (std::vector<int64_t>* sizes : {&other_spec.sizes, &other_spec.n_sizes, &other_spec.k_sizes}) {
    *sizes = Reordered(*sizes);
  }
  const TestProblem test(spec), other_test(other_spec);
  const GroupedGemmProblem &one = test.problem, &other = other_test.problem;
  const std::vector<GroupProduct> groups = GroupProducts(one).value(), places = GroupProducts(other).value();
  for (size_t g = 0; g < places.size(); ++g) {
    const GroupProduct &group = groups[kOrder[g]], &place = places[g];
    Copy(one.lhs, group.terms[0].lhs, other.lhs, place.terms[0].lhs);
    Copy(one.rhs, group.terms[0].rhs, other.rhs, place.terms[0].rhs);
    Copy(*one.c, group.out, *other.c, place.out);
    StoreRounded(*other.alpha, place.alpha, ToDouble(*one.alpha, group.alpha));
    if (spec.bias) Copy(*one.bias, {group.bias, 1, spec.n, 0, 1}, *other.bias, {place.bias, 1, spec.n, 0, 1});
  }
  for (const GroupedGemmProblem* problem : {&one, &other}) {
    if (absl::Status s = GroupedGemm(*problem, {.isa = isa}); !s.ok()) return testing::AssertionFailure() << s;
  }
  for (size_t g = 0; g < places.size(); ++g) {
    const std::vector<double> got = ValuesOf(other.out, places[g].out), want = ValuesOf(one.out, groups[kOrder[g]].out);
    const size_t bytes = got.size() * sizeof(double);
    if (got.size() != want.size() || (bytes != 0 && std::memcmp(got.data(), want.data(), bytes) != 0)) {
      return testing::AssertionFailure() << "group " << kOrder[g] << " as group " << g << ": " << Describe(spec);
    }
  }
  return testing::AssertionSuccess();
}

TEST(Company, OrderOfTheGroupsIsWithoutEffect) {
  for (RaggedMode mode : kAllModes) {
    ProblemSpec base{.mode = mode, .groups = 5, .m = 70, .n = 52, .k = 60, .sizes = {9, 0, 25, 1, 16}};
    if (mode == RaggedMode::kAllRagged) base.n_sizes = {40, 3, 33, 16, 8}, base.k_sizes = {300, 8, 17, 0, 5};
    base.c = base.alpha = true;
    base.bias = mode != RaggedMode::kRaggedN && mode != RaggedMode::kAllRagged;
    DType dtype = DType::kF32;
    for (ProblemSpec spec : StorageVariants(base)) {
      spec.lhs = spec.rhs = spec.out = dtype;
      for (Isa isa : HostIsas()) EXPECT_TRUE(OrderIsWithoutEffect(spec, isa));
      dtype = dtype == DType::kF32 ? DType::kF16 : DType::kF32;
    }
  }
}

}  // namespace
}  // namespace raggemm::test
