// Reads files that nobody vouches for, under the sanitizers:
//
//   read_mutated json FILE          a line for each document, which end with a zero byte: its
//   value, or "refused" read_mutated packages FILE...   a line for each package: "ran", or the
//   error of loading or calling it
#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "kiln/runtime.h"
#include "runtime/json.h"
#include "support/hex.h"

namespace {

// As `canonical` of test_cpp_runtime.py writes it.
std::string canonical(const kiln::Json& value) {
  if (value.as<std::monostate>()) return "null";
  if (const bool* flag = value.as<bool>()) return *flag ? "true" : "false";
  if (const int64_t* number = value.as<int64_t>()) return std::to_string(*number);
  if (const std::string* text = value.as<std::string>()) return "'" + kiln::hex(*text) + "'";
  std::string made;
  if (const auto* list = value.as<kiln::Json::List>()) {
    for (const kiln::Json& item : *list) made += canonical(item) + ",";
    return "[" + made + "]";
  }
  const auto* object = value.as<kiln::Json::Object>();
  if (!object) return "wide";
  for (const auto& [name, item] : *object) made += kiln::hex(name) + ":" + canonical(item) + ",";
  return "{" + made + "}";
}

std::string read_json(const std::string& text) {
  try {
    return canonical(kiln::Json::parse(text));
  } catch (const kiln::PackageError&) {
    return "refused";
  }
}

std::string run_package(const char* path) {
  try {
    kiln::LoadOptions options;
    options.trust = true;
    kiln::Package package(path, options);
    package.run(std::vector<at::Tensor>(package.arguments().size(), at::ones({8, 16})));
    return "ran";
  } catch (const std::exception& error) {
    std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
}

}  // namespace

int main(int count, char** words) {
  if (count > 2 && std::string(words[1]) == "json") {
    std::ifstream file(words[2], std::ios::binary);
    for (std::string text; std::getline(file, text, '\0');) std::puts(read_json(text).c_str());
  }
  for (int n = 2; n < count && std::string(words[1]) == "packages"; n++) {
    std::puts(run_package(words[n]).c_str());
  }
}
