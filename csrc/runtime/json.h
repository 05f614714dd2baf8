// JSON as packages use it: without fractions, which are texts there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kiln {

class Json {
 public:
  using List = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;

  // Throws PackageError. What it accepts of UTF-8, Python's json reads as the same value.
  static Json parse(std::string_view text);

  // The value if it is of this kind: std::monostate (null), bool, int64_t, std::string; else null.
  template <typename Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&value_);
  }

  // Each throws PackageError for a value of another kind.
  const std::string& text() const { return get<std::string>("a text"); }
  int64_t integer() const { return get<int64_t>("an integer"); }
  const List& list() const { return get<List>("a list"); }
  const Object& object() const { return get<Object>("an object"); }
  const Json& at(std::string_view name) const;
  bool has(std::string_view name) const { return object().count(name) != 0; }

 private:
  friend class JsonReader;
  struct Wide {};  // an integer of more than 64 bits

  template <typename Kind>
  const Kind& get(const char* kind) const {
    if (const Kind* found = as<Kind>()) return *found;
    refuse(kind);
  }
  [[noreturn]] static void refuse(const char* kind);

  std::variant<std::monostate, bool, int64_t, Wide, std::string, List, Object> value_;
};

}  // namespace kiln
