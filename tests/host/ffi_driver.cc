// Runs cases of proto/cases through libraggemm_ffi.so like XLA, and compares the results with the float64 reference.
//
// Exit codes: 0 if all results are right. 1 if a result is wrong, a case fails or Abseil refuses a flag. 2 if the
// program could not start.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/case.pb.h"
#include "proto/read_cases.h"
#include "raggemm/format.h"
#include "raggemm/plan.h"
#include "tests/host/mini_host.h"
#include "tests/host/run_case.h"

ABSL_FLAG(std::string, case, "", "run the case of this name");
ABSL_FLAG(bool, all, false, "run all cases");
ABSL_FLAG(bool, list, false, "print the names of the cases");
ABSL_FLAG(std::string, cases, "", "text files of GroupedGemmCases, separated by commas; default: all of proto/cases");
ABSL_FLAG(std::string, isa, "", "an instruction set, like avx2; default: the case's, or the fastest that the CPU has");
ABSL_FLAG(std::string, executor, "", "openmp, pool or serial; default: the case's, or pool");
ABSL_FLAG(int, threads, 0, "0: the case's, or one for each CPU");
ABSL_FLAG(std::string, dtype, "",
          absl::StrCat(raggemm::NamesOf(raggemm::Role::kMatrix), ", ", raggemm::NamesOf(raggemm::Role::kQuantized),
                       ": lhs and rhs; out is then f32, f64 for f64, or s32 for bytes"));
ABSL_FLAG(std::string, bf16_sums, "",
          "pairs, tiles, fma or mmla: the rule for sums of bf16 products; default: the case's, or the CPU's");
ABSL_FLAG(std::string, precision, "",
          "default, bf16_x3 or bf16_x6: products of f32 by f32 as several products of bf16; default: the case's");
ABSL_FLAG(bool, full, false, "run recorded sizes; otherwise rows are scaled to at most 10^9 multiply-adds a case");
ABSL_FLAG(bool, checksums, false, "for each case that is right, print its name, dtypes and the checksum of its result");
ABSL_FLAG(bool, print_plan, false, "print how each case is computed");

namespace raggemm::host {
namespace {

using proto::GroupedGemmCase;
using proto::GroupedGemmCases;
namespace fs = std::filesystem;

constexpr int64_t kMaxMultiplyAdds = 1'000'000'000;

// Returns the path of a file of this program. `relative` starts at the parent of the program's folder.
fs::path InstalledPath(const char* relative) {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / relative;
}

GroupedGemmCases ReadOrThrow(const std::string& path) {
  absl::StatusOr<GroupedGemmCases> cases = ReadCases(path);
  if (!cases.ok()) throw std::runtime_error(std::string(cases.status().message()));
  if (cases->cases().empty()) throw std::runtime_error(absl::StrCat(path, ": has no cases"));
  return *std::move(cases);
}

GroupedGemmCases LoadCases() {
  GroupedGemmCases all;
  for (absl::string_view path : absl::StrSplit(absl::GetFlag(FLAGS_cases), ',', absl::SkipEmpty())) {
    all.MergeFrom(ReadOrThrow(std::string(path)));
  }
  if (!all.cases().empty()) return all;
  const fs::path directory = InstalledPath("cases");
  for (const char* name : {"moe", "edge", "formats"})
    all.MergeFrom(ReadOrThrow(directory / absl::StrCat(name, ".textproto")));
  return all;
}

std::vector<GroupedGemmCase> SelectCases() {
  const GroupedGemmCases all = LoadCases();
  if (absl::GetFlag(FLAGS_all) || absl::GetFlag(FLAGS_list)) return {all.cases().begin(), all.cases().end()};
  for (const GroupedGemmCase& c : all.cases()) {
    if (c.name() == absl::GetFlag(FLAGS_case)) return {c};
  }
  throw std::runtime_error(absl::StrCat("no case is called \"", absl::GetFlag(FLAGS_case), "\"; --list prints all"));
}

RunOptions OptionsFromFlags() {
  RunOptions options;
  for (const auto& [name, value] :
       {std::pair{"isa", absl::GetFlag(FLAGS_isa)}, {"executor", absl::GetFlag(FLAGS_executor)}}) {
    if (!value.empty()) options.how[name] = absl::AsciiStrToUpper(value);
  }
  if (const int threads = absl::GetFlag(FLAGS_threads); threads != 0) options.how["threads"] = int64_t{threads};
  if (const std::string name = absl::GetFlag(FLAGS_dtype); !name.empty()) {
    for (const Format& format : kFormats) {
      const bool is_matrix = IsMatrix(format.dtype) || IsQuantized(format.dtype);
      if (is_matrix && absl::EqualsIgnoreCase(name, format.name)) options.dtype = format.dtype;
    }
    if (!options.dtype) {
      throw std::runtime_error(
          absl::StrCat("--dtype=", name, ": must be ", NamesOf(Role::kMatrix), ", ", NamesOf(Role::kQuantized)));
    }
  }
  if (const std::string name = absl::AsciiStrToUpper(absl::GetFlag(FLAGS_bf16_sums)); !name.empty()) {
    if (!proto::GroupedGemmConfig::Bf16Sums::Value_Parse(name, &options.bf16_sums.emplace())) {
      throw std::runtime_error(absl::StrCat("--bf16_sums=", name, ": must be AUTO, TILES, PAIRS, FMA or MMLA"));
    }
  }
  if (const std::string name = absl::AsciiStrToUpper(absl::GetFlag(FLAGS_precision)); !name.empty()) {
    if (!proto::GroupedGemmConfig::Precision::Value_Parse(name, &options.precision.emplace())) {
      throw std::runtime_error(absl::StrCat("--precision=", name, ": must be DEFAULT, BF16_X3 or BF16_X6"));
    }
  }
  if (!absl::GetFlag(FLAGS_full)) options.max_multiply_adds = kMaxMultiplyAdds;
  return options;
}

// Returns the value of a line "key: value" in the text of a plan, or "-" if there is none.
std::string Fact(const std::string& plan, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(plan, '\n')) {
    if (absl::ConsumePrefix(&line, key) && absl::ConsumePrefix(&line, ": ")) return std::string(line);
  }
  return "-";
}

int PoolThreads(const GroupedGemmCase& c) {
  int64_t threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = c.config().threads();
  if (threads <= 0) threads = std::thread::hardware_concurrency();
  return static_cast<int>(std::min<int64_t>(threads, kMaxThreads));
}

// Runs a case. Returns exceptions (invalid shapes, too little memory) as errors, so that later cases still run.
absl::StatusOr<CaseRun> TryCase(const Plugin& plugin, const GroupedGemmCase& source, const RunOptions& options) {
  try {
    ThreadPool pool(PoolThreads(source));
    return RunCase(plugin, source, options, &pool);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("case ", source.name(), ": not enough memory for its operands"));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("case ", source.name(), ": ", e.what()));
  }
}

bool Report(const GroupedGemmCase& source, const absl::StatusOr<CaseRun>& run) {
  if (!run.ok()) {
    absl::PrintF("%-34s ERROR %s\n", source.name(), run.status().ToString());
    return false;
  }
  if (absl::GetFlag(FLAGS_print_plan)) absl::PrintF("\n%s\n%s", source.name(), run->plan);
  const Check& check = run->check;
  const bool right = check.max_error <= 1;
  if (absl::GetFlag(FLAGS_checksums) && right) {
    absl::PrintF("%s %s %016x\n", source.name(), run->dtypes, run->checksum);
    return true;
  }
  const std::string rows =
      run->rows == run->recorded_rows ? absl::StrCat(run->rows) : absl::StrCat(run->rows, "/", run->recorded_rows);
  absl::PrintF("%-34s %-10s %-21s %-11s %10s %9d %9.4f %9.2f%s\n", source.name(), Fact(run->plan, "mode"), run->dtypes,
               Fact(run->plan, "isa"), run->recorded_rows == 0 ? "-" : rows, check.compared, check.max_error,
               2e-9 * static_cast<double>(run->multiply_adds) / run->seconds, right ? "" : "  WRONG");
  if (!right) {
    absl::PrintF("  out[%d] is %.9g, must be %.9g\n", check.worst, check.got, check.want);
  }
  std::fflush(stdout);
  return right;
}

// Throws std::runtime_error if the plugin has another FFI API version, or refuses the attributes of the flags.
void CheckPlugin(const Plugin& plugin, const Attributes& attributes) {
  for (XLA_FFI_Handler* handler : {plugin.instantiate, plugin.execute}) {
    if (Error error = CheckVersion(handler); !error.ok()) throw std::runtime_error(error.message);
  }
  if (Error error = Instantiate(plugin.instantiate, attributes); !error.ok()) throw std::runtime_error(error.message);
}

int Run() {
  const std::vector<GroupedGemmCase> cases = SelectCases();
  if (absl::GetFlag(FLAGS_list)) {
    for (const GroupedGemmCase& c : cases) std::puts(c.name().c_str());
    return 0;
  }
  const RunOptions options = OptionsFromFlags();
  const Plugin plugin(InstalledPath("lib/libraggemm_ffi.so"));
  CheckPlugin(plugin, options.how);
  const bool checksums = absl::GetFlag(FLAGS_checksums);
  if (!checksums) {
    absl::PrintF("%-34s %-10s %-21s %-11s %10s %9s %9s %9s\n", "case", "mode", "dtype", "isa", "rows", "compared",
                 "max error", "GFLOP/s");
  }
  int wrong = 0;
  for (const GroupedGemmCase& c : cases) {
    const absl::StatusOr<CaseRun> run = TryCase(plugin, c, options);
    wrong += !Report(c, run);
    if (absl::IsFailedPrecondition(run.status())) break;  // The machine lacks an ISA or executor. All cases would fail.
  }
  if (checksums) return wrong == 0 ? 0 : 1;
  absl::PrintF("%d %s, %d wrong (max error in units of the tolerance)\n", cases.size(),
               cases.size() == 1 ? "case" : "cases", wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace raggemm::host

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("runs cases through libraggemm_ffi.so: --case=NAME | --all | --list");
  absl::ParseCommandLine(argc, argv);
  const int modes = !absl::GetFlag(FLAGS_case).empty() + absl::GetFlag(FLAGS_all) + absl::GetFlag(FLAGS_list);
  try {
    if (modes != 1) throw std::runtime_error("give one of --case=NAME, --all and --list");
    return raggemm::host::Run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ffi_driver: %s\n", e.what());
    return 2;
  }
}
