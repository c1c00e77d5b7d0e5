"""
SQL92 expressions that select messages by their properties. Imported when a first expression arrives.

Apache's grammar and its meaning: three-valued logic, properties that become numbers where they are compared with one,
and no message where that fails. Apache's parser ends at the first word that cannot go on; what follows is ignored.

Java: SelectorParser.jj, ComparisonExpression, LogicExpression, UnaryExpression
"""

from __future__ import annotations

import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
from lark import Lark, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from rmq.broker.filters import SubscriptionError
from rmq.store import filtercode
from rmq.wire.record import find_marked, property_mark

#: limits of an expression, which is evaluated for hundreds of messages of one pull; Apache has none
MAX_LENGTH, MAX_OPERATORS = 1 << 16, 500
#: memory of a compiled expression, long or short
BYTES_PER_CHARACTER = 110
#: characters of the compiled expressions that are kept
MAX_KEPT = 1 << 16

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction
    | disjunction OR conjunction                        -> or_
?conjunction: equality
    | conjunction AND equality                          -> and_
?equality: comparison
    | equality EQUAL comparison                           -> equal
    | equality UNEQUAL comparison                          -> not_equal
    | equality IS NULL                                  -> is_null
    | equality IS NOT NULL                              -> is_not_null
?comparison: unary
    | comparison (ABOVE | ABOVE_OR_EQUAL | BELOW | BELOW_OR_EQUAL) unary -> order
    | comparison NOT? (CONTAINS | STARTSWITH | ENDSWITH) STRING -> text
    | comparison NOT? BETWEEN unary AND unary           -> between
    | comparison NOT? IN "(" STRING ("," STRING)* ")"   -> in_
?unary: "+" unary
    | "-" unary                                         -> negate
    | NOT unary                                         -> not_
    | primary
?primary: STRING                                        -> string
    | INTEGER                                           -> integer
    | FLOAT                                             -> double
    | TRUE                                              -> true
    | FALSE                                             -> false
    | NULL                                              -> null
    | NAME                                              -> property
    | "(" disjunction ")"

EQUAL: "="
UNEQUAL: "<>"
ABOVE: ">"
ABOVE_OR_EQUAL: ">="
BELOW: "<"
BELOW_OR_EQUAL: "<="
OR: "OR"i
AND: "AND"i
NOT: "NOT"i
IS: "IS"i
IN: "IN"i
BETWEEN: "BETWEEN"i
CONTAINS: "CONTAINS"i
STARTSWITH: "STARTSWITH"i
ENDSWITH: "ENDSWITH"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
FLOAT.2: /[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER: /[1-9][0-9]*[lL]?|0/
STRING: /'(''|[^'])*'/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*(\r\n|\n|\r)/
%ignore /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
"""


class _NotComparable(Exception):
    """Two values of one message cannot be compared: the message does not match."""


class _Long(int):
    """A constant beyond 32 bits; a property that is compared with it may be as long."""


Value = str | int | float | bool | None
#: gets the properties of a message, encoded as in its record
Evaluate = Callable[[str], Value]


@attrs.frozen
class Sql92:
    """A compiled expression, which is a `rmq.store.filtercode.PropertyFilter`."""

    expression: str
    #: what follows the end of the expression, and is ignored
    ignored: str
    program: bytes | None
    _evaluate: Evaluate

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.expression) * BYTES_PER_CHARACTER

    def __call__(self, properties: str) -> bool:
        try:
            return self._evaluate(properties) is True
        except _NotComparable:
            return False


def _compile(expression: str) -> Sql92:
    if len(expression) > MAX_LENGTH:
        raise SubscriptionError(f"an expression has at most {MAX_LENGTH} characters, this one {len(expression)}")
    ignored = ""
    try:
        try:
            node: Any = _parser().parse(expression)
        except UnexpectedToken as error:
            parser = error.interactive_parser
            if parser is None or "$END" not in error.accepts:
                raise
            ignored = expression[error.token.start_pos :]
            node = parser.feed_eof()
        condition = _condition(node)
        return Sql92(expression, ignored, condition.program, condition.evaluate)
    except UnexpectedToken as error:
        raise SubscriptionError(_unexpected(expression, error)) from None
    except UnexpectedCharacters as error:
        where = f"line {error.line}, column {error.column}"
        raise SubscriptionError(f"{_TOKEN_ERROR}: Lexical error at {where}. Encountered: {error.char!r}") from None


class KeptExpressions:
    """
    Compiles expressions and keeps those used last, as many as have MAX_KEPT characters together.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Sql92] = OrderedDict()
        self._characters = 0

    def __call__(self, expression: str) -> Sql92:
        """Return an expression ready for use; SubscriptionError with the text of Apache's as far as it is short."""
        found = self._kept.get(expression)
        if found is not None:
            self._kept.move_to_end(expression)
            return found
        found = self._kept[expression] = _compile(expression)
        self._characters += len(expression)
        while self._characters > MAX_KEPT:
            self._characters -= len(self._kept.popitem(last=False)[0])
        return found


#: expressions of all groups
compile_sql92 = KeptExpressions()


def _unexpected(expression: str, error: UnexpectedToken) -> str:
    """Java: ParseException#getMessage"""
    token = error.token
    if token.type == "$END":
        found, line, column = "<EOF>", expression.count("\n") + 1, len(expression.rpartition("\n")[2])
    else:
        image = _IMAGES.get(token.type, f'"{token}"')
        escaped = token.replace("'", "\\'")
        found, line, column = f' {image} "{escaped} "', error.line, error.column
    images = [_IMAGES[name] for name in _IMAGES if name in error.accepts]
    wanted = "".join(f"    {image} ...\n" for image in images)
    expecting = "Was expecting one of:" if len(images) > 1 else "Was expecting:"
    return f'{_PARSE_EXCEPTION}: Encountered "{found}" at line {line}, column {column}.\n{expecting}\n{wanted}    '


_WORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
#: how Apache's parser writes our tokens, in its order; it leaves out "+"
_IMAGES = {word: f'"{word}"' for word in _WORDS}
_IMAGES |= {"INTEGER": "<DECIMAL_LITERAL>", "FLOAT": "<FLOATING_POINT_LITERAL>", "STRING": "<STRING_LITERAL>"}
_IMAGES |= {"NAME": "<ID>", "EQUAL": '"="', "UNEQUAL": '"<>"'}
_IMAGES |= {"ABOVE": '">"', "ABOVE_OR_EQUAL": '">="', "BELOW": '"<"', "BELOW_OR_EQUAL": '"<="'}
_IMAGES |= {"LPAR": '"("', "COMMA": '","', "RPAR": '")"', "MINUS": '"-"'}
_PARSE_EXCEPTION = "org.apache.rocketmq.filter.parser.ParseException"
_TOKEN_ERROR = "org.apache.rocketmq.filter.parser.TokenMgrError"


# ---- what an expression is made of ----


@attrs.frozen
class _Node:
    """A part of an expression. ``text`` is for errors."""

    evaluate: Evaluate
    text: str
    is_condition: bool = False
    is_constant: bool = False
    value: Value = None
    #: the name, of a property
    name: str | None = None
    #: of AND and OR: its operands
    operator: str = ""
    operands: tuple[_Node, ...] = ()
    #: how many operators it has
    size: int = 0
    #: the same for compiled pulls, see `rmq.store.filtercode`; None for what they cannot do
    program: bytes | None = None

    @property
    def mark(self) -> str:
        """What finds a property."""
        return property_mark(self.name or "")


def _node(parts: tuple[_Node, ...], evaluate: Evaluate, text: str, **more: Any) -> _Node:
    size = 1 + sum(part.size for part in parts)
    if size > MAX_OPERATORS:
        raise SubscriptionError(f"an expression has at most {MAX_OPERATORS} operators")
    return _Node(evaluate, text, size=size, **more)


def _constant(value: Value, text: str) -> _Node:
    if not isinstance(value, bool) and value is not None:
        return _Node(lambda _: value, text, is_constant=True, value=value)
    program = filtercode.constant(filtercode.UNKNOWN if value is None else int(value))
    return _Node(lambda _: value, text, is_condition=True, is_constant=True, value=value, program=program)


def _condition(node: _Node) -> _Node:
    """Return a node as a condition; a property alone is one that is never true."""
    if node.is_condition:
        return node
    if node.name is None:
        raise SubscriptionError(f"{_PARSE_EXCEPTION}: Expression will not result in a boolean value: {node.text}")
    evaluate, program = node.evaluate, filtercode.present(node.mark)
    return _Node(lambda p: None if evaluate(p) is None else False, node.text, is_condition=True, program=program)


def _joined(operator: str, left: _Node, right: _Node) -> _Node:
    """AND and OR: an operand that decides ends it, then one that is unknown makes it unknown."""
    deciding = operator == "||"
    operands: tuple[_Node, ...] = ()
    for side in (_condition(left), _condition(right)):
        operands += side.operands if side.operator == operator else (side,)
    evaluates = tuple(operand.evaluate for operand in operands)

    def evaluate(properties: str) -> Value:
        result: Value = not deciding
        for one in evaluates:
            value = one(properties)
            if value is deciding:
                return deciding
            if value is None:
                result = None
        return result

    program = filtercode.joined(filtercode.OR if deciding else filtercode.AND, [one.program for one in operands])
    more = {"operator": operator, "operands": operands, "program": program}
    return _node(operands, evaluate, f"({left.text} {operator} {right.text})", is_condition=True, **more)


def _negated(node: _Node) -> _Node:
    condition = _condition(node)
    inner = condition.evaluate

    def evaluate(properties: str) -> Value:
        value = inner(properties)
        return None if value is None else not value

    program = filtercode.negated(condition.program)
    return _node((node,), evaluate, f"(NOT {node.text})", is_condition=True, program=program)


# ---- comparing ----

_WHOLE = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEX_DOUBLE = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)
_BLANKS = "".join(map(chr, range(33)))


def _to_whole(text: str, bits: int) -> int:
    """Java: Integer#valueOf, Long#valueOf"""
    if _WHOLE.fullmatch(text) is None or len(text) > 64:
        raise _NotComparable
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _NotComparable
    return value


def _to_double(text: str) -> float:
    """Java: Double#valueOf"""
    text = text.strip(_BLANKS)
    if _DOUBLE.fullmatch(text):
        return float(text.rstrip("fFdD")) if text[-1] in "fFdD" else float(text)
    if _HEX_DOUBLE.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    raise _NotComparable


_BITS = {int: 32, _Long: 64}
_CONVERT: dict[type, Callable[[str], Value]] = {
    bool: lambda text: text.lower() == "true",
    int: lambda text: _to_whole(text, 32),
    _Long: lambda text: _to_whole(text, 64),
    float: _to_double,
}


def _compare(left: Value, right: Value) -> int:
    """
    Return what Java's ``compareTo`` returns, after a property has become what it is compared with.

    Raises _NotComparable.  Java: ComparisonExpression#__compare
    """
    kind, other = type(left), type(right)
    if kind is not other:
        if kind is str:
            left = _CONVERT[other](left)  # type: ignore[arg-type]
        elif kind is bool:
            if other is str:
                raise _NotComparable  # Java casts the Boolean to a String
            return -1
        elif other is str:
            right = _CONVERT[kind](right)  # type: ignore[arg-type]
        elif other is bool:
            return -1
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))  # type: ignore[arg-type]
    return (left > right) - (left < right)  # type: ignore[operator]


def _compare_doubles(left: float, right: float) -> int:
    """NaN is equal to itself and above all others, 0.0 is above -0.0.  Java: Double#compare"""
    if left == right and left:
        return 0
    keys = [(math.isnan(one), 0.0 if math.isnan(one) else one, math.copysign(1.0, one)) for one in (left, right)]
    if math.isnan(left) and math.isnan(right):
        return 0
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


_TESTS: dict[str, tuple[Callable[[int, int], bool], int]] = {
    ">": (operator.gt, filtercode.ABOVE),
    ">=": (operator.ge, filtercode.ABOVE_OR_EQUAL),
    "<": (operator.lt, filtercode.BELOW),
    "<=": (operator.le, filtercode.BELOW_OR_EQUAL),
}


def _comparison_program(left: _Node, test: int, right: _Node) -> bytes | None:
    """Return the program of a property beside a constant, which most expressions are made of; None for others."""
    value = right.value
    if left.name is None or not right.is_constant or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return filtercode.equal_text(left.mark, value)
    if isinstance(value, float):
        return filtercode.double(left.mark, test, value)
    return None if value is None else filtercode.whole_number(left.mark, test, value, _BITS[type(value)])


def _ordered(left: _Node, sign: str, right: _Node) -> _Node:
    """<, <=, > and >= compare numbers only; two properties are compared as floating-point numbers."""
    for side in (left, right):
        number = isinstance(side.value, int | float) and not isinstance(side.value, bool)
        if side.is_condition or (side.is_constant and not number):
            raise SubscriptionError(f"java.lang.RuntimeException: Value '{side.text}' cannot be compared.")
    (test, code), left_of, right_of = _TESTS[sign], left.evaluate, right.evaluate

    def evaluate(properties: str) -> Value:
        one, other = left_of(properties), right_of(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return test(_compare_doubles(_to_double(one), _to_double(other)), 0)
        return test(_compare(one, other), 0)

    program = _comparison_program(left, code, right)
    text = f"({left.text} {sign} {right.text})"
    return _node((left, right), evaluate, text, is_condition=True, program=program)


def _equal(left: _Node, right: _Node) -> _Node:
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: str) -> Value:
        one, other = left_of(properties), right_of(properties)
        if one is None or other is None:
            return True if other is one else (None if one is None else False)
        if isinstance(one, str) and isinstance(other, str):
            return one == other
        return _compare(one, other) == 0

    program = _comparison_program(left, filtercode.EQUAL, right)
    return _node((left, right), evaluate, f"({left.text} == {right.text})", is_condition=True, program=program)


def _null(node: _Node) -> _Node:
    equal = _equal(node, _NULL)
    return equal if node.name is None else attrs.evolve(equal, program=filtercode.absent(node.mark))


def _checked_equal(left: _Node, right: _Node) -> _Node:
    for side in (left, right):
        if side.is_constant and side.value is None:
            raise SubscriptionError(f"java.lang.RuntimeException: '{side.text}' cannot be compared.")
    if left.is_constant and right.is_constant and left.is_condition and not right.is_condition:
        raise SubscriptionError(f"java.lang.RuntimeException: '{left.text}' cannot be compared with '{right.text}'")
    return _equal(left, right)


def _check_limits(low: _Node, high: _Node) -> None:
    """Refuse BETWEEN with constants in the wrong order.  Java: ComparisonExpression#createBetween"""
    if not (low.is_constant and high.is_constant):
        return
    if low.value is None or high.value is None:
        raise SubscriptionError("java.lang.RuntimeException: Illegal values of between, values can not be null!")
    try:
        order = _compare(high.value, low.value)
    except _NotComparable:
        raise SubscriptionError(f"java.lang.RuntimeException: {low.text} and {high.text} cannot be compared") from None
    if order < 0:
        raise SubscriptionError(
            f"java.lang.RuntimeException: Illegal values of between, left value({low.value}) "
            f"must less than or equal to right value({high.value})"
        )


_NULL = _constant(None, "NULL")
_TEXT_TESTS: dict[str, tuple[Callable[[str, str], bool], int]] = {
    "CONTAINS": (str.__contains__, filtercode.ANYWHERE),
    "STARTSWITH": (str.startswith, filtercode.AT_START),
    "ENDSWITH": (str.endswith, filtercode.AT_END),
}


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer[Any, _Node]):
    """Makes nodes of what the parser finds; the methods have the names of the grammar's rules."""

    def string(self, token: str) -> _Node:
        return _constant(_unquoted(token), str(token))

    def integer(self, token: str) -> _Node:
        value = int(token.rstrip("lL")) if len(token) <= 20 else 1 << 63
        if value >= 1 << 63:
            raise SubscriptionError(f'java.lang.NumberFormatException: For input string: "{token.rstrip("lL")}"')
        return _constant(value if value < 1 << 31 else _Long(value), str(value))

    def double(self, token: str) -> _Node:
        value = float(token)
        if math.isinf(value):
            raise SubscriptionError(f"java.lang.RuntimeException: {token} is greater than 1.7976931348623157E308")
        if value == 0.0:
            raise SubscriptionError(f"java.lang.RuntimeException: {token} is less than 4.9E-324")
        return _constant(value, str(value))

    def true(self, token: str) -> _Node:
        return _constant(True, "TRUE")

    def false(self, token: str) -> _Node:
        return _constant(False, "FALSE")

    def null(self, token: str) -> _Node:
        return _NULL

    def property(self, token: str) -> _Node:
        mark = property_mark(token)
        return _Node(lambda properties: find_marked(properties, mark), str(token), name=str(token))

    def negate(self, inner: _Node) -> _Node:
        value_of = inner.evaluate

        def evaluate(properties: str) -> Value:
            value = value_of(properties)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return _Long(-value) if isinstance(value, _Long) else -value

        return _node((inner,), evaluate, f"(- {inner.text})")

    def not_(self, _not: str, inner: _Node) -> _Node:
        return _negated(inner)

    def or_(self, left: _Node, _or: str, right: _Node) -> _Node:
        return _joined("||", left, right)

    def and_(self, left: _Node, _and: str, right: _Node) -> _Node:
        return _joined("&&", left, right)

    def equal(self, left: _Node, _sign: str, right: _Node) -> _Node:
        return _checked_equal(left, right)

    def not_equal(self, left: _Node, _sign: str, right: _Node) -> _Node:
        return _negated(_checked_equal(left, right))

    def is_null(self, left: _Node, *_words: str) -> _Node:
        return _null(left)

    def is_not_null(self, left: _Node, *_words: str) -> _Node:
        return _negated(_null(left))

    def order(self, left: _Node, sign: str, right: _Node) -> _Node:
        return _ordered(left, sign, right)

    def between(self, value: _Node, *parts: Any) -> _Node:
        low, high = (part for part in parts if isinstance(part, _Node))
        if _is_not(parts):
            return _joined("||", _ordered(value, "<", low), _ordered(value, ">", high))
        _check_limits(low, high)
        return _joined("&&", _ordered(value, ">=", low), _ordered(value, "<=", high))

    def in_(self, left: _Node, *parts: str) -> _Node:
        if left.name is None:
            text = f"java.lang.RuntimeException: Expected a property for In expression, got: {left.text}"
            raise SubscriptionError(text)
        wanted = frozenset(_unquoted(part) for part in parts if part.startswith("'"))
        value_of, found = left.evaluate, not _is_not(parts)

        def evaluate(properties: str) -> Value:
            value = value_of(properties)
            return None if value is None else (value in wanted) is found

        program = filtercode.one_of(left.mark, sorted(wanted), found=found)
        return _node((left,), evaluate, f"{left.text} IN …", is_condition=True, program=program)

    def text(self, left: _Node, *parts: str) -> _Node:
        word, token = parts[-2:]
        (test, where), part = _TEXT_TESTS[word.upper()], _unquoted(token)
        value_of, found = left.evaluate, not _is_not(parts)

        def evaluate(properties: str) -> Value:
            value = value_of(properties)
            return isinstance(value, str) and part != "" and test(value, part) is found

        program = None if left.name is None else filtercode.find_text(left.mark, where, part, found=found)
        return _node((left,), evaluate, f"({word} {left.text})", is_condition=True, program=program)


def _is_not(parts: tuple[Any, ...]) -> bool:
    return isinstance(parts[0], str) and parts[0].upper() == "NOT"


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), maybe_placeholders=False)
