// JSON as the manifests of packages use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kiln {

class Json {
 public:
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  // Throws PackageError.
  static Json parse(std::string_view text);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_text() const { return std::holds_alternative<std::string>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }

  // Each throws PackageError for a value of another kind.
  const std::string& text() const;
  int64_t integer() const;
  bool flag() const;
  const List& list() const;
  const Object& object() const;
  const Json& at(std::string_view name) const;
  bool has(std::string_view name) const;

 private:
  friend class JsonReader;
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> value_;
};

}  // namespace kiln
