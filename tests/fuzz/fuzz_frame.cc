// libFuzzer: small problems of every mode whose shapes, sizes, types and attributes are changed in a few places,
// through the execute handler. Each gives the right result or a defined error and touches nothing else.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ffi/handlers.h"
#include "tests/fuzz/fuzz_call.h"
#include "tests/host/problem_call.h"
#include "tests/support/problem_spec.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

using Bytes = FuzzedDataProvider;

// Sizes and extents that do not fit together are welcome.
ProblemSpec SmallSpec(Bytes& bytes) {
  ProblemSpec base;
  base.mode = bytes.PickValueInArray(kAllModes);
  const std::vector<ProblemSpec> variants = StorageVariants(base);
  ProblemSpec spec = variants[bytes.ConsumeIntegralInRange<size_t>(0, variants.size() - 1)];
  for (int64_t* extent : {&spec.m, &spec.n, &spec.k}) *extent = bytes.ConsumeIntegralInRange(0, 9);
  spec.groups = bytes.ConsumeIntegralInRange(0, 4);
  if (spec.mode != RaggedMode::kUniform) spec.problems = bytes.ConsumeIntegralInRange(0, 2);
  if (spec.mode != RaggedMode::kAllRagged) spec.replicas = bytes.ConsumeIntegralInRange(0, 2);
  for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) {
    sizes->resize(spec.problems * spec.replicas * spec.groups);
    for (int64_t& size : *sizes) size = bytes.ConsumeIntegralInRange(0, 4);
    if (spec.mode != RaggedMode::kAllRagged) break;
  }
  for (DType* dtype : {&spec.lhs, &spec.rhs, &spec.out, &spec.bias_type}) *dtype = bytes.PickValueInArray(kAllFloats);
  spec.sizes_type = bytes.PickValueInArray(kAllSizesTypes);
  for (bool* given : {&spec.c, &spec.bias, &spec.alpha, &spec.beta}) *given = bytes.ConsumeBool();
  spec.parameter_rows =
      bytes.PickValueInArray({ParameterRows::kScalar, ParameterRows::kPerGroup, ParameterRows::kPerReplica});
  if (bytes.ConsumeBool()) {
    spec.local_groups = bytes.ConsumeIntegralInRange(0, 4);
    spec.group_offset = bytes.ConsumeIntegralInRange(0, 4);
  }
  if (bytes.ConsumeBool())
    spec.activation = static_cast<Activation>(bytes.ConsumeIntegralInRange(0, kActivationCount - 1));
  if (bytes.ConsumeBool()) spec.gate = bytes.PickValueInArray(kAllFloats);
  if (bytes.ConsumeBool()) spec.lhs_rows = bytes.ConsumeIntegralInRange(1, 4);
  return spec;
}

Operand Keep(const host::Buffer& buffer) {
  const auto* data = static_cast<const unsigned char*>(buffer.data);
  return {buffer, data == nullptr ? std::vector<unsigned char>() : std::vector(data, data + BytesOf(buffer))};
}

int64_t AnyNumber(Bytes& bytes) {
  if (bytes.ConsumeBool()) return bytes.ConsumeIntegralInRange(-2, 12);
  const int64_t power = int64_t{1} << bytes.ConsumeIntegralInRange(8, 62);
  return bytes.PickValueInArray({power, -power, power - 1, power + 1, INT64_MAX, INT64_MIN});
}

// A call on the way to being spoilt.
struct Draft {
  std::vector<Operand> args, results;
  host::Attributes attributes;
};

Draft Draw(const ProblemSpec& spec) {
  TestProblem test(spec);
  std::vector<int64_t> workspace(host::WorkspaceElements(test.problem, raggemm_v1_workspace_coefficients));
  const host::Call call = host::MakeCall(test.problem, absl::MakeSpan(workspace));
  Draft draft;
  for (const host::Buffer& buffer : call.args) draft.args.push_back(Keep(buffer));
  for (const host::Buffer& buffer : call.results) draft.results.push_back(Keep(buffer));
  draft.attributes = call.attributes;
  return draft;
}

void EditOperand(Bytes& bytes, Operand& operand) {
  std::vector<int64_t>& dims = operand.buffer.dims;
  switch (bytes.ConsumeIntegralInRange(0, 4)) {
    case 0:
      if (!dims.empty()) dims[bytes.ConsumeIntegralInRange<size_t>(0, dims.size() - 1)] = AnyNumber(bytes);
      return;
    case 1:
      if (dims.size() < 8) dims.insert(dims.begin(), bytes.ConsumeIntegralInRange(0, 3));
      return;
    case 2:
      if (!dims.empty()) dims.pop_back();
      return;
    case 3:
      operand.buffer.dtype = static_cast<XLA_FFI_DataType>(bytes.ConsumeIntegralInRange(0, 34));
      return;
    case 4: {  // a value: a size, an offset, or a float's bits
      const int64_t value = AnyNumber(bytes);
      const size_t width = bytes.PickValueInArray({2, 4, 8}), count = operand.content.size() / width;
      if (count == 0) return;
      const size_t index = bytes.ConsumeIntegralInRange<size_t>(0, count - 1);
      std::memcpy(operand.content.data() + index * width, &value, width);
      return;
    }
  }
}

void EditAttributes(Bytes& bytes, host::Attributes& attributes) {
  const std::string matrix = bytes.PickValueInArray({"lhs", "rhs", "out"});
  switch (bytes.ConsumeIntegralInRange(0, 5)) {
    case 0:
      attributes[matrix + "_axis_boundary"] =
          bytes.ConsumeBool() ? bytes.ConsumeIntegralInRange<int64_t>(-4, 4) : AnyNumber(bytes);
      return;
    case 1:
      attributes[matrix + "_layout"] = std::string(bytes.PickValueInArray({"STRIDED", "PACKED", "COLUMN_BLOCKS"}));
      return;
    case 2:
      if (matrix != "out") attributes[matrix + "_is_trans"] = bytes.ConsumeBool();
      return;
    case 3:
      attributes["threads"] = AnyNumber(bytes);
      return;
    case 4:
      attributes[bytes.PickValueInArray({"ragged", "operands"})] = bytes.ConsumeRandomLengthString(64);
      return;
    case 5: {
      std::string ragged;
      for (const char* name : {"lhs_first", "lhs_last", "rhs_first", "rhs_last", "out_first", "out_last"}) {
        if (bytes.ConsumeBool()) ragged += (ragged.empty() ? "" : ",") + std::string(name);
      }
      attributes["ragged"] = ragged;
      return;
    }
  }
}

void Edit(Bytes& bytes, Draft& draft) {
  const size_t place = bytes.ConsumeIntegralInRange<size_t>(0, draft.args.size() + draft.results.size() + 2);
  if (place < draft.args.size()) {
    EditOperand(bytes, draft.args[place]);
  } else if (place < draft.args.size() + draft.results.size()) {
    EditOperand(bytes, draft.results[place - draft.args.size()]);
  } else if (bytes.ConsumeIntegralInRange(0, 7) > 0) {
    EditAttributes(bytes, draft.attributes);
  } else if (bytes.ConsumeBool()) {
    draft.args.push_back(draft.args.back());
  } else if (draft.args.size() > 1) {
    draft.args.pop_back();
  }
}

}  // namespace
}  // namespace raggemm::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace raggemm::test;  // NOLINT(google-build-using-namespace): the name is libFuzzer's
  constexpr int kMostEdits = 6;
  FuzzedDataProvider bytes(data, size);
  Draft draft = Draw(SmallSpec(bytes));
  for (int edit = 0; edit < kMostEdits && bytes.remaining_bytes() > 0; ++edit) Edit(bytes, draft);
  const ExactCall exact(draft.args, draft.results, draft.attributes);
  ExecuteAndCheck(exact.call());
  return 0;
}
