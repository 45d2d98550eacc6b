#include "proto/read_cases.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "proto/utf8.h"

namespace raggemm {
namespace {

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The path, as in cases[3].config.ragged, of the first text in the message that is not UTF-8; empty if all are.
std::string TextThatIsNotUtf8(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      if (!IsUtf8(reflection.GetString(message, field))) return std::string(field->name());
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool repeated = field->is_repeated();
    for (int i = 0; i < (repeated ? reflection.FieldSize(message, field) : 1); ++i) {
      const std::string below = TextThatIsNotUtf8(repeated ? reflection.GetRepeatedMessage(message, field, i)
                                                           : reflection.GetMessage(message, field));
      if (!below.empty()) return absl::StrCat(field->name(), repeated ? absl::StrCat("[", i, "]") : "", ".", below);
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<proto::GroupedGemmCases> ReadCases(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  google::protobuf::io::IstreamInputStream input(&file);
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  proto::GroupedGemmCases cases;
  const bool parsed = parser.Parse(&input, &cases);
  if (file.bad()) return absl::NotFoundError(absl::StrCat("cannot read ", path));  // a directory, which can be opened
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat(path, ":", error.text()));
  if (const std::string text = TextThatIsNotUtf8(cases); !text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", text, " is not UTF-8"));
  }
  return cases;
}

}  // namespace raggemm
