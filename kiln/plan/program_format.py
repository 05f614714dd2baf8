"""The format of native programs, which Python writes and C++ reads: enums and the fields of each step.

    COPY := NativeStep("Copy", target=SLOT, source=SLOT)     struct CopyStep { Slot target, source; };
    Record(COPY, target=0, source=7)                         two words, behind the number of the kind

`tools/plan_header.py` prints the enums and the records of all steps as C++: csrc/executor/program_format.h.
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

from kiln.support.records import dataclass

MAGIC = 0x4E4C494B  # "KILN"
NONE = -1


class ArgumentKind(IntEnum):
    """An argument of an ATen step: what the words behind the kind are."""

    NONE, SLOT, INT, INT_REGISTER, FLOAT, FLOAT_REGISTER, BOOL, BOOL_REGISTER, STRING = range(9)
    DTYPE, DEVICE, LIST, INTS, MEMORY_FORMAT, LAYOUT = range(9, 15)


class OutputKind(IntEnum):
    """An output of the plan; the last three name a slot, an input or an earlier output, or a view of it."""

    NONE, INT, FLOAT, BOOL, SLOT, INPUT, OUTPUT = range(7)


class OperationKind(IntEnum):
    """Arithmetic on registers: target, a, b."""

    ADD, MUL, FLOOR_DIV, MOD, MIN, MAX, MOV, INT_TO_FLOAT, FLOAT_MOV = range(9)


class BindingKind(IntEnum):
    """What of an input tensor a symbol is."""

    SIZE, STRIDE, OFFSET = range(3)


class ScalarKind(IntEnum):
    """Type of an input or of a number read on the host."""

    TENSOR, INT, FLOAT, BOOL = range(-1, 3)


class RelationKind(IntEnum):
    """How a difference must compare with 0."""

    EQ, NE, LE = range(3)


ENUMS: tuple[type[IntEnum], ...] = (
    ArgumentKind, OutputKind, OperationKind, BindingKind, ScalarKind, RelationKind
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity: each word is looked up by it
class FieldKind:
    """A field of a native step: what it is made from (`FIELD_WORDS` in encode.py) and its C++ type.

    Fields that are not `encoded` are filled when the program is connected to operators and kernels.
    """

    name: str
    cpp: str
    encoded: bool = True


class NativeStep:
    """A kind of step of the native executor: named fields, in the order of their words."""

    def __init__(self, name: str, /, **fields: FieldKind) -> None:
        self.name, self.fields = name, tuple(fields.items())
        self.encoded = tuple((field, kind) for field, kind in self.fields if kind.encoded)


class Record:
    """One native step: a value for each encoded field of `kind`."""

    def __init__(self, kind: NativeStep, /, **values: object) -> None:
        self.kind, self.values = kind, values


# fmt: off
#                     made from                       C++ type
SLOT      = FieldKind("slot or None",                 "Slot")
SLOTS     = FieldKind("slots, None among them",       "std::vector<Slot>")
INDEX     = FieldKind("number",                       "int32_t")
INDICES   = FieldKind("numbers",                      "std::vector<int32_t>")
LAYOUT    = FieldKind("TensorSpec",                   "LayoutIndex")
LAYOUTS   = FieldKind("TensorSpecs, None among them", "std::vector<LayoutIndex>")
KERNEL    = FieldKind("symbol of a kernel",           "int32_t")
REGISTER  = FieldKind("number of a register",         "Register")
SIZE      = FieldKind("size expression",              "Register")
SIZES     = FieldKind("size expressions",             "Register")
FLOATS    = FieldKind("floats, Refs and sizes",       "Register")
DEVICE    = FieldKind("device or None",               "DeviceIndex")
PLACE     = FieldKind("device",                       "DevicePlace")
TEXT      = FieldKind("str",                          "std::string")
RELATION  = FieldKind("RelationKind",                 "RelationKind")
SCALAR    = FieldKind("ScalarKind",                   "ScalarKind")
ARGUMENTS = FieldKind("arguments",                    "std::vector<Argument>")
KEYWORDS  = FieldKind("(name, argument) pairs",       "std::vector<std::pair<std::string, Argument>>")
PLAN      = FieldKind("Plan",                         "std::unique_ptr<Program>")
PLANS     = FieldKind("Plans",                        "std::vector<std::unique_ptr<Program>>")
LOADED    = FieldKind("loaded kernel",                "std::shared_ptr<DeviceKernel>",   encoded=False)
REPORT    = FieldKind("where its kernel reports",     "int32_t",                         encoded=False)
RESOLVED  = FieldKind("resolved operator",            "std::shared_ptr<const AtenCall>", encoded=False)

NATIVE_STEPS = (
    ALLOCATE       := NativeStep("Allocate", out=SLOT, layout=LAYOUT, reuse=SLOT),
    RAW_ALLOCATE   := NativeStep("RawAllocate", out=SLOT, layout=LAYOUT, ended=SLOT, buffer=INDEX),
    VIEW           := NativeStep("View", out=SLOT, base=SLOT, layout=LAYOUT, shift=SIZE),
    COPY           := NativeStep("Copy", target=SLOT, source=SLOT),
    CONSTANT       := NativeStep("Constant", out=SLOT, index=INDEX),
    FREE           := NativeStep("Free", slots=SLOTS),
    HAND_OVER      := NativeStep("HandOver", outputs=INDICES),
    LAUNCH         := NativeStep("Launch", kernel=KERNEL, tensors=SLOTS, ints=SIZES, floats=FLOATS, units=SIZE,
                                 grain=SIZE, scratch=SIZE, grid=SIZES, grid_rank=INDEX, num_ints=INDEX, rows=SIZES,
                                 num_rows=INDEX, device=DEVICE, loaded=LOADED, report=REPORT),
    ATEN           := NativeStep("Aten", target=TEXT, args=ARGUMENTS, kwargs=KEYWORDS, outs=SLOTS, layouts=LAYOUTS,
                                 resolved=RESOLVED),
    RANDOM_SEED    := NativeStep("RandomSeed", out=SLOT, device=PLACE, increment=SIZE),
    WAIT           := NativeStep("Wait", source=SLOT),
    HOST_READ      := NativeStep("HostRead", source=SLOT, kind=SCALAR, target=REGISTER, segment=INDEX),
    CHECK_RELATION := NativeStep("CheckRelation", relation=RELATION, difference=SIZE, message=TEXT),
    CHECK_TENSOR   := NativeStep("CheckTensor", condition=SLOT, message=TEXT),
    BRANCH         := NativeStep("Branch", condition=SLOT, args=SLOTS, sizes=SIZES, num_sizes=INDEX, outs=SLOTS,
                                 if_true=PLAN, if_false=PLAN),
    LOOP           := NativeStep("Loop", test=PLANS, body=PLAN, count=SIZE, carried=SLOTS, rows=SLOTS, args=SLOTS,
                                 sizes=SIZES, num_sizes=INDEX, outs=SLOTS, layouts=LAYOUTS),
)
# fmt: on
