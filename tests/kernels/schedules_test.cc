// The schedule that every CPU gets, as it is recorded in schedules.txt: blocks, recipes with their costs, ranges of
// threads, what is fetched when, how much memory. Nothing is computed, so that any host plans for all of them.
//
// A line that differs is a schedule that changed. Where that is meant, the file that a failure names takes the place of
// schedules.txt. The text behind its checksum is in another file, to compare with that of the commit before.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "kernels/moe_mlp.h"
#include "kernels/schedule.h"
#include "raggemm/grouped_gemm.h"
#include "tests/kernels/schedules/cases.h"
#include "tests/kernels/schedules/schedule_text.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/task_pools.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {
namespace {

// FNV-1a.
uint64_t ChecksumOf(const std::string& text) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return sum;
}

struct NamedCpu {
  std::string name;
  Cpu cpu;
};
std::vector<NamedCpu> AllCpus() {
  std::vector<NamedCpu> cpus;
  for (const Cpu& cpu : MeasuredCpus()) cpus.push_back({cpu.name, cpu});
  for (Isa isa : AllIsas()) cpus.push_back({absl::StrCat("unknown, ", IsaName(isa)), CpuUpTo(isa)});
  return cpus;
}

// Lines as they come out, and of those that are not in the recorded ones what their checksums are of.
struct Record {
  void Add(const std::string& name, const std::string& text) {
    const std::string line = absl::StrFormat("%s %016x\n", name, ChecksumOf(text));
    absl::StrAppend(&lines, line);
    if (!absl::StrContains(recorded, line)) absl::StrAppend(&changed, line, text);
  }
  std::string recorded, lines, changed;
};

// Lines of AMX stand apart: some CPUs have tiles, but none of bytes, and plan otherwise for it.
struct Texts {
  void Add(const NamedCpu& of, const std::string& text) {
    absl::StrAppend(of.cpu.Has("amx") ? &amx : &others, of.name, "\n", text);
  }
  void MoveTo(const std::string& name, Record& record) {
    record.Add(name, others);
    record.Add(absl::StrCat(name, " | amx"), amx);
    *this = {};
  }
  std::string others, amx;
};

void AddSchedules(Record& record) {
  std::vector<int64_t> workspace(100000);
  const std::vector<ScheduleCase> cases = ScheduleCases();
  Texts texts;
  for (size_t i = 0; i < cases.size(); ++i) {
    const ScheduleCase& c = cases[i];
    const TestProblem test(c.spec, TestProblem::Contents::kNone);
    InlinePool pool(c.pool_threads);
    for (const NamedCpu& named : AllCpus()) {
      Options options = {.executor = Executor::kSerial, .cpu = named.cpu};
      if (c.pool_threads != 0) options = {.executor = Executor::kPool, .pool = &pool, .cpu = named.cpu};
      const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, options, absl::MakeSpan(workspace));
      ASSERT_EQ(plan.status(), absl::OkStatus()) << Describe(c.spec);
      const std::string text = ScheduleText(*plan);
      if (c.each_cpu) record.Add(absl::StrCat(c.name, " | ", named.name, ": ", Summary(*plan)), text);
      if (!c.each_cpu) texts.Add(named, text);
    }
    const bool continues = i + 1 < cases.size() && cases[i + 1].name == c.name;
    if (!c.each_cpu && !continues) texts.MoveTo(c.name, record);
  }
}

void AddKernels(Record& record) {
  for (const IsaRow& isa : IsaRows()) {
    for (const KernelRow& row : isa.kernels) record.Add(absl::StrCat(isa.name, " ", NameOf(row)), KernelsText(row));
    if (isa.expanders != nullptr) record.Add(absl::StrCat(isa.name, " expands"), ExpandersText(*isa.expanders));
  }
}

// Sizes of workspaces, and where in that of an MLP things lie.
void AddWorkspaces(Record& record) {
  std::string text;
  for (int arrays = 0; arrays <= 6; ++arrays) {
    const auto [constant, per_group] = WorkspaceSizeFor(arrays);
    absl::StrAppend(&text, arrays, ": ", constant, " + ", per_group, "\n");
  }
  record.Add("workspace of calls", text);
  for (const MoeMlpExtents& extents :
       {MoeMlpExtents{0, 0, 0, 0, 0, 1}, MoeMlpExtents{1, 8, 8, 2, 1, 2}, MoeMlpExtents{64, 2048, 768, 512, 128, 2},
        MoeMlpExtents{9, 40, 24, 14, 4, 4}, MoeMlpExtents{5000, 2880, 2880, 20000, 32, 2}}) {
    for (bool is_backward : {false, true}) {
      text = absl::StrCat(WorkspaceSizeFor(extents, is_backward), "\n");
      absl::StrAppend(&text, BuffersText(extents, is_backward));
      record.Add(absl::StrCat("workspace of ", is_backward ? "gradients" : "an MLP", " of ", extents.rows, "x",
                              extents.hidden, "x", extents.intermediate),
                 text);
    }
  }
}

void AddMlps(Record& record) {
  for (Gate gate : {Gate::kNone, Gate::kSeparate, Gate::kHalves, Gate::kInterleaved}) {
    for (DType weights : {DType::kF32, DType::kBF16, DType::kS8}) {
      MlpSpec spec{.tokens = 200, .hidden = 96, .intermediate = 160, .sizes = {30, 0, 150, 200, 3}, .gate = gate};
      spec.weights = weights;
      if (weights == DType::kBF16) spec.x = weights;
      if (weights == DType::kS8) spec.scale = {1};
      TestMlp mlp(spec);
      Texts texts;
      for (const NamedCpu& named : AllCpus()) {
        const Options options = {.executor = Executor::kOpenMp, .threads = 3, .cpu = named.cpu};
        texts.Add(named, PlanTextOfMoeMlp(mlp.problem, options, mlp.Workspace()).value());
      }
      texts.MoveTo(absl::StrCat("moe_mlp, gate ", static_cast<int>(gate), ", weights ", NameOf(weights)), record);
    }
  }
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// All lines, but for those of AMX on a CPU without its tiles of bytes.
std::string Comparable(const std::string& lines) {
  if (!HostLacksTilesOfBytes()) return lines;
  std::vector<std::string> kept = absl::StrSplit(lines, '\n');
  kept.erase(std::remove_if(kept.begin(), kept.end(), [](const auto& line) { return absl::StrContains(line, "amx"); }),
             kept.end());
  return absl::StrJoin(kept, "\n");
}

TEST(SchedulesTest, AreAsRecorded) {
  Record record;
  record.recorded = Read(RAGGEMM_TESTS_DIR "/kernels/schedules.txt");
  AddSchedules(record);
  AddKernels(record);
  AddWorkspaces(record);
  AddMlps(record);
  if (Comparable(record.lines) == Comparable(record.recorded)) return;
  const std::string lines = testing::TempDir() + "schedules.txt",
                    changed = testing::TempDir() + "schedules_changed.txt";
  Write(lines, record.lines);
  Write(changed, record.changed);
  FAIL() << "differs from schedules.txt: " << lines << ", and in full what is not there: " << changed;
}

}  // namespace
}  // namespace raggemm::test
