#include "runtime/json.h"

#include <cstdlib>
#include <cstring>

#include "kiln/runtime.h"

namespace kiln {

namespace {

constexpr int kDeepest = 256;

[[noreturn]] void refuse(const char* problem) {
  throw PackageError(std::string("KILN6103  the package cannot be read: ") + problem);
}

void append_utf8(std::string& to, uint32_t point) {
  auto add = [&](uint32_t byte) { to.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xC0 | point >> 6), add(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    add(0xE0 | point >> 12), add(0x80 | (point >> 6 & 0x3F)), add(0x80 | (point & 0x3F));
  } else {
    add(0xF0 | point >> 18), add(0x80 | (point >> 12 & 0x3F));
    add(0x80 | (point >> 6 & 0x3F)), add(0x80 | (point & 0x3F));
  }
}

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  Json document() {
    Json made = value(0);
    skip();
    if (at_ != end_) refuse("its JSON goes on behind its end");
    return made;
  }

 private:
  void skip() {
    while (at_ != end_ && std::strchr(" \t\r\n", *at_) && *at_) at_++;
  }
  char peek() {
    skip();
    return at_ == end_ ? '\0' : *at_;
  }
  void expect(char wanted) {
    if (peek() != wanted) refuse("its JSON is malformed");
    at_++;
  }
  bool take(std::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size()) return false;
    if (std::memcmp(at_, word.data(), word.size()) != 0) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    if (depth > kDeepest) refuse("its JSON is nested too deeply");
    Json made;
    switch (peek()) {
      case '{':
        made.value_ = object(depth);
        break;
      case '[':
        made.value_ = list(depth);
        break;
      case '"':
        made.value_ = text();
        break;
      default:
        if (take("true")) {
          made.value_ = true;
        } else if (take("false")) {
          made.value_ = false;
        } else if (!take("null")) {
          number(made);
        }
    }
    return made;
  }

  Json::Object object(int depth) {
    Json::Object made;
    expect('{');
    while (peek() != '}') {
      if (!made.empty()) expect(',');
      if (peek() != '"') refuse("its JSON is malformed");
      std::string name = text();
      expect(':');
      made.emplace_back(std::move(name), value(depth + 1));
    }
    at_++;
    return made;
  }

  Json::List list(int depth) {
    Json::List made;
    expect('[');
    while (peek() != ']') {
      if (!made.empty()) expect(',');
      made.push_back(value(depth + 1));
    }
    at_++;
    return made;
  }

  uint32_t hex() {
    if (end_ - at_ < 4) refuse("its JSON is cut short");
    uint32_t made = 0;
    for (int n = 0; n < 4; n++) {
      const char* digits = "0123456789abcdef";
      char letter = *at_++;
      if (letter >= 'A' && letter <= 'F') letter += 'a' - 'A';
      const char* found = letter ? std::strchr(digits, letter) : nullptr;
      if (!found) refuse("its JSON is malformed");
      made = made << 4 | static_cast<uint32_t>(found - digits);
    }
    return made;
  }

  std::string text() {
    std::string made;
    at_++;
    while (at_ != end_ && *at_ != '"') {
      if (*at_ != '\\') {
        made.push_back(*at_++);
        continue;
      }
      if (++at_ == end_) break;
      char letter = *at_++;
      const char *from = "\"\\/bfnrt", *to = "\"\\/\b\f\n\r\t";
      if (letter == 'u') {
        uint32_t point = hex();
        if (point >= 0xD800 && point < 0xDC00 && take("\\u")) {
          point = 0x10000 + ((point - 0xD800) << 10) + ((hex() - 0xDC00) & 0x3FF);
        }
        append_utf8(made, point);
      } else if (const char* found = letter ? std::strchr(from, letter) : nullptr) {
        made.push_back(to[found - from]);
      } else {
        refuse("its JSON is malformed");
      }
    }
    if (at_ == end_) refuse("its JSON is cut short");
    at_++;
    return made;
  }

  void number(Json& made) {
    const char* start = at_;
    while (at_ != end_ && *at_ && std::strchr("+-.eE0123456789", *at_)) at_++;
    std::string digits(start, at_);
    if (digits.empty()) refuse("its JSON is malformed");
    char* rest = nullptr;
    if (digits.find_first_of(".eE") == std::string::npos) {
      made.value_ = static_cast<int64_t>(std::strtoll(digits.c_str(), &rest, 10));
    } else {
      made.value_ = std::strtod(digits.c_str(), &rest);
    }
    if (*rest) refuse("its JSON is malformed");
  }

  const char *at_, *end_;
};

Json Json::parse(std::string_view text) { return JsonReader(text).document(); }

const std::string& Json::text() const {
  if (!is_text()) refuse("a field is not a text");
  return std::get<std::string>(value_);
}

int64_t Json::integer() const {
  if (!is_integer()) refuse("a field is not an integer");
  return std::get<int64_t>(value_);
}

bool Json::flag() const {
  if (!is_bool()) refuse("a field is not true or false");
  return std::get<bool>(value_);
}

const Json::List& Json::list() const {
  if (!std::holds_alternative<List>(value_)) refuse("a field is not a list");
  return std::get<List>(value_);
}

const Json::Object& Json::object() const {
  if (!std::holds_alternative<Object>(value_)) refuse("a field is not an object");
  return std::get<Object>(value_);
}

bool Json::has(std::string_view name) const {
  for (const auto& [key, value] : object()) {
    if (key == name) return true;
  }
  return false;
}

const Json& Json::at(std::string_view name) const {
  for (const auto& [key, value] : object()) {
    if (key == name) return value;
  }
  refuse("a field is missing");
}

}  // namespace kiln
