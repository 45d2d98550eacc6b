// libFuzzer: dictionaries of attributes, one a line, "name type value", through the handlers of both custom calls. The
// types are those of
// XLA's interface, by number, so that an attribute may have one that the handlers have never heard of; the order and
// repetitions are those of the text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "ffi/handlers.h"
#include "tests/fuzz/fuzz_call.h"

namespace raggemm::test {
namespace {

// "s text", "d" for a dictionary, "a3 value" for an array and "3 value" for a scalar of data type 3.
class RawAttributes {
 public:
  explicit RawAttributes(absl::string_view text) {
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
      if (words.size() >= 2 && !words[1].empty()) Add(words[0], words[1], words.size() == 3 ? words[2] : "");
    }
    list_ = ListOf(static_cast<int64_t>(nodes_.size()));
  }
  RawAttributes(const RawAttributes&) = delete;
  RawAttributes& operator=(const RawAttributes&) = delete;

  const XLA_FFI_Attrs& list() const { return list_; }
  bool has(absl::string_view name) const {
    return std::any_of(names_.begin(), names_.end(), [name](const XLA_FFI_ByteSpan* span) {
      return absl::string_view(span->ptr, span->len) == name;
    });
  }

 private:
  struct Node {
    XLA_FFI_ByteSpan name, text;
    alignas(16) char value[16];
    XLA_FFI_Scalar scalar;
    XLA_FFI_Array array;
    XLA_FFI_Attrs dictionary;
  };

  XLA_FFI_Attrs ListOf(int64_t size) {
    return {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, size, types_.data(), names_.data(), values_.data()};
  }

  void Append(XLA_FFI_AttrType type, void* value) {
    types_.push_back(type);
    values_.push_back(value);
  }

  void Add(absl::string_view name, absl::string_view type, absl::string_view value) {
    Node& node = nodes_.emplace_back();
    node.name = {name.data(), name.size()};
    node.text = {value.data(), value.size()};
    names_.push_back(&node.name);
    if (type == "s") return Append(XLA_FFI_AttrType_STRING, &node.text);
    if (type == "d") {
      node.dictionary = ListOf(0);
      return Append(XLA_FFI_AttrType_DICTIONARY, &node.dictionary);
    }
    const bool is_array = type[0] == 'a';
    uint32_t number = 0;
    (void)absl::SimpleAtoi(type.substr(is_array), &number);  // 0 will do for what is no number
    int64_t integer = 0;
    (void)absl::SimpleAtoi(value, &integer);
    if (number == XLA_FFI_DataType_PRED) integer &= 1;  // as a bool has it
    std::memcpy(node.value, &integer, sizeof integer);
    const auto dtype = static_cast<XLA_FFI_DataType>(number % 64);  // those that the enumeration has room for
    node.scalar = {dtype, node.value};
    node.array = {dtype, 1, node.value};
    is_array ? Append(XLA_FFI_AttrType_ARRAY, &node.array) : Append(XLA_FFI_AttrType_SCALAR, &node.scalar);
  }

  std::deque<Node> nodes_;  // a deque: the lists point into its elements
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
  XLA_FFI_Attrs list_;
};

// lhs, rhs and out of one element each, and no sizes: valid with the default attributes.
host::Call OneElement(std::vector<float>& values, std::vector<int64_t>& workspace) {
  const auto matrix = [&](int i) { return host::Buffer{XLA_FFI_DataType_F32, {1, 1, 1}, &values[i]}; };
  host::Call call;
  call.args = {matrix(0), matrix(1)};
  for (int i = 0; i < 6; ++i) call.args.push_back({XLA_FFI_DataType_S32, {0}, nullptr});
  call.results = {matrix(2), {XLA_FFI_DataType_S64, {static_cast<int64_t>(workspace.size())}, workspace.data()}};
  return call;
}

// One token of one expert, and all ones: the activation of one.
host::Call OneToken(std::vector<float>& values, std::vector<int64_t>& workspace) {
  static int32_t token = 0, size = 1;
  const auto matrix = [&](int i, std::vector<int64_t> dims) {
    return host::Buffer{XLA_FFI_DataType_F32, std::move(dims), &values[i]};
  };
  host::Call call;
  call.args = {matrix(0, {1, 1}),
               {XLA_FFI_DataType_S32, {1}, &token},
               {XLA_FFI_DataType_S32, {1}, &size},
               matrix(1, {1, 1, 1}),
               matrix(1, {1, 1, 1})};
  call.results = {matrix(2, {1, 1}),
                  {XLA_FFI_DataType_S64, {static_cast<int64_t>(workspace.size())}, workspace.data()}};
  return call;
}

// Instantiates and executes the call, whose first result is of one element; gives the answer.
host::Error Run(const RawAttributes& attributes, XLA_FFI_Handler* instantiate, XLA_FFI_Handler* execute,
                const host::Call& call) {
  const host::Call nothing;
  host::CallFrame instantiation(nothing, XLA_FFI_ExecutionStage_INSTANTIATE, nullptr);
  instantiation.get()->attrs = attributes.list();
  const host::Error instantiated = host::Invoke(instantiate, instantiation);
  Require(IsDefined(instantiated), "instantiate succeeds or says what is wrong");

  host::CallFrame execution(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  execution.get()->attrs = attributes.list();
  host::Error executed = host::Invoke(execute, execution);
  Require(IsDefined(executed), "execute succeeds or says what is wrong");
  Require(instantiated.ok() || executed.message == instantiated.message, "execute refuses what instantiate refuses");
  Require(host::LiveErrors() == 0, "every error was destroyed");
  return executed;
}

}  // namespace
}  // namespace raggemm::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace raggemm::test;  // NOLINT(google-build-using-namespace): the name is libFuzzer's
  namespace host = raggemm::host;
  const RawAttributes attributes(absl::string_view(reinterpret_cast<const char*>(data), size));
  std::vector<float> values = {2, 3, -1};
  std::vector<int64_t> workspace(1024);
  const auto is_nan = [&](const host::Error& answer) {
    return answer.ok() && std::isnan(values[2]) && attributes.has("on_error");
  };
  const host::Error product = Run(attributes, raggemm_grouped_gemm_v1_instantiate, raggemm_grouped_gemm_v1_execute,
                                  OneElement(values, workspace));
  const bool is_activated = attributes.has("activation") && values[2] > 5.9F && values[2] <= 6;
  const bool is_zero = attributes.has("ragged") && values[2] == 0;  // there are no groups
  Require(is_nan(product) || (product.ok() ? values[2] == 6 || is_activated || is_zero : values[2] == -1),
          "out is the product or what an activation makes of it, or untouched, or NaN where that is asked");

  values = {1, 1, -1};
  const host::Error token =
      Run(attributes, raggemm_moe_mlp_v1_instantiate, raggemm_moe_mlp_v1_execute, OneToken(values, workspace));
  const bool is_activation = values[2] > .7F && values[2] <= 1;
  Require(is_nan(token) || (token.ok() ? is_activation : values[2] == -1),
          "out is the activation of one, or untouched, or NaN where that is asked");
  return 0;
}
