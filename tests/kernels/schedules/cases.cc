#include "tests/kernels/schedules/cases.h"

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using Cases = std::vector<ScheduleCase>;

// Groups with so many rows in the mean, some with none, some with twice as many.
ProblemSpec Experts(int64_t experts, int64_t k, int64_t n, int64_t rows) {
  ProblemSpec spec{.groups = experts, .m = experts * rows, .n = n, .k = k};
  for (int64_t g = 0; g < experts; ++g) spec.sizes.push_back(rows * (g % 4 == 1 ? 0 : g % 4 == 2 ? 2 : 1));
  return spec;
}

struct Types {
  DType lhs, rhs;
  std::vector<int64_t> lhs_scale = {}, rhs_scale = {};
};
ProblemSpec With(const Types& types, ProblemSpec spec) {
  spec.lhs = types.lhs;
  spec.rhs = types.rhs;
  spec.lhs_scale = types.lhs_scale;
  spec.rhs_scale = types.rhs_scale;
  return spec;
}
// With columns of rhs along k.
ProblemSpec Transposed(ProblemSpec spec) {
  spec.rhs_flipped = true;
  if (spec.rhs_scale.size() == 2) std::swap(spec.rhs_scale[0], spec.rhs_scale[1]);
  return spec;
}
std::string NameOf(const ProblemSpec& spec) {
  return absl::StrCat(raggemm::NameOf(spec.lhs), " x ", raggemm::NameOf(spec.rhs));
}

// What a model asks for: up and down, decoding and prefill. Of one shape a line for each CPU, to be read.
void AddExperts(Cases& cases) {
  const Types kTypes[] = {{DType::kF32, DType::kF32},
                          {DType::kBF16, DType::kBF16},
                          {DType::kBF16, DType::kS8, {}, {1, 0}},
                          {DType::kF32, DType::kF4E2M1FN, {}, {32, 1}},
                          {DType::kS8, DType::kS8, {1, 0}, {0, 1}}};
  for (const Types& types : kTypes) {
    for (auto [experts, k, n] : {std::array{128, 2048, 768}, {32, 768, 2048}, {32, 2880, 2880}, {8, 4096, 14336}}) {
      for (int64_t rows : {1, 2, 4, 8, 16, 32, 64, 512}) {
        const ProblemSpec spec = With(types, Experts(experts, k, n, rows));
        const std::string name = absl::StrCat(NameOf(spec), ", ", rows, " rows of ", k, "x", n);
        const bool each_cpu = experts == 128 && (rows == 1 || rows == 8 || rows == 64) && !IsQuantized(types.lhs);
        cases.push_back({name, spec, 8, each_cpu});
        if (experts != 32 || rows % 8 == 1) cases.push_back({absl::StrCat(name, " transposed"), Transposed(spec), 8});
      }
    }
  }
}

// Every way to store every mode, in few groups and in several segments.
void AddStorages(Cases& cases) {
  for (RaggedMode mode : kAllModes) {
    ProblemSpec spec{.mode = mode, .groups = 5, .m = 400, .n = 410, .k = 390, .sizes = {1, 200, 0, 64, 103}};
    if (mode == RaggedMode::kAllRagged) spec.n_sizes = {5, 300, 3, 90, 120}, spec.k_sizes = {50, 700, 9, 0, 33};
    for (const Types& types :
         {Types{DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kF64, DType::kF16}}) {
      for (int threads : {0, 4, 64}) {
        const std::string name =
            absl::StrCat(raggemm::NameOf(mode), " ", NameOf(With(types, spec)), ", ", threads, " threads");
        for (const ProblemSpec& variant : StorageVariants(With(types, spec))) cases.push_back({name, variant, threads});
      }
    }
    if (mode == RaggedMode::kUniform || mode == RaggedMode::kAllRagged) continue;
    spec.problems = 2;
    spec.replicas = 3;
    spec.groups = 2;
    spec.sizes = {60, 20, 60, 20, 60, 20, 0, 390, 0, 390, 0, 390};
    cases.push_back({absl::StrCat(raggemm::NameOf(mode), ", a batch"), spec, 3});
  }
}

// Every pair of types, few rows and many, as the columns lie and along k, extents that are no multiple of anything.
void AddTypes(Cases& cases) {
  for (DType lhs : kAllFloats) {
    for (DType rhs : kAllFloats) {
      for (int64_t rows : {3, 150}) {
        const ProblemSpec spec = With({lhs, rhs}, Experts(3, 333, 299, rows));
        for (const ProblemSpec& stored : {spec, Transposed(spec)}) cases.push_back({NameOf(spec), stored, 2});
      }
    }
  }
  for (DType lhs : kAllBytes) {
    for (DType rhs : kAllBytes) {
      ProblemSpec spec = With({lhs, rhs}, Experts(3, 333, 299, 40));
      spec.out = DType::kS32;
      cases.push_back({absl::StrCat(NameOf(spec), " to s32"), spec, 2});
    }
  }
}

// Scales of sums and of elements, of blocks shorter and longer than a panel; columns that end within bytes.
void AddQuantized(Cases& cases) {
  const std::vector<int64_t> kScales[] = {{}, {1}, {0, 1}, {48, 0}, {32, 4}, {512, 1}, {1, 1}};
  for (DType rhs : kAllQuantized) {
    for (DType lhs : {DType::kF32, DType::kBF16, DType::kS8, DType::kF8E4M3FN}) {
      for (const std::vector<int64_t>& scale : kScales) {
        const ProblemSpec spec = With({lhs, rhs, {}, scale}, Experts(4, 1536, 160, 7));
        const ProblemSpec tall = With({lhs, rhs, {}, scale}, Experts(4, 1536, 160, 50));
        for (const ProblemSpec& one : {spec, tall, Transposed(spec)}) cases.push_back({NameOf(spec), one, 2});
      }
    }
    for (int64_t n : {7, 14, 96, 300}) {
      for (int64_t rows : {1, 33}) {
        ProblemSpec spec = With({DType::kBF16, rhs, {}, {1}}, Experts(4, 320, n, rows));
        spec.rhs_layout = Layout::kColumnBlocks;
        cases.push_back({absl::StrCat(NameOf(spec), " in blocks of columns"), spec, 2});
      }
    }
  }
}

// As long as sums of integers may be for a float, and a step longer.
void AddLongSums(Cases& cases) {
  for (auto [lhs, rhs, digits] : {std::tuple{DType::kS8, DType::kS8, 14},
                                  {DType::kU8, DType::kS8, 15},
                                  {DType::kU8, DType::kU8, 16},
                                  {DType::kS8, DType::kS4, 10}}) {
    for (int64_t more : {-1, 0}) {
      const ProblemSpec spec = With({lhs, rhs, {0}, {0}}, Experts(1, (int64_t{1} << (31 - digits)) + more, 16, 1));
      cases.push_back({absl::StrCat(NameOf(spec), ", k ", spec.k), spec});
    }
  }
}

void AddOptions(Cases& cases) {
  for (Precision precision : {Precision::kBf16X3, Precision::kBf16X6}) {
    for (ArithmeticId rule : {ArithmeticId::kPairs, ArithmeticId::kTiles}) {
      const std::string name = absl::StrCat("split ", static_cast<int>(precision), ", rule ", static_cast<int>(rule));
      for (int64_t k : {1, 65, 700}) {
        ProblemSpec spec = Experts(3, k, 300, 90);
        spec.precision = precision;
        spec.bf16_sums = rule;
        for (const ProblemSpec& stored : {spec, Transposed(spec)}) cases.push_back({name, stored, 2});
      }
    }
  }
  for (int64_t rows : {2, 100}) {
    ProblemSpec spec = Experts(4, 300, 200, rows);
    spec.activation = Activation::kSilu;
    spec.gate = DType::kBF16;
    spec.c = spec.bias = spec.alpha = spec.beta = true;
    spec.local_groups = 2;
    spec.group_offset = 1;
    spec.lhs_rows = 50;
    cases.push_back({"all options", spec, 3});
  }
}

}  // namespace

std::vector<ScheduleCase> ScheduleCases() {
  Cases cases;
  AddExperts(cases);
  AddStorages(cases);
  AddTypes(cases);
  AddQuantized(cases);
  AddLongSums(cases);
  AddOptions(cases);
  return cases;
}

}  // namespace raggemm::test
