# cython: language_level=3, boundscheck=False, wraparound=False
"""
The compiled parts of a pull: which records of a queue an answer takes, with their bytes one behind the other, and the
header of the answer; whether a record has a key. And what other lanes share: a header cut into what stays the same and
what differs.

Pure functions; whatever is unusual is left to the references, `rmq.store.reader.Reader.get` and the decoding of
`rmq.wire.command`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_UNIT_BYTES

include "record_layout.pxi"

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t haystack_size, const void *needle, size_t needle_size)

cdef enum:
    MAX_HEADER = 4096
    MAX_FRAME = 16 * 1024 * 1024 - 4
    MAX_DIGITS = 18
    MAX_NAMES = 3
    MAX_FIELDS = 32
    HEAD_ROOM = 400
    MAX_RECORDS = 1024
    MAX_CODES = 64
    MAX_ENTRIES = 32
    MAX_V1_TOPIC = 127
    MAX_I16 = 32767
    BORN_HOST_V6 = 1 << 4
    STORE_HOST_V6 = 1 << 5

cdef Py_ssize_t UNIT_BYTES = CQ_UNIT_BYTES
cdef int64_t LAST_ADDRESS = CQ_EXT_ADDRESS_MAX


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline void put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16
    at[2] = value >> 8
    at[3] = value


cdef inline int64_t get64(const uint8_t* at) noexcept nogil:
    return <int64_t>(<uint64_t>get32(at) << 32 | get32(at + 4))


cdef Py_ssize_t properties_at(
    const uint8_t* record, int64_t size, int32_t magic, Py_ssize_t* length, Py_ssize_t* topic_length
) noexcept nogil:
    """Return where the properties of a record begin, and their length; -1 when the lengths in it do not fit."""
    cdef Py_ssize_t topic_length_bytes = 2 if magic == MAGIC_V2 else 1
    cdef int64_t at = BODY_LENGTH_AT
    cdef uint8_t flags
    if size < MIN_RECORD_BYTES:
        return -1
    flags = record[SYS_FLAG_AT + 3]
    if flags & BORN_HOST_V6:
        at += IPV6_EXTRA_BYTES
    if flags & STORE_HOST_V6:
        at += IPV6_EXTRA_BYTES
    if at + 4 > size:
        return -1
    at += 4 + <int64_t>get32(record + at)
    if at + topic_length_bytes > size:
        return -1
    topic_length[0] = <Py_ssize_t>record[at] << 8 | record[at + 1] if topic_length_bytes == 2 else record[at]
    at += topic_length_bytes + topic_length[0]
    if at + 2 > size:
        return -1
    length[0] = record[at] << 8 | record[at + 1]
    at += 2
    return at if at + length[0] == size else -1


# ---- programs of filters: `rmq.store.filtercode` says what the operations mean ----

cdef enum:
    VERDICT_NO = 0
    VERDICT_YES = 1
    VERDICT_UNKNOWN = 2
    VERDICT_FAILED = 3
    VERDICT_UNSURE = 4
    OP_AND = 0
    OP_OR = 1
    OP_NOT = 2
    OP_CONSTANT = 3
    OP_PRESENT = 4
    OP_ABSENT = 5
    OP_TEXT = 6
    OP_IN = 7
    OP_FIND = 8
    OP_WHOLE = 9
    TEST_ABOVE = 0
    TEST_ABOVE_OR_EQUAL = 1
    TEST_BELOW = 2
    TEST_BELOW_OR_EQUAL = 3
    FIND_ANYWHERE = 0
    FIND_AT_START = 1
    PROPERTY_END = 2
    MOST_DIGITS = 18
    MOST_EXACT_DIGITS = 15

cdef double[16] TENS = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]


cdef struct Value:
    const uint8_t* start
    Py_ssize_t length


cdef struct Properties:
    const uint8_t* start
    const uint8_t* end
    #: where the first of them begin; -1 until `cut_properties` has looked for them
    int count
    const uint8_t* entries[MAX_ENTRIES]


cdef void cut_properties(Properties* properties) noexcept nogil:
    """Find where each property begins, of MAX_ENTRIES at most."""
    cdef const uint8_t* at = properties.start
    properties.count = 0
    while properties.count < MAX_ENTRIES:
        properties.entries[properties.count] = at
        properties.count += 1
        at = <const uint8_t*>memchr(at, PROPERTY_END, properties.end - at)
        if at == NULL:
            break
        at += 1


cdef int find_value(Properties* properties, const uint8_t* mark, Py_ssize_t mark_length, Value* found) noexcept nogil:
    """Find the property of a mark, the last one of that name: YES, NO, or UNSURE when its value is empty."""
    cdef const uint8_t* name = mark + 1
    cdef Py_ssize_t name_length = mark_length - 1
    cdef const uint8_t* at = NULL
    cdef const uint8_t* entry
    cdef int number
    if properties.count < 0:
        cut_properties(properties)
    if properties.count == MAX_ENTRIES:
        entry = properties.entries[MAX_ENTRIES - 1]
        while entry != NULL:
            if properties.end - entry >= name_length and memcmp(entry, name, name_length) == 0:
                at = entry
            entry = <const uint8_t*>memchr(entry, PROPERTY_END, properties.end - entry)
            if entry != NULL:
                entry += 1
    number = properties.count
    while at == NULL:
        if number == 0:
            return VERDICT_NO
        number -= 1
        entry = properties.entries[number]
        if (
            properties.end - entry >= name_length
            and entry[0] == name[0]
            and memcmp(entry, name, name_length) == 0
        ):
            at = entry
    at += name_length
    entry = <const uint8_t*>memchr(at, PROPERTY_END, properties.end - at)
    found.start = at
    found.length = (properties.end if entry == NULL else entry) - at
    return VERDICT_UNSURE if found.length == 0 else VERDICT_YES


cdef int whole_of(Value value, int bits, int64_t* number) noexcept nogil:
    """Read what Java's Integer or Long reads: YES, FAILED, or UNSURE for other digits than 0-9 and for long numbers."""
    cdef Py_ssize_t at = 0, i
    cdef int64_t found = 0
    cdef bint negative = value.start[0] == c"-"
    for i in range(value.length):
        if value.start[i] >= 0x80:
            return VERDICT_UNSURE
    if negative or value.start[0] == c"+":
        at = 1
    if at == value.length:
        return VERDICT_FAILED
    if value.length - at > MOST_DIGITS:
        return VERDICT_UNSURE
    while at < value.length:
        if not c"0" <= value.start[at] <= c"9":
            return VERDICT_FAILED
        found = found * 10 + (value.start[at] - c"0")
        at += 1
    if negative:
        found = -found
    if bits == 32 and not -2147483648 <= found <= 2147483647:
        return VERDICT_FAILED
    number[0] = found
    return VERDICT_YES


cdef int double_of(Value value, double* number) noexcept nogil:
    """Read a decimal fraction that a double holds exactly enough: YES, or UNSURE for all others, 0 too."""
    cdef Py_ssize_t at = 0, digits = 0, decimals = 0
    cdef int64_t found = 0
    cdef bint negative = value.start[0] == c"-", fraction = False
    if negative or value.start[0] == c"+":
        at = 1
    while at < value.length:
        if value.start[at] == c"." and not fraction:
            fraction = True
        elif c"0" <= value.start[at] <= c"9" and digits < MOST_EXACT_DIGITS:
            found = found * 10 + (value.start[at] - c"0")
            digits += 1
            decimals += fraction
        else:
            return VERDICT_UNSURE
        at += 1
    if found == 0:
        return VERDICT_UNSURE
    number[0] = <double>found / TENS[decimals]
    if negative:
        number[0] = -number[0]
    return VERDICT_YES


cdef inline bint passes(int test, int order) noexcept nogil:
    if test == TEST_ABOVE:
        return order > 0
    if test == TEST_ABOVE_OR_EQUAL:
        return order >= 0
    if test == TEST_BELOW:
        return order < 0
    if test == TEST_BELOW_OR_EQUAL:
        return order <= 0
    return order == 0


cdef int run_joined(const uint8_t** at, int deciding, Properties* properties) noexcept nogil:
    """AND and OR: an operand that decides ends it, then one that is unknown makes it unknown."""
    cdef const uint8_t* end = at[0] + 4 + get32(at[0])
    cdef int verdict, result = VERDICT_YES - deciding
    at[0] += 4
    while at[0] < end:
        verdict = run_node(at, properties)
        if verdict == deciding or verdict >= VERDICT_FAILED:
            result = verdict
            break
        if verdict == VERDICT_UNKNOWN:
            result = VERDICT_UNKNOWN
    at[0] = end
    return result


cdef int run_in(const uint8_t** at, int found, Value value) noexcept nogil:
    cdef const uint8_t* end = at[0] + 4 + get32(at[0])
    cdef Py_ssize_t size
    at[0] += 4
    while at[0] < end:
        size = get32(at[0])
        if size == value.length and memcmp(at[0] + 4, value.start, size) == 0:
            at[0] = end
            return found
        at[0] += 4 + size
    return 1 - found


cdef int run_find(const uint8_t** at, int where, int found, Value value) noexcept nogil:
    cdef Py_ssize_t size = get32(at[0])
    cdef const uint8_t* text = at[0] + 4
    cdef bint is_there
    at[0] += 4 + size
    if size == 0:
        return VERDICT_NO
    if size > value.length:
        is_there = False
    elif where == FIND_ANYWHERE:
        is_there = memmem(value.start, value.length, text, size) != NULL
    elif where == FIND_AT_START:
        is_there = memcmp(value.start, text, size) == 0
    else:
        is_there = memcmp(value.start + value.length - size, text, size) == 0
    return found if is_there else 1 - found


cdef int run_node(const uint8_t** at, Properties* properties) noexcept nogil:
    """Return the value of the node at ``at``, and move that behind it."""
    cdef int operation = at[0][0], verdict, found, test, bits
    cdef Py_ssize_t mark_length, size
    cdef const uint8_t* mark
    cdef Value value = [NULL, 0]
    cdef int64_t number = 0, other
    cdef double real = 0, beside
    cdef uint64_t raw
    at[0] += 1
    if operation == OP_AND:
        return run_joined(at, VERDICT_NO, properties)
    if operation == OP_OR:
        return run_joined(at, VERDICT_YES, properties)
    if operation == OP_NOT:
        verdict = run_node(at, properties)
        return 1 - verdict if verdict <= VERDICT_YES else verdict
    if operation == OP_CONSTANT:
        verdict = at[0][0]
        at[0] += 1
        return verdict
    mark_length = at[0][0]
    mark = at[0] + 1
    at[0] += 1 + mark_length
    found = find_value(properties, mark, mark_length, &value)
    if operation == OP_PRESENT or operation == OP_ABSENT:
        if found == VERDICT_UNSURE:
            return VERDICT_UNSURE
        if operation == OP_PRESENT:
            return VERDICT_NO if found else VERDICT_UNKNOWN
        return 1 - found
    verdict = VERDICT_UNKNOWN if found == VERDICT_NO else found
    if operation == OP_TEXT:
        size = get32(at[0])
        if found == VERDICT_YES:
            verdict = size == value.length and memcmp(at[0] + 4, value.start, size) == 0
        at[0] += 4 + size
    elif operation == OP_IN:
        test = at[0][0]
        at[0] += 1
        if found == VERDICT_YES:
            return run_in(at, test, value)
        at[0] += 4 + get32(at[0])
    elif operation == OP_FIND:
        test, bits = at[0][0], at[0][1]
        at[0] += 2
        if found == VERDICT_YES:
            return run_find(at, test, bits, value)
        verdict = VERDICT_NO if found == VERDICT_NO else found
        at[0] += 4 + get32(at[0])
    elif operation == OP_WHOLE:
        test, bits, other = at[0][0], at[0][1], get64(at[0] + 2)
        at[0] += 10
        if found == VERDICT_YES:
            verdict = whole_of(value, bits, &number)
            if verdict == VERDICT_YES:
                verdict = passes(test, (number > other) - (number < other))
    else:
        test, raw = at[0][0], <uint64_t>get64(at[0] + 1)
        memcpy(&beside, &raw, 8)
        at[0] += 9
        if found == VERDICT_YES:
            verdict = double_of(value, &real)
            if verdict == VERDICT_YES:
                verdict = passes(test, (real > beside) - (real < beside))
    return verdict


cdef struct Limits:
    int64_t recent_bytes
    int64_t memory_count
    int64_t memory_bytes
    int64_t disk_count
    int64_t disk_bytes


def pick(
    units,
    Py_ssize_t unit_at,
    Py_ssize_t unit_count,
    window,
    int64_t queue_offset,
    int64_t low,
    int64_t high,
    int64_t log_end,
    int64_t recent_bytes,
    tuple limits,
    int64_t max_count,
    codes,
    accepts=None,
    program=None,
    tuple head=None,
):
    """
    Choose among at most ``unit_count`` of ``units``, from byte ``unit_at`` on; the record of the first one begins
    ``window``, a piece of the log.

    ``queue_offset`` is the number of the first unit, ``low`` and ``high`` are the least and the next number of the queue.
    ``limits`` are how many records and bytes an answer may have of the last ``recent_bytes`` of the log, then of the rest. ``codes`` are the tags codes that are wanted, None for all; ``accepts`` is asked with the
    properties of the others, None for none, after ``program``, if there is one, see `rmq.store.filtercode`.

    Return `rmq.store.reader.Picked`; None for a unit that the reference must look at: an address of an extension, no
    record at its place. An answer ends in front of a record that lies behind the window; without any record in front of
    it, that is None. With ``head``, which is (broker to pull from next, the same after old messages, opaque, end of the
    header), what was picked is a whole answer, with `pull_head` in front; it is empty where no record was picked.
    """
    cdef Py_buffer unit_bytes, log_bytes, program_bytes
    cdef Limits most
    most.recent_bytes = recent_bytes
    most.memory_count, most.memory_bytes, most.disk_count, most.disk_bytes = limits
    PyObject_GetBuffer(units, &unit_bytes, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(window, &log_bytes, PyBUF_SIMPLE)
        try:
            if program is None:
                return pick_from(
                    &unit_bytes, unit_at, unit_count, &log_bytes, queue_offset, low, high, log_end, &most, max_count,
                    codes, accepts, NULL, head,
                )
            PyObject_GetBuffer(program, &program_bytes, PyBUF_SIMPLE)
            try:
                return pick_from(
                    &unit_bytes, unit_at, unit_count, &log_bytes, queue_offset, low, high, log_end, &most, max_count,
                    codes, accepts, <const uint8_t*>program_bytes.buf, head,
                )
            finally:
                PyBuffer_Release(&program_bytes)
        finally:
            PyBuffer_Release(&log_bytes)
    finally:
        PyBuffer_Release(&unit_bytes)


cdef object pick_from(
    Py_buffer* unit_bytes,
    Py_ssize_t unit_at,
    Py_ssize_t unit_count,
    Py_buffer* log_bytes,
    int64_t queue_offset,
    int64_t low,
    int64_t high,
    int64_t log_end,
    Limits* limits,
    int64_t max_count,
    codes,
    accepts,
    const uint8_t* program,
    tuple head,
):
    cdef const uint8_t* window = <const uint8_t*>log_bytes.buf
    cdef Py_ssize_t window_bytes = log_bytes.len, units_end = unit_bytes.len - UNIT_BYTES
    cdef Py_ssize_t scanned = 0, count = 0, at, i
    cdef int64_t first, phy, code, size, total = 0, most, most_bytes
    cdef int64_t wanted[MAX_CODES]
    cdef Py_ssize_t wanted_count = -1
    cdef Py_ssize_t starts[MAX_RECORDS]
    cdef Py_ssize_t sizes[MAX_RECORDS]
    cdef const uint8_t* unit
    cdef const uint8_t* record
    cdef int32_t magic
    cdef Py_ssize_t start, length, topic_length
    cdef const uint8_t* at_node
    cdef Properties properties
    cdef int verdict
    cdef bint is_wanted, is_old
    cdef char* out
    if window_bytes == 0 or max_count > MAX_RECORDS or not 0 <= unit_at <= units_end:
        return None
    if codes is not None:
        if len(codes) > MAX_CODES:
            return None
        wanted_count = 0
        for value in codes:
            if -(1 << 63) <= value < 1 << 63:
                wanted[wanted_count] = value
                wanted_count += 1
    unit = <const uint8_t*>unit_bytes.buf + unit_at
    first = phy = get64(unit)
    if first < 0:
        return None
    while unit_at <= units_end and unit_count > 0:
        unit_count -= 1
        unit = <const uint8_t*>unit_bytes.buf + unit_at
        unit_at += UNIT_BYTES
        phy = get64(unit)
        size = <int32_t>get32(unit + 8)
        code = get64(unit + 12)
        if phy < 0:
            return None
        if count:
            if log_end - phy > limits.recent_bytes:
                most = limits.disk_count
                most_bytes = limits.disk_bytes
            else:
                most = limits.memory_count
                most_bytes = limits.memory_bytes
            if most > max_count:
                most = max_count
            if count >= most or total + size > most_bytes:
                break
        if wanted_count >= 0:
            if code <= LAST_ADDRESS:
                return None
            is_wanted = False
            for i in range(wanted_count):
                if wanted[i] == code:
                    is_wanted = True
                    break
            if not is_wanted:
                scanned += 1
                continue
        if size < MAGIC_CODE_AT + 4 or phy < first:
            return None
        if phy - first > window_bytes - size:
            if count:
                break
            return None
        at = <Py_ssize_t>(phy - first)
        record = window + at
        magic = <int32_t>get32(record + MAGIC_CODE_AT)
        if <int32_t>get32(record + TOTAL_SIZE_AT) != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return None
        if accepts is not None:
            start = properties_at(record, size, magic, &length, &topic_length)
            if start < 0:
                return None
            verdict = VERDICT_UNSURE
            if program != NULL:
                at_node = program
                properties.start = record + start
                properties.end = properties.start + length
                properties.count = -1
                verdict = run_node(&at_node, &properties)
            if verdict == VERDICT_UNSURE:
                is_wanted = accepts(PyUnicode_DecodeUTF8(<const char*>record + start, length, "replace"))
            else:
                is_wanted = verdict == VERDICT_YES
            if not is_wanted:
                scanned += 1
                continue
        scanned += 1
        starts[count] = at
        sizes[count] = <Py_ssize_t>size
        count += 1
        total += size
    is_old = log_end - phy > limits.recent_bytes
    queue_offset += scanned
    if head is None or count == 0:
        data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        out = PyBytes_AS_STRING(data)
    else:
        usual, old, opaque, tail = head
        data = answer_with(0, old if is_old else usual, queue_offset, low, high, opaque, tail, total, total)
        out = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data) - total
    for i in range(count):
        memcpy(out, window + starts[i], sizes[i])
        out += sizes[i]
    return data, total, count, queue_offset, low, high, is_old


cdef char* put_text(char* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out, text, size)
    return out + size


cdef struct Token:
    # of a string without its quotes
    const char* start
    Py_ssize_t size
    bint is_text
    bint escaped


cdef struct Field:
    Token name, value


cdef inline const char* skip(const char* at, const char* end) noexcept nogil:
    while at < end and (at[0] == c' ' or at[0] == c'\n' or at[0] == c'\t' or at[0] == c'\r'):
        at += 1
    return at


cdef const char* read_token(const char* at, const char* end, Token* token) noexcept nogil:
    """Read a string, a number or a word; return what follows, behind blanks, or NULL for anything else."""
    token.escaped = False
    token.is_text = at < end and at[0] == c'"'
    if token.is_text:
        at += 1
        token.start = at
        while True:
            while at < end and at[0] != c'"' and at[0] != c'\\':
                at += 1
            if at >= end:
                return NULL
            if at[0] == c'"':
                break
            token.escaped = True
            at += 2
        token.size = at - token.start
        at += 1
    else:
        token.start = at
        while at < end and (c'0' <= at[0] <= c'9' or c'a' <= at[0] <= c'z' or at[0] == c'-' or at[0] == c'.'):
            at += 1
        token.size = at - token.start
        if token.size == 0:
            return NULL
    return skip(at, end)


cdef const char* read_member(const char* at, const char* end, Field* field) noexcept nogil:
    """Read a name; return where its value begins, or NULL."""
    at = read_token(at, end, &field.name)
    if at == NULL or not field.name.is_text or field.name.escaped or at >= end or at[0] != c':':
        return NULL
    return skip(at + 1, end)


cdef inline bint is_named(const Field* field, const char* name, Py_ssize_t size) noexcept nogil:
    return field.name.size == size and memcmp(field.name.start, name, size) == 0


cdef bint whole_in(const Token* token, int64_t* value) noexcept nogil:
    """Read a whole number that is written plainly, with up to 18 digits."""
    cdef const char* at = token.start
    cdef const char* end = at + token.size
    cdef bint negative = at < end and at[0] == c'-'
    cdef int64_t found = 0
    at += negative
    if at == end or end - at > MAX_DIGITS or (at[0] == c'0' and (negative or end - at > 1)):
        return False
    while at < end:
        if not c'0' <= at[0] <= c'9':
            return False
        found = found * 10 + (at[0] - c'0')
        at += 1
    value[0] = -found if negative else found
    return True


cdef inline int compare_names(const Field* left, const Field* right) noexcept nogil:
    if left.name.size != right.name.size:
        return -1 if left.name.size < right.name.size else 1
    return memcmp(left.name.start, right.name.start, left.name.size)


cdef struct Request:
    # where the frame ends, the opaque, and the numbers and the text that were asked for
    int64_t stop, opaque
    int64_t numbers[MAX_NAMES]
    Token text


cdef bint is_plain(const Token* token) noexcept nogil:
    """Return whether this is a string, not empty, without escapes and control characters."""
    cdef Py_ssize_t i
    if not token.is_text or token.escaped or token.size == 0:
        return False
    for i in range(token.size):
        if <uint8_t>token.start[i] < 0x20:
            return False
    return True


cdef const char* read_fields(
    const char* at, const char* end, tuple names, bytes text, Request* request, Field* fields, Field** in_order, int* count
):
    """
    Read the extFields behind their brace into ``fields``; return where the closing one is, or NULL.

    ``in_order`` sorts them. The signature is left out, and so are those of ``names`` and ``text``, which must all be there.
    """
    cdef Field* field
    cdef int i, wanted = <int>len(names), seen = 0
    cdef bytes name
    cdef bint signed = False
    at = skip(at, end)
    if at < end and at[0] == c'}':
        return at if wanted == 0 and text is None else NULL
    while count[0] < MAX_FIELDS:
        field = &fields[count[0]]
        at = read_member(at, end, field)
        if at == NULL:
            return NULL
        at = read_token(at, end, &field.value)
        if at == NULL:
            return NULL
        for i in range(wanted):
            name = <bytes>names[i]
            if is_named(field, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)):
                break
        else:
            i = wanted
        if i < wanted:
            if seen >> i & 1 or not whole_in(&field.value, &request.numbers[i]):
                return NULL
            seen |= 1 << i
        elif text is not None and is_named(field, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
            if request.text.start != NULL or not is_plain(&field.value):
                return NULL
            request.text = field.value
        elif is_named(field, b"Signature", 9) and field.value.is_text and not field.value.escaped:
            if signed:
                return NULL
            signed = True
        else:
            i = count[0]
            while i > 0 and compare_names(in_order[i - 1], field) > 0:
                in_order[i] = in_order[i - 1]
                i -= 1
            if i > 0 and compare_names(in_order[i - 1], field) == 0:
                return NULL
            in_order[i] = field
            count[0] += 1
        if at >= end:
            return NULL
        if at[0] == c'}':
            return at if seen == (1 << wanted) - 1 and (text is None or request.text.start != NULL) else NULL
        if at[0] != c',':
            return NULL
        at = skip(at + 1, end)
    return NULL


def split(bytes data not None, Py_ssize_t position, tuple names not None):
    """
    Cut the frame of a request at ``data[position]`` into (what its header says beside its numbers, where the frame ends,
    opaque, the number of each of ``names``); None when it is not whole, its header is not plain JSON, or a number is not there.

    ``names`` are at most three names of extFields. Requests whose first parts are equal differ in nothing but these numbers,
    the order of the extFields (Go's clients draw it for each request) and the signature, which C++ clients
    make although nobody asks for it. Bytes behind the header are not looked at.
    """
    cdef Request request
    cdef bytes key = cut(data, position, names, None, &request)
    if key is None:
        return None
    if len(names) == 3:
        return key, request.stop, request.opaque, request.numbers[0], request.numbers[1], request.numbers[2]
    if len(names) == 2:
        return key, request.stop, request.opaque, request.numbers[0], request.numbers[1]
    if len(names) == 1:
        return key, request.stop, request.opaque, request.numbers[0]
    return key, request.stop, request.opaque


def first_since(bytes units not None, window, int64_t first, int64_t timestamp):
    """
    Return the place of the first of ``units`` whose message was stored at a time or later, their number when none was.

    ``window`` has the bytes of the log from ``first`` on. None when a record is not in it.
    """
    cdef Py_buffer found
    cdef const uint8_t* record
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(units) // UNIT_BYTES, middle
    cdef int64_t at, stored_ms
    cdef int32_t magic
    PyObject_GetBuffer(window, &found, PyBUF_SIMPLE)
    try:
        while low < high:
            middle = (low + high) // 2
            at = get64(<const uint8_t*>PyBytes_AS_STRING(units) + middle * UNIT_BYTES)
            if at < first or at - first > found.len - MIN_RECORD_BYTES:
                return None
            record = <const uint8_t*>found.buf + (at - first)
            magic = <int32_t>get32(record + MAGIC_CODE_AT)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                return None
            if record[SYS_FLAG_AT + 3] & BORN_HOST_V6:
                stored_ms = get64(record + STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES)
            else:
                stored_ms = get64(record + STORE_TIMESTAMP_AT)
            if stored_ms >= timestamp:
                high = middle
            else:
                low = middle + 1
        return low
    finally:
        PyBuffer_Release(&found)


def is_of(record, str topic not None, str key not None):
    """
    Return whether all of ``record`` is a record of a topic, with a key: the unique one, or one of its keys.

    None where the reference must look, `rmq.store.reader`.
    """
    cdef Py_ssize_t topic_size, key_size
    cdef const char* topic_text
    cdef const char* key_text
    cdef Py_buffer found
    try:
        topic_text = PyUnicode_AsUTF8AndSize(topic, &topic_size)
        key_text = PyUnicode_AsUTF8AndSize(key, &key_size)
    except UnicodeEncodeError:
        return None
    # a value that is no UTF-8 has such characters for the reference
    if memmem(key_text, key_size, b"\xef\xbf\xbd", 3) != NULL:
        return None
    PyObject_GetBuffer(record, &found, PyBUF_SIMPLE)
    try:
        verdict = has_key(<const uint8_t*>found.buf, found.len, topic_text, topic_size, key_text, key_size)
    finally:
        PyBuffer_Release(&found)
    return None if verdict == VERDICT_UNSURE else verdict == VERDICT_YES


cdef int has_key(
    const uint8_t* record, Py_ssize_t size, const char* topic, Py_ssize_t topic_size, const char* key, Py_ssize_t key_size
) noexcept nogil:
    """Do the work of :func:`is_of`: YES, NO or UNSURE."""
    cdef Py_ssize_t start, length, topic_length, most_topic = MAX_V1_TOPIC
    cdef int32_t magic
    cdef Properties properties
    cdef Value value
    cdef const uint8_t* end
    cdef const uint8_t* blank
    cdef int verdict
    if size < MIN_RECORD_BYTES or get32(record + TOTAL_SIZE_AT) != <uint64_t>size:
        return VERDICT_NO
    magic = <int32_t>get32(record + MAGIC_CODE_AT)
    if magic == MAGIC_V2:
        most_topic = MAX_I16
    elif magic != MAGIC_V1:
        return VERDICT_NO
    start = properties_at(record, size, magic, &length, &topic_length)
    if start < 0 or length > MAX_I16 or not 0 < topic_length <= most_topic:
        return VERDICT_NO
    if topic_length != topic_size or memcmp(record + start - 2 - topic_length, topic, topic_size) != 0:
        return VERDICT_NO
    properties.start = record + start
    properties.end = properties.start + length
    properties.count = -1
    verdict = find_value(&properties, <const uint8_t*>b"\x02UNIQ_KEY\x01", 10, &value)
    if verdict == VERDICT_UNSURE or (verdict == VERDICT_YES and is_same(&value, key, key_size)):
        return verdict
    verdict = find_value(&properties, <const uint8_t*>b"\x02KEYS\x01", 6, &value)
    if verdict != VERDICT_YES or key_size == 0:
        return verdict if verdict == VERDICT_UNSURE else VERDICT_NO
    end = value.start + value.length
    while True:
        blank = <const uint8_t*>memchr(value.start, c" ", end - value.start)
        value.length = (end if blank == NULL else blank) - value.start
        if is_same(&value, key, key_size):
            return VERDICT_YES
        if blank == NULL:
            return VERDICT_NO
        value.start = blank + 1


cdef inline bint is_same(const Value* value, const char* text, Py_ssize_t size) noexcept nogil:
    return value.length == size and memcmp(value.start, text, size) == 0


def answer_known(
    bytes data not None,
    Py_ssize_t position,
    bytes name,
    bytes text,
    dict known not None,
    learn,
    answer,
    tuple around_done not None,
    list answers not None,
    Py_ssize_t most_bytes,
):
    """
    Answer the requests at ``data[position]`` and behind it; return where the first that is declined begins, and how many were
    answered. It ends behind the answer with which they have ``most_bytes``.

    ``known`` has (what a request says, whether it is one-way) by what :func:`split` returns first; what is not there comes
    from ``learn(that, frame)``. ``answer(what, opaque)``, with the number of ``name`` where there is one, and behind it the string of
    ``text``, returns the frame of an answer, b"" for one without fields, which is ``around_done`` around the opaque; None declines.
    ``learn``, too, may decline with None.
    """
    cdef Request request
    cdef tuple names = () if name is None else (name,)
    cdef Py_ssize_t count = 0, collected = 0, size = PyBytes_GET_SIZE(data)
    cdef bytes key, frame
    cdef PyObject* found
    cdef tuple asked
    while position < size and collected < most_bytes:
        key = cut(data, position, names, text, &request)
        if key is None:
            break
        found = PyDict_GetItem(known, key)
        if found is not NULL:
            asked = <tuple><object>found
        else:
            asked = learn(key, data[position : request.stop])
            if asked is None:
                break
        if name is None:
            frame = answer(asked[0], request.opaque)
        elif text is None:
            frame = answer(asked[0], request.opaque, request.numbers[0])
        else:
            try:
                word = PyUnicode_DecodeUTF8(request.text.start, request.text.size, NULL)
            except UnicodeDecodeError:
                break
            frame = answer(asked[0], request.opaque, request.numbers[0], word)
        if frame is None:
            break
        if asked[1] is not True:
            if PyBytes_GET_SIZE(frame) == 0:
                frame = fill(around_done, b"", request.opaque)
            answers.append(frame)
            collected += PyBytes_GET_SIZE(frame)
        count += 1
        position = request.stop
    return position, count


cdef bytes cut(bytes data, Py_ssize_t position, tuple names, bytes text, Request* request):
    """Do the work of :func:`split`."""
    cdef const char* chunk = PyBytes_AS_STRING(data) + position
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data) - position
    cdef int64_t length, word
    cdef Field fields[MAX_FIELDS]
    cdef Field* in_order[MAX_FIELDS]
    cdef Field member
    cdef int i, count = 0
    cdef const char* at
    cdef const char* end
    cdef Py_ssize_t size
    # what of the header is left out: the opaque's digits and the extFields, either first
    cdef const char* cut[4]
    cdef int cuts = 0
    cdef bint has_opaque = False, has_fields = False
    cdef bytes key
    cdef char* out
    request.opaque = 0
    request.text.start = NULL
    if left <= 8 or position < 0 or len(names) > MAX_NAMES:
        return None
    length = <int32_t>get32(<const uint8_t*>chunk)
    word = get32(<const uint8_t*>chunk + 4)
    if word > MAX_HEADER or length < 4 + word or length > MAX_FRAME or length > left - 4:
        return None
    at = chunk + 8
    end = at + word
    if word == 0 or at[0] != c'{':
        return None
    at = skip(at + 1, end)
    while True:
        at = read_member(at, end, &member)
        if at == NULL:
            return None
        if is_named(&member, b"extFields", 9):
            if has_fields or at >= end or at[0] != c'{':
                return None
            has_fields = True
            cut[cuts] = at + 1
            at = read_fields(at + 1, end, names, text, request, fields, in_order, &count)
            if at == NULL:
                return None
            cut[cuts + 1] = at
            cuts += 2
            at = skip(at + 1, end)
        else:
            at = read_token(at, end, &member.value)
            if at == NULL:
                return None
            if is_named(&member, b"opaque", 6):
                if (
                    has_opaque
                    or member.value.is_text
                    or not whole_in(&member.value, &request.opaque)
                    or not -(1 << 31) <= request.opaque < 1 << 31
                ):
                    return None
                has_opaque = True
                cut[cuts] = member.value.start
                cut[cuts + 1] = member.value.start + member.value.size
                cuts += 2
        if at >= end:
            return None
        if at[0] == c'}':
            break
        if at[0] != c',':
            return None
        at = skip(at + 1, end)
    if not has_opaque or ((len(names) or text is not None) and not has_fields) or skip(at + 1, end) != end:
        return None
    size = <Py_ssize_t>word
    for i in range(0, cuts, 2):
        size -= cut[i + 1] - cut[i]
    for i in range(count):
        size += in_order[i].name.size + in_order[i].value.size + (4 if in_order[i].value.is_text else 3)
    key = PyBytes_FromStringAndSize(NULL, size)
    out = PyBytes_AS_STRING(key)
    at = chunk + 8
    for i in range(0, cuts, 2):
        out = put_text(out, at, cut[i] - at)
        at = cut[i + 1]
    out = put_text(out, at, end - at)
    for i in range(count):
        out = put_text(out, in_order[i].name.start, in_order[i].name.size)
        out = put_text(out, b'":"', 3 if in_order[i].value.is_text else 2)
        out = put_text(out, in_order[i].value.start, in_order[i].value.size)
        out = put_text(out, b'"', 1)
    request.stop = position + 4 + length
    return key


cdef char* put_number(char* out, int64_t value) noexcept nogil:
    """Write a number as decimal digits; return where they end."""
    cdef char digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        out[0] = c"-"
        out += 1
        rest = 0 - rest
    while True:
        digits[count] = c"0" + <char>(rest % 10)
        count += 1
        rest = rest // 10
        if rest == 0:
            break
    while count:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out


cdef bytes answer_with(
    int64_t code,
    int64_t broker_id,
    int64_t next_begin,
    int64_t min_offset,
    int64_t max_offset,
    int64_t opaque,
    bytes tail,
    int64_t body_size,
    int64_t room,
):
    """Return length words and header of an answer whose body has ``body_size`` bytes, and ``room`` for that many."""
    cdef char head[HEAD_ROOM]
    cdef char* at = put_text(head, b'{"code":', 8)
    cdef bytes frame
    cdef uint8_t* out
    cdef Py_ssize_t size, total
    at = put_number(at, code)
    at = put_text(at, b',"extFields":{"suggestWhichBrokerId":"', 38)
    at = put_number(at, broker_id)
    at = put_text(at, b'","nextBeginOffset":"', 21)
    at = put_number(at, next_begin)
    at = put_text(at, b'","minOffset":"', 15)
    at = put_number(at, min_offset)
    at = put_text(at, b'","maxOffset":"', 15)
    at = put_number(at, max_offset)
    at = put_text(at, b'"},"flag":1,"language":"JAVA","opaque":', 39)
    at = put_number(at, opaque)
    size = at - head
    total = size + PyBytes_GET_SIZE(tail)
    frame = PyBytes_FromStringAndSize(NULL, 8 + total + <Py_ssize_t>room)
    out = <uint8_t*>PyBytes_AS_STRING(frame)
    put32(out, <uint32_t>(4 + total + body_size))
    put32(out + 4, <uint32_t>total)
    memcpy(out + 8, head, size)
    memcpy(out + 8 + size, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
    return frame


def pull_head(
    int64_t code,
    int64_t broker_id,
    int64_t next_begin,
    int64_t min_offset,
    int64_t max_offset,
    int64_t opaque,
    bytes tail not None,
    int64_t body_size,
):
    """Return length words and header of an answer whose body has ``body_size`` bytes; ``tail`` ends the header."""
    return answer_with(code, broker_id, next_begin, min_offset, max_offset, opaque, tail, body_size, 0)


def fill(tuple texts not None, bytes body not None, *numbers):
    """Return the frame of an answer: its header is ``texts`` with ``numbers`` between them; bytes and integers of 64 bits."""
    cdef bytes frame, text
    cdef Py_ssize_t size = 8 + 20 * len(numbers)
    cdef Py_ssize_t count = len(numbers), i, header
    cdef char* start
    cdef char* at
    for text in texts:
        size += PyBytes_GET_SIZE(text)
    if len(texts) != count + 1 or size > HEAD_ROOM:
        raise ValueError(f"{len(texts)} texts around {count} numbers, {size} bytes")
    cdef char head[HEAD_ROOM]
    at = head + 8
    for i in range(count + 1):
        text = <bytes>texts[i]
        at = put_text(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        if i < count:
            at = put_number(at, <int64_t>numbers[i])
    header = at - head - 8
    put32(<uint8_t*>head, <uint32_t>(4 + header + PyBytes_GET_SIZE(body)))
    put32(<uint8_t*>head + 4, <uint32_t>header)
    frame = PyBytes_FromStringAndSize(NULL, 8 + header + PyBytes_GET_SIZE(body))
    start = PyBytes_AS_STRING(frame)
    memcpy(start, head, 8 + header)
    memcpy(start + 8 + header, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    return frame
