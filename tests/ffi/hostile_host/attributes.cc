// Dictionaries of attributes that no true host makes: every attribute in turn, in every wrong way, for every handler
// that the plugin exports.
#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/hostile_call.h"

namespace raggemm::test {
namespace {

constexpr size_t kHugeLength = std::numeric_limits<size_t>::max() / 2;

std::vector<std::string> AttributeNames(const Target& target) {
  const auto* descriptor = target.description.attributes();
  std::vector<std::string> names;
  for (int i = 0; i < descriptor->field_count(); ++i) names.push_back(descriptor->field(i)->name());
  std::sort(names.begin(), names.end());
  return names;
}

// A call that gives every attribute that there is, so that the one at `index` is that of AttributeNames.
host::Attributes AllGiven(const Target& target, const host::Call& call) {
  host::Attributes attributes = call.attributes;
  attributes["executor"] = attributes["isa"] = std::string("AUTO");
  attributes["threads"] = int64_t{2};
  attributes["on_error"] = std::string("RAISE");
  if (&target.description != &kGroupedGemmCall) {
    attributes.try_emplace("results", std::string());
    attributes["up_layout"] = attributes["down_layout"] = std::string("STRIDED");
    return attributes;
  }
  attributes["lhs_is_trans"] = attributes["rhs_is_trans"] = false;
  attributes["names"] = std::string("lhs_first=group_sizes");
  return attributes;
}

// each(target, handler, name, index) for every attribute of every handler.
template <typename Each>
void ForEveryAttribute(Each each) {
  for (const Target& target : AllTargets()) {
    const std::vector<std::string> names = AttributeNames(target);
    for (const Handler& handler : target.handlers()) {
      for (size_t i = 0; i < names.size(); ++i) {
        SCOPED_TRACE(absl::StrCat(target.name(), " ", handler.name, " ", names[i]));
        each(target, handler, names[i], static_cast<int>(i));
      }
    }
  }
}

struct Spoiled {
  std::string name;
  std::function<void(XLA_FFI_Attrs& attributes, int index)> spoil;
  // Parts of the error for the attribute of that name; empty where nothing is wrong with it.
  std::function<std::vector<std::string>(const std::string& attribute)> texts;
};

void PrintTo(const Spoiled& spoiled, std::ostream* os) { *os << spoiled.name; }

XLA_FFI_Scalar& ScalarAt(XLA_FFI_Attrs& attributes, int i) {
  return *static_cast<XLA_FFI_Scalar*>(attributes.attrs[i]);
}

bool IsScalar(const XLA_FFI_Attrs& attributes, int i) { return attributes.types[i] == XLA_FFI_AttrType_SCALAR; }

auto Says(const std::string& text) {
  return [=](const std::string& attribute) { return std::vector<std::string>{"attribute", attribute, text}; };
}

// Names and kinds, which every attribute has.
std::vector<Spoiled> Entries() {
  const auto unnamed = [](const std::string&) { return std::vector<std::string>{"attribute[", "name is null"}; };
  return {
      {"NameNull", [](XLA_FFI_Attrs& a, int i) { a.names[i] = nullptr; }, unnamed},
      {"NameMisaligned", [](XLA_FFI_Attrs& a, int i) { a.names[i] = Misaligned(a.names[i]); }, unnamed},
      {"NameTextNull", [](XLA_FFI_Attrs& a, int i) { a.names[i]->ptr = nullptr; }, unnamed},
      {"NameHuge", [](XLA_FFI_Attrs& a, int i) { a.names[i]->len = kHugeLength; }, unnamed},
      {"NameTwice", [](XLA_FFI_Attrs& a, int i) { a.names[i == 0 ? 1 : i - 1] = a.names[i]; },
       [](const std::string& name) {
         return std::vector<std::string>{absl::StrCat("attribute ", name, " is given twice")};
       }},
      {"NamesSwapped",
       [](XLA_FFI_Attrs& a, int i) {
         const int other = i == 0 ? 1 : i - 1;
         std::swap(a.names[i], a.names[other]);
         std::swap(a.types[i], a.types[other]);
         std::swap(a.attrs[i], a.attrs[other]);
       },
       Says("names ascend")},
      {"KindZero", [](XLA_FFI_Attrs& a, int i) { SetNumber(a.types[i], 0); }, Says("kind is 0")},
      {"KindUnknown", [](XLA_FFI_Attrs& a, int i) { SetNumber(a.types[i], 5); }, Says("kind is 5")},
      {"KindNegative", [](XLA_FFI_Attrs& a, int i) { SetNumber(a.types[i], -7); }, Says("kind is -7")},
      {"ValueNull", [](XLA_FFI_Attrs& a, int i) { a.attrs[i] = nullptr; }, Says("the value is null")},
      {"ValueMisaligned", [](XLA_FFI_Attrs& a, int i) { a.attrs[i] = Misaligned(static_cast<char*>(a.attrs[i])); },
       Says("null or misaligned")},
  };
}

// What is behind them: scalars and texts.
std::vector<Spoiled> Values() {
  return {
      {"ContentsNull",
       [](XLA_FFI_Attrs& a, int i) {
         if (IsScalar(a, i)) {
           ScalarAt(a, i).value = nullptr;
         } else {
           *static_cast<XLA_FFI_ByteSpan*>(a.attrs[i]) = {nullptr, 6};
         }
       },
       Says(" null")},
      {"ContentsOutOfRange",  // a bool of 2, an integer at an odd address, a text of half the address space
       [](XLA_FFI_Attrs& a, int i) {
         static const unsigned char kTwo = 2;
         if (!IsScalar(a, i)) {
           static_cast<XLA_FFI_ByteSpan*>(a.attrs[i])->len = kHugeLength;
         } else if (ScalarAt(a, i).dtype == XLA_FFI_DataType_PRED) {
           ScalarAt(a, i).value = const_cast<unsigned char*>(&kTwo);
         } else {
           ScalarAt(a, i).value = Misaligned(ScalarAt(a, i).value);
         }
       },
       [](const std::string& attribute) {
         const bool is_bool = attribute.find("_is_trans") != std::string::npos;
         const bool is_int = attribute == "threads" || attribute.find("_boundary") != std::string::npos;
         return std::vector<std::string>{"attribute " + attribute, is_bool  ? "the bool has the value 2"
                                                                   : is_int ? "misaligned"
                                                                            : "longer than 1024"};
       }},
      {"ScalarTypeUnknown",  // of a scalar; a text has none
       [](XLA_FFI_Attrs& a, int i) {
         static XLA_FFI_Scalar scalar;
         SetNumber(scalar.dtype, 99);
         scalar.value = nullptr;
         a.types[i] = XLA_FFI_AttrType_SCALAR;
         a.attrs[i] = &scalar;
       },
       Says("element type is 99, which is none of XLA's")},
  };
}

std::vector<Spoiled> AllSpoiled() {
  std::vector<Spoiled> all = Entries();
  for (Spoiled& spoiled : Values()) all.push_back(spoiled);
  return all;
}

class AttributesTest : public testing::TestWithParam<Spoiled> {};

TEST_P(AttributesTest, EveryHandlerRefusesItForEveryAttribute) {
  const Spoiled& spoiled = GetParam();
  ForEveryAttribute([&](const Target& target, const Handler& handler, const std::string& name, int index) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    call->TheCall().attributes = AllGiven(target, call->TheCall());
    ASSERT_EQ(call->TheCall().attributes.size(), AttributeNames(target).size());
    host::ThreadPool pool(2);
    host::CallFrame frame(call->TheCall(), handler.stage, &pool);
    spoiled.spoil(frame.get()->attrs, index);
    EXPECT_TRUE(call->IsRefused(host::Invoke(handler.function, frame), spoiled.texts(name)));
  });
  EXPECT_EQ(host::LiveErrors(), 0);
}

INSTANTIATE_TEST_SUITE_P(Attributes, AttributesTest, testing::ValuesIn(AllSpoiled()),
                         [](const testing::TestParamInfo<Spoiled>& info) { return info.param.name; });

// The value of every type that a host can send, for every attribute: only its own type is taken.
TEST(AttributeTypesTest, EveryOtherTypeIsRefused) {
  const std::string kNeither = "neither bool, int64 nor string";
  const std::pair<host::Attribute, std::string> kOfEachType[] = {{{true}, "bool"},
                                                                 {{int32_t{1}}, "int32"},
                                                                 {{int64_t{1}}, "int64"},
                                                                 {{1.0f}, "float32"},
                                                                 {{1.0}, "float64"},
                                                                 {{std::string("AUTO")}, "string"},
                                                                 {{std::vector<int64_t>{1, 2}}, kNeither},
                                                                 {{host::Attributes{{"x", true}}}, kNeither}};
  ForEveryAttribute([&](const Target& target, const Handler& handler, const std::string& name, int) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Attributes good = AllGiven(target, call->TheCall());
    const auto* own = std::find_if(std::begin(kOfEachType), std::end(kOfEachType),
                                   [&](const auto& each) { return each.first.index() == good.at(name).index(); });
    for (const auto& [value, type] : kOfEachType) {
      if (value.index() == own->first.index()) continue;
      call->TheCall().attributes = good;
      call->TheCall().attributes[name] = value;
      host::CallFrame frame(call->TheCall(), handler.stage, nullptr);
      const host::Error error = host::Invoke(handler.function, frame);
      EXPECT_TRUE(
          call->IsRefused(error, {absl::StrCat("attribute ", name, ": expected ", own->second, ", got ", type)}));
    }
  });
}

// An absent attribute has the schema's default, which is what this call gives, but for lists and an activation.
TEST(AttributeNamesTest, AnyMayBeMissingAndNoneAdded) {
  host::ThreadPool pool(2);
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Attributes good = AllGiven(target, call->TheCall());
    for (const std::string& name : AttributeNames(target)) {
      SCOPED_TRACE(absl::StrCat(target.name(), " ", name));
      call->TheCall().attributes = good;
      call->TheCall().attributes.erase(name);
      const host::Error error = call->Execute(&pool);
      if (name == "operands" || name == "ragged" || (name == "results" && target.description.results.empty())) {
        const std::string text = name == "ragged" ? "not named by the attribute ragged" : "names 0 optional";
        EXPECT_TRUE(call->IsRefused(error, {text}));
      } else if (name == "activation" && &target.description == &kGroupedGemmCall) {
        EXPECT_TRUE(call->IsRefused(error, {"gate is given without an activation"}));
      } else {
        EXPECT_EQ(error.message, "");
        EXPECT_TRUE(call->AnswerIsRight());
      }
      for (const std::string& added : {name + "_", name.substr(1), std::string(1, name[0]), std::string()}) {
        call->TheCall().attributes = good;
        call->TheCall().attributes[added] = good.at(name);
        EXPECT_TRUE(
            call->IsRefused(call->Execute(&pool), {absl::StrCat("unknown attribute \"", added, "\"; allowed")}));
      }
    }
  }
}

TEST(HostileHostTest, WalksAllCustomCalls) {
  std::vector<absl::string_view> walked, all;
  for (const Target& target : AllTargets()) walked.push_back(target.description.name);
  for (const CustomCall& call : CustomCalls()) all.push_back(call.name);
  EXPECT_EQ(walked, all);
}

}  // namespace
}  // namespace raggemm::test
