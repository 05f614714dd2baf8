// The only file but recurrent.cpp that includes the dispatcher; all others call ATen through
// aten.h.
#include "executor/aten.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <numeric>

#include "executor/check.h"
#include "executor/tensors.h"

namespace kiln {

namespace {

using c10::IValue;
using c10::TypeKind;

at::Tensor wrap(const c10::TensorImpl& tensor) {
  return at::Tensor(TensorPtr::reclaim_copy(const_cast<c10::TensorImpl*>(&tensor)));
}

[[noreturn]] void bad_call(const AtenStep& step, const std::string& problem) {
  throw PlanError(ErrorKind::kOperator, 0, step.target + ": " + problem);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

// How an argument gets onto the stack.
enum class Source : uint8_t { kConstant, kSlot, kInt, kFloat, kBool, kInts, kTensors, kOptionals };

struct Feed {
  Source source = Source::kConstant;
  bool as_tensor = false;    // a number where the schema has a tensor
  bool tensor_slot = false;  // a slot, number or not, where the schema has a tensor
  int32_t at = 0;
  int32_t count = 0;
  std::vector<Slot> slots;  // of a list of tensors; kNone where there is none
  IValue constant;
};

c10::TypePtr inner_of(const c10::TypePtr& type) {
  return type->kind() == TypeKind::OptionalType
             ? type->expectRef<c10::OptionalType>().getElementType()
             : type;
}

bool is_tensor_like(const c10::TypePtr& type) { return type->kind() == TypeKind::TensorType; }

// The constant `value` as the schema's type wants it.
IValue constant_of(const AtenStep& step, const Argument& value, const c10::TypePtr& declared,
                   std::optional<int32_t> length) {
  c10::TypePtr type = inner_of(declared);
  TypeKind kind = type->kind();
  if (kind == TypeKind::ListType && value.kind != ArgumentKind::kNone) {
    const c10::TypePtr& element = type->expectRef<c10::ListType>().getElementType();
    c10::List<IValue> items(c10::AnyType::get());
    bool spread = value.kind != ArgumentKind::kList;
    size_t count = spread ? static_cast<size_t>(length.value_or(1)) : value.items.size();
    c10::impl::GenericList made(element);
    for (size_t n = 0; n < count; n++) {
      made.push_back(constant_of(step, spread ? value : value.items[n], element, std::nullopt));
    }
    return IValue(made);
  }
  switch (value.kind) {
    case ArgumentKind::kNone:
      // For a `Tensor` of the schema None is an undefined tensor.
      return is_tensor_like(declared) ? IValue(at::Tensor()) : IValue();
    case ArgumentKind::kInt:
      if (kind == TypeKind::FloatType) return IValue(static_cast<double>(value.value));
      if (kind == TypeKind::BoolType) return IValue(value.value != 0);
      return IValue(value.value);
    case ArgumentKind::kFloat:
      return IValue(std::bit_cast<double>(value.value));
    case ArgumentKind::kBool:
      if (kind == TypeKind::IntType) return IValue(value.value);
      return IValue(value.value != 0);
    case ArgumentKind::kString:
      return IValue(value.text);
    case ArgumentKind::kDtype:
    case ArgumentKind::kMemoryFormat:
    case ArgumentKind::kLayout:
      return IValue(value.value);
    case ArgumentKind::kDevice:
      return IValue(c10::Device(static_cast<c10::DeviceType>(value.value),
                                static_cast<c10::DeviceIndex>(value.count)));
    default:
      bad_call(step, "an argument cannot be converted to " + declared->str());
  }
}

// The tensor that torch's argument parser makes of a Python number, with its rule of promotion.
IValue wrapped_number(const IValue& number) {
  c10::ScalarType dtype = number.isInt()    ? c10::ScalarType::Long
                          : number.isBool() ? c10::ScalarType::Bool
                                            : c10::ScalarType::Double;
  auto made = at::detail::empty_cpu({}, dtype, false, std::nullopt);
  if (number.isInt()) {
    *made.mutable_data_ptr<int64_t>() = number.toInt();
  } else if (number.isBool()) {
    *made.mutable_data_ptr<bool>() = number.toBool();
  } else {
    *made.mutable_data_ptr<double>() = number.toDouble();
  }
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return IValue(at::Tensor(made));
}

bool has_slots(const Argument& value) {
  for (const Argument& item : value.items) {
    if (item.kind == ArgumentKind::kSlot) return true;
  }
  return false;
}

Feed tensor_list(const AtenStep& step, const Argument& value, const c10::TypePtr& type) {
  const c10::TypePtr& element = type->expectRef<c10::ListType>().getElementType();
  bool optional = element->kind() == TypeKind::OptionalType;
  if (!is_tensor_like(inner_of(element))) bad_call(step, "a list of tensors is not expected");
  Feed feed;
  feed.source = optional ? Source::kOptionals : Source::kTensors;
  for (const Argument& item : value.items) {
    if (item.kind != ArgumentKind::kSlot && item.kind != ArgumentKind::kNone) {
      bad_call(step, "a list of tensors holds something else");
    }
    feed.slots.push_back(item.kind == ArgumentKind::kSlot ? static_cast<Slot>(item.value) : kNone);
  }
  return feed;
}

Feed feed_of(const AtenStep& step, const Argument& value, const c10::Argument& declared) {
  c10::TypePtr type = inner_of(declared.type());
  Feed feed;
  feed.at = static_cast<int32_t>(value.value);
  feed.tensor_slot = is_tensor_like(type);
  feed.as_tensor = is_tensor_like(type) && value.kind != ArgumentKind::kSlot &&
                   value.kind != ArgumentKind::kNone;
  switch (value.kind) {
    case ArgumentKind::kSlot:
      feed.source = Source::kSlot;
      return feed;
    case ArgumentKind::kIntRegister:
      feed.source = type->kind() == TypeKind::ListType ? Source::kInts : Source::kInt;
      feed.count = 1;
      return feed;
    case ArgumentKind::kFloatRegister:
      feed.source = Source::kFloat;
      return feed;
    case ArgumentKind::kBoolRegister:
      feed.source = Source::kBool;
      return feed;
    case ArgumentKind::kInts:
      feed.source = Source::kInts;
      feed.count = static_cast<int32_t>(value.count);
      return feed;
    case ArgumentKind::kList:
      if (has_slots(value) && type->kind() == TypeKind::ListType) {
        return tensor_list(step, value, type);
      }
      break;
    default:
      break;
  }
  feed.constant = constant_of(step, value, declared.type(), declared.N());
  return feed;
}

const Argument* given(const AtenStep& step, size_t place, const c10::Argument& declared) {
  if (place < step.args.size()) return &step.args[place];
  for (const auto& [name, value] : step.kwargs) {
    if (name == declared.name()) return &value;
  }
  return nullptr;
}

IValue number_of(const Value& value) {
  switch (value.tag()) {
    case Value::Tag::kTensor:
      return IValue(at::Tensor(value.share()));
    case Value::Tag::kInt:
      return IValue(value.integer());
    case Value::Tag::kBool:
      return IValue(value.integer() != 0);
    case Value::Tag::kFloat:
      return IValue(value.real());
    default:
      return IValue();
  }
}

IValue number_fed(const Feed& feed, const CallView& call) {
  switch (feed.source) {
    case Source::kInt:
      return IValue(call.ints[feed.at]);
    case Source::kBool:
      return IValue(call.ints[feed.at] != 0);
    case Source::kFloat:
      return IValue(call.floats[feed.at]);
    default:
      return feed.constant;
  }
}

template <typename Item>
IValue list_fed(const Feed& feed, const CallView& call) {
  c10::List<Item> items;
  items.reserve(feed.slots.size());
  for (Slot slot : feed.slots) {
    items.push_back(slot == kNone ? Item() : Item(at::Tensor(call.slots[slot].share())));
  }
  return IValue(std::move(items));
}

IValue fed(const Feed& feed, const CallView& call) {
  if (feed.as_tensor) return wrapped_number(number_fed(feed, call));
  switch (feed.source) {
    case Source::kSlot: {
      IValue value = number_of(call.slots[feed.at]);
      return feed.tensor_slot && value.isScalar() ? wrapped_number(value) : value;
    }
    case Source::kInts:
      return IValue(c10::IntArrayRef(call.ints + feed.at, static_cast<size_t>(feed.count)));
    case Source::kTensors:
      return list_fed<at::Tensor>(feed, call);
    case Source::kOptionals:
      return list_fed<std::optional<at::Tensor>>(feed, call);
    default:
      return number_fed(feed, call);
  }
}

// The result if it has the planned layout, else a copy in it. Also copied: a result that starts at
// an address which device kernels would wrongly take to be aligned, and one that is `fresh` by the
// operator's schema but shares its memory (aten::unsafe_split), since plans write to fresh results.
// What a collective fills is held by it until it ends.
enum class Memory : uint8_t { kAny, kFresh, kInFlight };

TensorPtr as_planned(at::Tensor result, const Layout& layout, Memory memory, const CallView& call) {
  const int64_t* ints = call.ints;
  c10::TensorImpl* made = result.unsafeGetTensorImpl();
  bool good =
      result.defined() && fits(*made, layout, ints) &&
      !(memory == Memory::kFresh && made->has_storage() && made->storage().use_count() > 1) &&
      (!call.program->aligned || is_aligned(made->data()));
  if (good) return result.unsafeReleaseIntrusivePtr();
  KILN_CHECK(result.defined(), "an ATen step returned no tensor where the plan has one");
  KILN_CHECK(made->sizes() == sizes_of(layout, ints), "an ATen step returned sizes ", made->sizes(),
             " where the plan has ", sizes_of(layout, ints));
  if (memory == Memory::kInFlight) wait_for(*made);
  TensorPtr planned = empty_strided(layout, ints);
  copy_into(*planned, *made);
  return planned;
}

void put(Value& slot, IValue result, int32_t layout, Memory memory, const CallView& call) {
  if (result.isTensor()) {
    at::Tensor tensor = std::move(result).toTensor();
    if (layout == kNone) return slot.set_tensor(tensor.unsafeReleaseIntrusivePtr());
    const Layout& planned = call.program->layouts[static_cast<size_t>(layout)];
    return slot.set_tensor(as_planned(std::move(tensor), planned, memory, call));
  }
  if (result.isInt()) return slot.set_int(result.toInt());
  if (result.isBool()) return slot.set_bool(result.toBool());
  if (result.isDouble()) return slot.set_float(result.toDouble());
  KILN_CHECK(result.isNone(),
             "an ATen step returned a value that a plan cannot hold: ", result.tagKind());
  slot.clear();
}

class BoxedCall final : public AtenCall {
 public:
  BoxedCall(c10::OperatorHandle handle, const AtenStep& step) : handle_(std::move(handle)) {
    const auto& arguments = handle_.schema().arguments();
    size_t used = step.args.size() + step.kwargs.size();
    if (used > arguments.size()) bad_call(step, "it is given too many arguments");
    for (size_t n = 0; n < arguments.size(); n++) {
      const Argument* value = given(step, n, arguments[n]);
      if (value) {
        feeds_.push_back(feed_of(step, *value, arguments[n]));
      } else if (arguments[n].default_value()) {
        Feed feed;
        feed.constant = *arguments[n].default_value();
        feeds_.push_back(std::move(feed));
      } else {
        bad_call(step, "argument " + arguments[n].name() + " is missing");
      }
    }
    outs_ = step.outs;
    layouts_ = step.layouts;
    for (const c10::Argument& result : handle_.schema().returns()) {
      if (result.alias_info() != nullptr) memory_ = Memory::kAny;
    }
    for (const char* library : {"_c10d_functional.", "kiln_c10d."}) {
      if (step.target.rfind(library, 0) == 0) memory_ = Memory::kInFlight;
    }
  }

  void run(const CallView& call) const override {
    torch::jit::Stack stack;
    stack.reserve(feeds_.size());
    for (const Feed& feed : feeds_) stack.push_back(fed(feed, call));
    handle_.callBoxed(stack);
    if (stack.size() == 1 && stack[0].isList()) return spread(stack[0].toListRef(), call);
    for (size_t n = 0; n < outs_.size() && n < stack.size(); n++) {
      if (outs_[n] == kNone) continue;
      put(call.slots[outs_[n]], std::move(stack[n]), layouts_[n], memory_, call);
    }
  }

 private:
  void spread(c10::ArrayRef<IValue> results, const CallView& call) const {
    KILN_CHECK(results.size() >= outs_.size(), "an ATen step returned ", results.size(),
               " tensors where the plan has ", outs_.size());
    for (size_t n = 0; n < outs_.size(); n++) {
      if (outs_[n] == kNone) continue;
      put(call.slots[outs_[n]], results[n], layouts_[n], memory_, call);
    }
  }

  c10::OperatorHandle handle_;
  std::vector<Feed> feeds_;
  std::vector<Slot> outs_;
  std::vector<int32_t> layouts_;
  Memory memory_ = Memory::kFresh;  // by its schema no result is an argument or a view of one
};

}  // namespace

std::shared_ptr<const AtenCall> resolve(const AtenStep& step) {
  size_t first = step.target.find('.');
  size_t last = step.target.rfind('.');
  if (first == std::string::npos || first == last) bad_call(step, "the name is not ns.op.overload");
  std::string name =
      step.target.substr(0, first) + "::" + step.target.substr(first + 1, last - first - 1);
  std::string overload = step.target.substr(last + 1);
  if (overload == "default") overload.clear();
  auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) bad_call(step, "no such operator is registered");
  return std::make_shared<BoxedCall>(*handle, step);
}

namespace {

const auto& empty_op() {
  static const auto op = operator_of<at::Tensor(
      c10::SymIntArrayRef, c10::SymIntArrayRef, std::optional<c10::ScalarType>,
      std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>)>(
      "aten::empty_strided", "");
  return op;
}

}  // namespace

TensorPtr empty_strided(const Layout& layout, const int64_t* ints) {
  if (layout.device_type == 0) return empty_cpu(layout, ints);
  c10::Device device(static_cast<c10::DeviceType>(layout.device_type), layout.device_index);
  at::Tensor made = empty_op().call(c10::fromIntArrayRefSlow(sizes_of(layout, ints)),
                                    c10::fromIntArrayRefSlow(strides_of(layout, ints)),
                                    layout.dtype, std::nullopt, device, std::nullopt);
  return made.unsafeReleaseIntrusivePtr();
}

void copy_into(const c10::TensorImpl& target, const c10::TensorImpl& source) {
  static const auto op =
      operator_of<at::Tensor&(at::Tensor&, const at::Tensor&, bool)>("aten::copy_", "");
  at::Tensor to = wrap(target);
  op.call(to, wrap(source), false);
}

// All that lies between the first and the last element is copied, so that elements which share
// memory still do.
TensorPtr copy_of_span(c10::Allocator& allocator, const c10::TensorImpl& source) {
  int64_t span = source.numel() ? 1 : 0;
  for (int64_t dim = 0; span && dim < source.dim(); dim++) {
    span += (source.size(dim) - 1) * source.stride(dim);
  }
  auto bytes = static_cast<size_t>(span) * source.itemsize();
  TensorPtr copy =
      empty_from(allocator, source.dtype(), bytes, source.sizes(), source.strides(), 0);
  copy_into(*view_of(*copy, source.dtype(), {span}, {1}, 0),
            *view_of(source, source.dtype(), {span}, {1}, source.storage_offset()));
  return copy;
}

namespace {

// The dimensions of a view, of the longest stride first.
std::vector<int64_t> by_stride(c10::IntArrayRef strides) {
  std::vector<int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return order;
}

// All elements of `base` in another shape or order, as `view` and `permute`, whose backward is a
// view, too; that of `as_strided` fills memory. None where it takes more than these.
std::optional<at::Tensor> reordered(const at::Tensor& base, c10::IntArrayRef sizes,
                                    c10::IntArrayRef strides, int64_t offset) {
  static const auto view =
      operator_of<at::Tensor(const at::Tensor&, c10::SymIntArrayRef)>("aten::view", "");
  static const auto permute =
      operator_of<at::Tensor(const at::Tensor&, c10::IntArrayRef)>("aten::permute", "");
  if (offset != base.storage_offset() || c10::multiply_integers(sizes) != base.numel()) return {};
  std::vector<int64_t> ours = by_stride(strides), theirs = by_stride(base.strides());
  std::vector<int64_t> shape, theirs_shape, places(ours.size()), dims(ours.size());
  for (size_t k = 0; k < ours.size(); k++) {
    shape.push_back(sizes[ours[k]]);
    places[ours[k]] = static_cast<int64_t>(k);
  }
  for (int64_t dim : theirs) theirs_shape.push_back(base.size(dim));
  at::Tensor found;
  if (shape == theirs_shape) {
    for (size_t k = 0; k < ours.size(); k++) dims[ours[k]] = theirs[k];
    found = permute.call(base, dims);
  } else if (base.is_contiguous()) {
    found = view.call(base, c10::fromIntArrayRefSlow(shape));
    if (!std::is_sorted(ours.begin(), ours.end())) found = permute.call(found, places);
  } else {
    return {};
  }
  if (found.strides() != strides) return {};
  return found;
}

at::Tensor strided(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   int64_t offset) {
  if (base.requires_grad() && c10::GradMode::is_enabled()) {
    if (auto found = reordered(base, sizes, strides, offset)) return *found;
  }
  static const auto op =
      operator_of<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef,
                             std::optional<c10::SymInt>)>("aten::as_strided", "");
  return op.call(base, c10::fromIntArrayRefSlow(sizes), c10::fromIntArrayRefSlow(strides),
                 c10::SymInt(offset));
}

using ViewOperator = at::Tensor(const at::Tensor&);

// Numbers in memory of real ones as complex ones, of which each has two.
at::Tensor complex_view(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                        int64_t offset) {
  static const auto op = operator_of<ViewOperator>("aten::view_as_complex", "");
  std::vector<int64_t> pairs = sizes.vec(), steps;
  for (int64_t stride : strides) steps.push_back(2 * stride);
  pairs.push_back(2);
  steps.push_back(1);
  return op.call(strided(base, pairs, steps, 2 * offset));
}

}  // namespace

TensorPtr view_of(const c10::TensorImpl& base, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                  c10::IntArrayRef strides, int64_t offset) {
  static const auto view_as_real = operator_of<ViewOperator>("aten::view_as_real", "");
  c10::ScalarType from = c10::typeMetaToScalarType(base.dtype());
  c10::ScalarType into = c10::typeMetaToScalarType(dtype);
  at::Tensor tensor = wrap(base), view;
  if (from == into) {
    view = strided(tensor, sizes, strides, offset);
  } else if (c10::isComplexType(from) && into == c10::toRealValueType(from)) {
    view = strided(view_as_real.call(tensor), sizes, strides, offset);
  } else if (c10::isComplexType(into) && from == c10::toRealValueType(into)) {
    view = complex_view(tensor, sizes, strides, offset);
  } else {  // no gradient goes through other views, and eager's are none for autograd either
    TensorPtr made = tensor_over(base.storage(), plain_keys(*base.storage().unsafeGetStorageImpl()),
                                 dtype, sizes, strides, offset);
    if (!tensor.is_inference()) made->set_version_counter(base.version_counter());
    return made;
  }
  return view.unsafeReleaseIntrusivePtr();
}

namespace {

c10::Scalar element(const c10::TensorImpl& tensor) {
  static const auto op =
      operator_of<c10::Scalar(const at::Tensor&)>("aten::_local_scalar_dense", "");
  return op.call(wrap(tensor));
}

}  // namespace

int64_t read_int(const c10::TensorImpl& tensor) { return element(tensor).toLong(); }
double read_float(const c10::TensorImpl& tensor) { return element(tensor).toDouble(); }
bool read_bool(const c10::TensorImpl& tensor) { return element(tensor).toBool(); }

void wait_for(const c10::TensorImpl& tensor) {
  static const auto wait =
      operator_of<at::Tensor(const at::Tensor&)>("_c10d_functional::wait_tensor", "");
  wait.call(wrap(tensor));
}

std::pair<int64_t, int64_t> draw_seed(int32_t device_index, int64_t increment) {
  c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_index));
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  uint64_t offset = generator.get_offset();
  generator.set_offset(offset + static_cast<uint64_t>((increment + 3) / 4 * 4));
  return {static_cast<int64_t>(generator.current_seed()), static_cast<int64_t>(offset)};
}

void draw_seed_into(TensorPtr pair) {
  static const auto zero = operator_of<at::Tensor&(at::Tensor&)>("aten::zero_", "");
  static const auto random = c10::Dispatcher::singleton().findSchemaOrThrow("aten::random_", "");
  TensorPtr seed = tensor_over(pair->storage(), pair->key_set(), pair->dtype(), {1}, {1}, 0);
  at::Tensor both(std::move(pair)), first(std::move(seed));
  zero.call(both);
  torch::jit::Stack arguments{IValue(std::move(first)), IValue()};  // no generator: the default one
  random.callBoxed(arguments);
}

c10::Allocator* allocator_of(c10::Device device) {
  at::Tensor made = empty_op().call(c10::SymIntArrayRef(), c10::SymIntArrayRef(),
                                    c10::ScalarType::Byte, std::nullopt, device, std::nullopt);
  return made.storage().allocator();
}

void parallel_range(int64_t units, int64_t grain, RangeFunction function, const void* context) {
  at::parallel_for(0, units, grain,
                   [&](int64_t begin, int64_t end) { function(context, begin, end); });
}

}  // namespace kiln
