// The tables that the rest of the code walks, as JSON for Python and tools.
#ifndef RAGGEMM_FFI_TABLES_H_
#define RAGGEMM_FFI_TABLES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"

namespace raggemm {

google::protobuf::Value Text(absl::string_view text);
google::protobuf::Value Number(double number);

using Fields = google::protobuf::Map<std::string, google::protobuf::Value>;
// Appends an object to a list.
Fields& AddStruct(google::protobuf::Value& list);

// Sets formats, operands, arithmetics, activations and calls, columns as their headers have them.
void AddTables(Fields& fields);

// The object as JSON, or what is wrong with it.
std::string JsonOf(const google::protobuf::Struct& object);

}  // namespace raggemm

#endif  // RAGGEMM_FFI_TABLES_H_
