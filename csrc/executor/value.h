// What a slot holds while a plan runs.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace kiln {

using TensorPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor (owned or borrowed from the caller), a pointer into the arena, or a number.
class Value {
 public:
  enum class Tag : uint8_t { kNone, kTensor, kRaw, kInt, kFloat, kBool };

  Value() = default;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  Value(Value&& other) noexcept : tag_(other.tag_), owned_(other.owned_), word_(other.word_) {
    other.owned_ = false;
    other.tag_ = Tag::kNone;
  }
  Value& operator=(Value&& other) noexcept {
    if (this != &other) {
      clear();
      new (this) Value(std::move(other));
    }
    return *this;
  }
  ~Value() { clear(); }

  void clear() {
    if (owned_) c10::raw::intrusive_ptr::decref(word_.tensor);
    owned_ = false;
    tag_ = Tag::kNone;
  }
  // Takes the reference; an undefined tensor is None.
  void set_tensor(TensorPtr tensor) {
    clear();
    if (!tensor.defined()) return;
    word_.tensor = tensor.release();
    owned_ = true;
    tag_ = Tag::kTensor;
  }
  // The caller keeps the tensor alive.
  void borrow(c10::TensorImpl* tensor) {
    clear();
    word_.tensor = tensor;
    tag_ = Tag::kTensor;
  }
  void set_raw(void* pointer) {
    clear();
    word_.pointer = pointer;
    tag_ = Tag::kRaw;
  }
  void set_int(int64_t value) { set_word(Tag::kInt).integer = value; }
  void set_bool(bool value) { set_word(Tag::kBool).integer = value; }
  void set_float(double value) { set_word(Tag::kFloat).real = value; }

  // What this value owns moves; what it borrowed, and numbers, are copied.
  Value hand_over() {
    if (owned_) return std::move(*this);
    Value copy;
    copy.tag_ = tag_;
    copy.word_ = word_;
    return copy;
  }
  // With a new reference to a tensor.
  Value copy() const {
    Value copy;
    if (is_tensor()) {
      copy.set_tensor(share());
    } else {
      copy.tag_ = tag_;
      copy.word_ = word_;
    }
    return copy;
  }

  Tag tag() const { return tag_; }
  bool is_tensor() const { return tag_ == Tag::kTensor; }
  c10::TensorImpl* tensor() const { return word_.tensor; }
  void* raw() const { return word_.pointer; }
  int64_t integer() const { return word_.integer; }
  double real() const { return word_.real; }

  // Does nobody else hold the tensor or its memory?
  bool is_only_owner() const {
    return owned_ && c10::raw::intrusive_ptr::use_count(word_.tensor) == 1 &&
           word_.tensor->storage().use_count() == 1;
  }

  // The tensor as C++ code wants it, without counting a reference: a tensor handle is one pointer.
  template <typename Handle>
  const Handle& as() const {
    static_assert(sizeof(Handle) == sizeof(c10::TensorImpl*));
    return reinterpret_cast<const Handle&>(word_.tensor);
  }
  // A new reference; undefined unless this is a tensor.
  TensorPtr share() const {
    return is_tensor() ? TensorPtr::reclaim_copy(word_.tensor) : TensorPtr();
  }
  // The reference that this value owns, or a new one.
  TensorPtr take() {
    if (!is_tensor()) return TensorPtr();
    TensorPtr taken =
        owned_ ? TensorPtr::reclaim(word_.tensor) : TensorPtr::reclaim_copy(word_.tensor);
    owned_ = false;
    tag_ = Tag::kNone;
    return taken;
  }

 private:
  union Word {
    c10::TensorImpl* tensor;
    void* pointer;
    int64_t integer;
    double real;
  };

  Word& set_word(Tag tag) {
    clear();
    tag_ = tag;
    return word_;
  }

  Tag tag_ = Tag::kNone;
  bool owned_ = false;
  Word word_{};
};

}  // namespace kiln
