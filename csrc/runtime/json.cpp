#include "runtime/json.h"

#include <charconv>
#include <cstring>

#include "runtime/errors.h"

namespace kiln {

namespace {

constexpr int kDeepest = 256;

[[noreturn]] void malformed() { damaged("its JSON is malformed, or cut short"); }

bool is_one_of(char letter, const char* letters) { return letter && std::strchr(letters, letter); }

void append_utf8(std::string& to, uint32_t point) {
  int rest = point < 0x80      ? 0
             : point < 0x800   ? 1
             : point < 0x10000 ? 2
                               : 3;  // bytes behind the first
  constexpr uint32_t kFirst[] = {0, 0xC0, 0xE0, 0xF0};
  to.push_back(static_cast<char>(kFirst[rest] | point >> 6 * rest));
  while (rest-- > 0) to.push_back(static_cast<char>(0x80 | (point >> 6 * rest & 0x3F)));
}

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  Json document() {
    Json made = value(0);
    if (peek() || at_ != end_) malformed();
    return made;
  }

 private:
  // The next character behind white space; 0 at the end.
  char peek() {
    while (at_ != end_ && is_one_of(*at_, " \t\r\n")) at_++;
    return at_ == end_ ? '\0' : *at_;
  }
  // The next character, whatever it is.
  char next() {
    if (at_ == end_) malformed();
    return *at_++;
  }
  void expect(char wanted) {
    if (peek() != wanted) malformed();
    at_++;
  }
  bool take(std::string_view word) {
    bool found = std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word);
    if (found) at_ += word.size();
    return found;
  }

  Json value(int depth) {
    if (depth > kDeepest) damaged("its JSON is nested too deeply");
    Json made;
    char first = peek();
    if (first == '{') {
      made.value_ = object(depth);
    } else if (first == '[') {
      made.value_ = list(depth);
    } else if (first == '"') {
      made.value_ = text();
    } else if (take("true")) {
      made.value_ = true;
    } else if (take("false")) {
      made.value_ = false;
    } else if (!take("null")) {
      number(made);
    }
    return made;
  }

  Json::Object object(int depth) {
    Json::Object made;
    for (expect('{'); peek() != '}';) {
      if (!made.empty()) expect(',');
      if (peek() != '"') malformed();
      std::string name = text();
      expect(':');
      if (!made.try_emplace(std::move(name), value(depth + 1)).second) malformed();
    }
    at_++;
    return made;
  }

  Json::List list(int depth) {
    Json::List made;
    for (expect('['); peek() != ']';) {
      if (!made.empty()) expect(',');
      made.push_back(value(depth + 1));
    }
    at_++;
    return made;
  }

  uint32_t hex() {
    uint32_t made = 0;
    for (int n = 0; n < 4; n++) {
      char letter = next();
      uint32_t digit = 0;
      if (std::from_chars(&letter, &letter + 1, digit, 16).ec != std::errc()) malformed();
      made = made << 4 | digit;
    }
    return made;
  }

  // Behind \u; two halves make a character beyond the first 65,536.
  uint32_t code_point() {
    uint32_t point = hex();
    if (point < 0xD800 || point > 0xDFFF) return point;
    uint32_t low = take("\\u") ? hex() : 0;
    if (point > 0xDBFF || low < 0xDC00 || low > 0xDFFF) malformed();
    return 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }

  std::string text() {
    constexpr char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
    std::string made;
    at_++;
    for (char letter = next(); letter != '"'; letter = next()) {
      if (static_cast<unsigned char>(letter) < 0x20) malformed();
      if (letter != '\\') {
        made.push_back(letter);
      } else if (letter = next(); letter == 'u') {
        append_utf8(made, code_point());
      } else if (is_one_of(letter, kFrom)) {
        made.push_back(kTo[std::strchr(kFrom, letter) - kFrom]);
      } else {
        malformed();
      }
    }
    return made;
  }

  void number(Json& made) {
    const char* start = at_;
    take("-");
    const char* digits = at_;
    while (at_ != end_ && is_one_of(*at_, "0123456789")) at_++;
    if (at_ == digits || (*digits == '0' && at_ - digits > 1)) malformed();
    int64_t whole = 0;
    if (std::from_chars(start, at_, whole).ec == std::errc()) {
      made.value_ = whole;
    } else {
      made.value_ = Json::Wide();
    }
  }

  const char *at_, *end_;
};

Json Json::parse(std::string_view text) { return JsonReader(text).document(); }

void Json::refuse(const char* kind) { damaged(std::string("a field is not ") + kind); }

const Json& Json::at(std::string_view name) const {
  auto found = object().find(name);
  if (found == object().end()) damaged("it lacks the field " + std::string(name));
  return found->second;
}

}  // namespace kiln
