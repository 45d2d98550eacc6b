// Computes random valid problems with every instruction set of the host. Each run has another random configuration.
// Compares results with the bits of the oracle and with the float64 reference. After a wrong result, a crash or a hang,
// prints a line that --replay accepts.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "kernels/target/isa.h"
#include "raggemm/grouped_gemm.h"
#include "tests/ffi/mlp_call.h"
#include "tests/ffi/plugin_call.h"
#include "tests/oracle/reference.h"
#include "tests/support/field_text.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/mlp_reference.h"
#include "tests/support/problem_spec.h"
#include "tests/support/task_pools.h"
#include "tests/support/test_mlp.h"
#include "tests/support/variants.h"

ABSL_FLAG(double, seconds, 10, "seconds of random problems");
ABSL_FLAG(std::string, seed, "", "seed of the first problem; default: a new one for each run");
ABSL_FLAG(std::string, replay, "", "compute the one case that this line describes");
ABSL_FLAG(std::string, corpus, "", "file with cases to compute first, one per line; # starts a comment");

namespace raggemm::test {
namespace {

constexpr unsigned kSecondsOfAHang = 20;

// ---- cases as text ----

struct RunConfig {
  Isa isa = Isa::kScalar;
  Executor executor = Executor::kSerial;
  int64_t threads = 1;
  bool plugin = false;    // True: compute by the plugin's custom call. False: by the C++ library.
  bool out_is_c = false;  // True: out and c share their memory, if the problem has a c.
};

template <typename Visit, typename SomeConfig>
requires std::is_same_v<std::remove_const_t<SomeConfig>, RunConfig>
void VisitFields(SomeConfig& config, Visit visit) {
  visit("isa", config.isa);
  visit("executor", config.executor);
  visit("threads", config.threads);
  visit("plugin", config.plugin);
  visit("out_is_c", config.out_is_c);
}

// An MlpSpec with the smallest and simplest values as defaults. ToText omits fields with these values.
struct PlainMlp : MlpSpec {
  PlainMlp()
      : MlpSpec{.tokens = 1,
                .hidden = 0,
                .intermediate = 0,
                .sizes = {},
                .behind = 0,
                .gate = Gate::kNone,
                .biases = false,
                .row_weights = false} {}
  explicit PlainMlp(const MlpSpec& spec) : MlpSpec(spec) {}
};

struct FuzzCase {
  ProblemSpec spec;
  RunConfig config;
  std::optional<PlainMlp> mlp = std::nullopt;  // If set, the case is this MLP, and `spec` is ignored.
};

constexpr absl::string_view kBetween = " : ", kMlp = "mlp ";

// Returns a case as one line: the fields of the spec, " : ", and the fields of the config. Starts the line with "mlp "
// for an MLP. Omits fields with default values.
std::string ToText(const FuzzCase& fuzz_case) {
  const std::string spec = fuzz_case.mlp ? absl::StrCat(kMlp, FieldsText(*fuzz_case.mlp)) : FieldsText(fuzz_case.spec);
  return absl::StrCat(spec, kBetween, FieldsText(fuzz_case.config));
}

absl::StatusOr<FuzzCase> ParseFuzzCase(absl::string_view text) {
  FuzzCase parsed;
  const bool is_mlp = absl::ConsumePrefix(&text, kMlp);
  if (is_mlp) parsed.mlp.emplace();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(kBetween, 1));
  for (const absl::Status& status :
       {is_mlp ? ParseFields(parts.first, *parsed.mlp) : ParseFields(parts.first, parsed.spec),
        ParseFields(parts.second, parsed.config)}) {
    if (!status.ok()) return status;
  }
  return parsed;
}

RunConfig RandomConfig(Isa isa, Random& random) {
  static constexpr Executor kExecutors[] = {Executor::kAuto, Executor::kOpenMp, Executor::kPool, Executor::kSerial};
  return {.isa = isa,
          .executor = kExecutors[random.Below(4)],
          .threads = random.Below(9),
          .plugin = random.Coin(),
          .out_is_c = random.Coin()};
}

// ---- crashes and hangs ----

char running[1 << 14];  // Text of the running case, printed after a crash or a hang.

void PrintCase(int signal) {
  const char* texts[] = {"\ncrash or hang. Replay with\n  ./dev test fuzz_problems --replay=\"", running, "\"\n"};
  for (const char* text : texts) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
  }
  _exit(128 + signal);
}

void CatchCrashes() {
  struct sigaction action = {};
  action.sa_handler = PrintCase;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
}

// The pools are never destroyed, because tasks may start after the end of their call.
constexpr int kPoolThreads = 3;
TaskPool& LibrarysPool() {
  static auto* pool = new ThreadedPool(kPoolThreads);
  return *pool;
}
host::TaskRunner& PluginsPool() {
  static auto* pool = new host::ThreadPool(kPoolThreads);
  return *pool;
}

absl::Status Execute(XLA_FFI_Handler* handler, const RunConfig& config, host::Call& call) {
  call.attributes["executor"] = absl::AsciiStrToUpper(FieldText(config.executor));
  call.attributes["isa"] = absl::AsciiStrToUpper(FieldText(config.isa));
  call.attributes["threads"] = config.threads;
  const host::Error error = host::Execute(handler, call, &PluginsPool());
  // XLA's and Abseil's error codes have the same numbers.
  return absl::Status(static_cast<absl::StatusCode>(error.code), error.message);
}

Options OptionsOf(const RunConfig& config) {
  return {.executor = config.executor, .isa = config.isa, .threads = config.threads, .pool = &LibrarysPool()};
}

// A problem or an MLP, and its expected result. All configurations share the expected result.
class Checked {
 public:
  virtual ~Checked() = default;
  // Returns success if every element of out has the bits of the oracle and is within its error bound, and no byte
  // around a buffer has changed. Does not check the bound for special values, because float64 overflows later than f32.
  virtual testing::AssertionResult IsRight(const RunConfig& config) = 0;
};

class CheckedProblem : public Checked {
 public:
  explicit CheckedProblem(const ProblemSpec& spec)
      : special_values_(spec.special_values),
        call_(spec),
        reference_(ComputeReference(call_.problem().problem).value()) {}

  testing::AssertionResult IsRight(const RunConfig& config) override {
    TestProblem& test = call_.problem();
    const std::optional<Array> c = test.problem.c;
    test.ClearOut();
    if (config.out_is_c && c.has_value()) {
      test.AliasOutWithC();
      call_.call().args[8].data = test.problem.out.data;
    }
    const absl::Status status = config.plugin ? Execute(ThePlugin().execute, config, call_.call())
                                              : GroupedGemm(test.problem, OptionsOf(config));
    test.problem.c = c;
    if (c.has_value()) call_.call().args[8].data = c->data;
    if (!status.ok()) return testing::AssertionFailure() << status;
    testing::AssertionResult right = call_.IsRight();
    if (right && !special_values_) right = IsWithinBound(test.problem.out, reference_);
    return right;
  }

 private:
  bool special_values_;
  PluginCall call_;
  Reference reference_;
};

// An MLP. Its expected bits are computed by separate products, activations and sums.
class CheckedMlp : public Checked {
 public:
  explicit CheckedMlp(const MlpSpec& spec) : call_(spec), reference_(ComputeReference(call_.mlp())) {}

  testing::AssertionResult IsRight(const RunConfig& config) override {
    TestMlp& mlp = call_.mlp();
    mlp.ClearOut();
    const absl::Status status =
        config.plugin ? Execute(MlpHandler("execute"), config, call_.call()) : mlp.Run(OptionsOf(config));
    if (!status.ok()) return testing::AssertionFailure() << status;
    testing::AssertionResult right = call_.IsRight();
    return right ? IsWithinBound(mlp, reference_) : right;
  }

 private:
  MlpCall call_;
  Reference reference_;
};

void NameRunningCase(const FuzzCase& fuzz_case) {
  std::snprintf(running, sizeof running, "%s", ToText(fuzz_case).c_str());
}

std::unique_ptr<Checked> Make(const FuzzCase& fuzz_case) {
  NameRunningCase(fuzz_case);
  if (fuzz_case.mlp) return std::make_unique<CheckedMlp>(*fuzz_case.mlp);
  return std::make_unique<CheckedProblem>(fuzz_case.spec);
}

FuzzCase RandomCase(Random& random) {
  if (random.Below(4) != 0) return {RandomSpec(random), {}};
  std::mt19937 mlp_random(static_cast<uint32_t>(random.Next()));
  return {{}, {}, PlainMlp(RandomForwardSpec(mlp_random))};
}

bool IsRight(Checked& problem, const FuzzCase& fuzz_case) {
  NameRunningCase(fuzz_case);
  alarm(kSecondsOfAHang);
  const testing::AssertionResult right = problem.IsRight(fuzz_case.config);
  alarm(0);
  if (!right) {
    std::printf("WRONG: %s\nReplay with\n  ./dev test fuzz_problems --replay=\"%s\"\n", right.message(), running);
  }
  return right;
}

bool IsRight(const FuzzCase& fuzz_case) { return IsRight(*Make(fuzz_case), fuzz_case); }

int RunCorpus(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return 2;
  }
  int cases = 0, wrong = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const absl::StatusOr<FuzzCase> parsed = ParseFuzzCase(line);
    if (!parsed.ok()) {
      std::printf("%s: %s\n", line.c_str(), parsed.status().ToString().c_str());
      return 2;
    }
    ++cases;
    if (HostHas(parsed->config.isa)) wrong += !IsRight(*parsed);
  }
  std::printf("%d cases of %s, %d wrong\n", cases, path.c_str(), wrong);
  return wrong == 0 ? 0 : 1;
}

// Returns true if the float modes that flush denormals work here. Under Valgrind they do not, and the results of
// arithmetics with such a mode are wrong.
bool FlushesDenormals() {
  const FloatMode mode(/*flushes=*/true);
  const volatile float tiny = 0x1p-100F;
  return tiny * 0x1p-40F == 0;
}

int RunRandom(uint64_t seed, double seconds) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const std::vector<Isa> isas = HostIsas();
  const bool flushes = FlushesDenormals();
  int64_t problems = 0;
  for (; elapsed() < seconds; ++problems) {
    Random random(seed + static_cast<uint64_t>(problems));
    FuzzCase fuzz_case = RandomCase(random);
    if (!flushes) fuzz_case.spec.special_values = false;
    const std::unique_ptr<Checked> problem = Make(fuzz_case);
    for (Isa isa : isas) {
      fuzz_case.config = RandomConfig(isa, random);
      if (!IsRight(*problem, fuzz_case)) return 1;
    }
  }
  std::printf("%lld problems, %.0f a minute, each with", static_cast<long long>(problems),
              static_cast<double>(problems) * 60 / elapsed());
  for (Isa isa : isas) std::printf(" %s", IsaName(isa).c_str());
  std::printf(": all right\n");
  return 0;
}

int Main() {
  if (const std::string text = absl::GetFlag(FLAGS_replay); !text.empty()) {
    const absl::StatusOr<FuzzCase> parsed = ParseFuzzCase(text);
    if (parsed.ok()) return IsRight(*parsed) ? 0 : 1;
    std::fprintf(stderr, "%s\n", parsed.status().ToString().c_str());
    return 2;
  }
  CatchCrashes();
  if (const std::string path = absl::GetFlag(FLAGS_corpus); !path.empty()) {
    if (const int status = RunCorpus(path); status != 0) return status;
  }
  uint64_t seed = std::random_device()();
  if (const std::string text = absl::GetFlag(FLAGS_seed); !text.empty() && !absl::SimpleAtoi(text, &seed)) {
    std::fprintf(stderr, "--seed=%s: must be a number\n", text.c_str());
    return 2;
  }
  return RunRandom(seed, absl::GetFlag(FLAGS_seconds));
}

}  // namespace
}  // namespace raggemm::test

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("compares random problems with an oracle");
  absl::ParseCommandLine(argc, argv);
  return raggemm::test::Main();
}
