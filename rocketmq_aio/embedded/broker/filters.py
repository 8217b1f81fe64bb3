"""Message filters: tag expressions by hash, and SQL92 conditions over properties."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.errors import shown
from rocketmq_aio.protocol.subscription import java_hash

Matches = Callable[[StoredMessage], bool]
Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]

MAX_DEPTH: Final = 100  # of nested operators
MAX_CHAINED: Final = 100  # comparisons of the result of a comparison, such as a = b = c
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_DIGITS: Final = 20  # of a long, with its suffix
MAX_DOUBLE: Final = sys.float_info.max
_JAVA_BLANKS: Final = bytes(range(33)).decode()  # which Double.parseDouble ignores
_LONG: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)"
)
_LINE_COMMENT: Final = r"|--[^\n\r]*[\n\r]"
_TOKENS: Final = r"""(?P<blank>\s+|/\*.*?\*/%s)
    |(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<long>0|[1-9][0-9]*)[lL]?
    |(?P<string>'(?:[^']++|'')*+')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<symbol><>|>=|<=|[=<>(),+-])"""
_TOKEN: Final = re.compile(_TOKENS % _LINE_COMMENT, re.VERBOSE | re.DOTALL)
# A comment has to end with its line: looking for that end at each `--` would take quadratic time.
_TOKEN_OF_LAST_LINE: Final = re.compile(_TOKENS % "", re.VERBOSE | re.DOTALL)
_WORDS: Final = frozenset("NOT AND OR BETWEEN IN TRUE FALSE NULL IS".split())
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_COMPARISONS: Final = frozenset(
    ["=", "<>", "IS", "<", "<=", ">", ">=", "NOT", "BETWEEN", "IN", *_TEXT_TESTS]
)


class FilterError(ValueError):
    """An expression that brokers reject; the message becomes a remark of the response."""

    def __init__(self, reason: str) -> None:
        super().__init__(shown(reason))


@lru_cache(maxsize=1024)
def compile_filter(expression: str, kind: str | None, *, is_5: bool) -> Matches | None:
    """Return the filter of a subscription; None: every message passes.

    Like brokers, tags match by their hash, and unknown kinds match everything.

    :param is_5: 5.x, whose SQL has CONTAINS, STARTSWITH and ENDSWITH
    :raises FilterError: the expression is invalid
    """
    if kind == "SQL92":
        condition = compile_sql(expression, is_5=is_5)
        return lambda stored: condition(stored.properties)
    if kind not in (None, "", "TAG") or expression in ("", "*"):
        return None
    tags = [tag for tag in expression.split("||") if tag]
    if not tags:
        raise FilterError("there is no tag in the expression")
    hashes = {_tag_hash(tag.strip()) for tag in tags if tag.strip()}  # none: nothing matches
    return lambda stored: (tag := stored.tag) is not None and _tag_hash(tag) in hashes


_tag_hash = lru_cache(maxsize=4096)(java_hash)


def compile_sql(expression: str, *, is_5: bool = True) -> Callable[[Mapping[str, str]], bool]:
    """Return an SQL92 condition over the properties of a message.

    A condition that fails on a message, such as a number compared to text, does not match it.

    :raises FilterError: brokers reject the expression
    """
    evaluate = _Parser(expression, is_5=is_5).parse()

    def condition(properties: Mapping[str, str]) -> bool:
        try:
            return evaluate(properties) is True
        except (ValueError, OverflowError):
            return False

    return condition


# --- nodes --------------------------------------------------------------------------------------


class _Node(NamedTuple):
    """A part of an expression; *kind* decides where it is allowed."""

    kind: str  # property, number, negative, string, boolean, null, condition
    evaluate: Evaluate
    value: Value = None  # of a constant

    def as_condition(self) -> Evaluate:
        """Return the node as true, false or unknown; other values are false."""
        evaluate = self.evaluate
        if self.kind in ("number", "negative", "string"):
            raise FilterError(f"Expression will not result in a boolean value: {self.value!r}")
        if self.kind != "property":
            return evaluate
        return lambda properties: None if evaluate(properties) is None else False


def _constant(kind: str, value: Value) -> _Node:
    return _Node(kind, lambda _: value, value)


def _condition(evaluate: Evaluate) -> _Node:
    return _Node("condition", evaluate)


def _not(node: _Node) -> _Node:
    evaluate = node.as_condition()
    return _condition(
        lambda properties: None if (value := evaluate(properties)) is None else not value
    )


def _joined(parts: Sequence[Evaluate], *, decisive: bool) -> _Node:
    """Return AND of *parts* if false is *decisive*, OR if true is; parts may be unknown."""

    def joined(properties: Mapping[str, str]) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            result = None if value is None else result
        return result

    return _condition(joined)


def _equal(left: _Node, right: _Node) -> _Node:
    one, other = left.evaluate, right.evaluate

    def equal(properties: Mapping[str, str]) -> Value:
        a, b = one(properties), other(properties)
        if a is None or b is None:  # as brokers do: null = null is true, null = 1 unknown
            return True if b is a else (None if a is None else False)
        return _compared(a, b) == 0

    return _condition(equal)


def _ordered(left: _Node, symbol: str, right: _Node) -> _Node:
    for node in (left, right):
        if node.kind not in ("property", "number", "negative"):
            raise FilterError(f"Value {node.value!r} cannot be compared.")
    one, other = left.evaluate, right.evaluate
    accepted = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (1, 0)}[symbol]

    def ordered(properties: Mapping[str, str]) -> Value:
        a, b = one(properties), other(properties)
        if a is None or b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            a, b = _converted(a, 0.0), _converted(b, 0.0)
        return _compared(a, b) in accepted

    return _condition(ordered)


def _compared(a: Value, b: Value) -> int | None:
    """Return -1, 0 or 1; None: values of these types do not compare.

    :raises ValueError: text that is compared to a number is none
    """
    if isinstance(a, bool) and isinstance(b, str):  # which brokers fail to convert
        raise ValueError(b)
    if isinstance(a, str) and not isinstance(b, str):
        a = _converted(a, b)
    elif isinstance(b, str) and not isinstance(a, str):
        b = _converted(b, a)
    if isinstance(a, bool) != isinstance(b, bool):
        return None
    if a != a or b != b:  # NaN equals itself, and is above all others
        return (a != a) - (b != b)
    return (a > b) - (a < b)  # type: ignore[operator]


def _converted(text: str, like: Value) -> Value:
    if isinstance(like, bool):
        return text.lower() == "true"
    if isinstance(like, float):
        stripped = text.strip(_JAVA_BLANKS)
        if not _DOUBLE.fullmatch(stripped):
            raise ValueError(text)
        return float(stripped.rstrip("fFdD") or stripped)
    # Brokers read the text as the type of the other number: an int, where that fits into one.
    most = MAX_INT if isinstance(like, int) and abs(like) <= MAX_INT else MAX_LONG
    if not _LONG.fullmatch(text) or not -most - 1 <= int(text) <= most:
        raise ValueError(text)
    return int(text)


# --- parser -------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str  # a keyword or symbol, or: name, string, number, end
    text: str
    value: Value = None


class _Parser:
    """Recursive-descent parser; like that of brokers, it ignores what follows an expression."""

    def __init__(self, text: str, *, is_5: bool) -> None:
        self._words = _WORDS | _TEXT_TESTS.keys() if is_5 else _WORDS
        self._tokens = self._scan(text)
        self._token = next(self._tokens)
        self._depth = 0
        self._comparisons = 0  # of the result of another

    def parse(self) -> Evaluate:
        return self._disjunction().as_condition()

    def _scan(self, text: str) -> Iterator[_Token]:
        at, last_line = 0, 1 + max(text.rfind("\n"), text.rfind("\r"))
        while at < len(text):
            found = (_TOKEN if at < last_line else _TOKEN_OF_LAST_LINE).match(text, at)
            if found is None:
                raise FilterError(f"Lexical error at column {at + 1}: {text[at]!r}")
            at = found.end()
            if found.lastgroup != "blank":
                yield self._scanned(str(found.lastgroup), found.group(str(found.lastgroup)))
        while True:
            yield _Token("end", "<EOF>")

    def _scanned(self, kind: str, text: str) -> _Token:
        if kind == "symbol":
            return _Token(text, text)
        if kind == "name":
            word = text.upper()
            return _Token(word if word in self._words else "name", text)
        if kind == "string":
            return _Token(kind, text, text[1:-1].replace("''", "'"))
        return _Token("number", text, _number(kind, text))

    def _advance(self) -> _Token:
        token, self._token = self._token, next(self._tokens)
        return token

    def _accept(self, *kinds: str) -> _Token | None:
        return self._advance() if self._token.kind in kinds else None

    def _expect(self, kind: str) -> _Token:
        return self._accept(kind) or self._fail()

    def _fail(self) -> NoReturn:
        raise FilterError(f"ParseException: Encountered {self._token.text!r}")

    def _disjunction(self) -> _Node:
        return self._operands("OR", self._conjunction, decisive=True)

    def _conjunction(self) -> _Node:
        return self._operands("AND", self._equality, decisive=False)

    def _operands(self, word: str, operand: Callable[[], _Node], *, decisive: bool) -> _Node:
        node, parts = operand(), []
        while self._accept(word):
            parts.append(operand().as_condition())
        return _joined([node.as_condition(), *parts], decisive=decisive) if parts else node

    def _equality(self) -> _Node:
        node = self._comparison()
        while token := self._accept("=", "<>", "IS"):
            if token.kind == "IS":
                negated = self._accept("NOT")
                self._expect("NULL")
                node = _equal(node, _constant("null", None))
            else:
                negated = token if token.kind == "<>" else None
                other = self._comparison()
                _check_equality(node, other)
                node = _equal(node, other)
            node = self._chained(_not(node) if negated else node)
        return node

    def _comparison(self) -> _Node:
        node = self._unary()
        while True:
            if token := self._accept("<", "<=", ">", ">="):
                node = self._chained(_ordered(node, token.kind, self._unary()))
                continue
            negated = self._accept("NOT")
            if token := self._accept(*_TEXT_TESTS):
                node = self._chained(self._text_test(node, token.kind, wanted=not negated))
                continue
            if self._accept("BETWEEN"):
                test = self._between(node, checked=not negated)
            elif self._accept("IN"):
                test = self._in(node)
            elif negated:
                self._fail()
            else:
                return node
            node = self._chained(_not(test) if negated else test)

    def _chained(self, node: _Node) -> _Node:
        """Return *node*; FilterError if there are too many for the stack."""
        self._comparisons += 1 if self._token.kind in _COMPARISONS else 0
        if self._comparisons > MAX_CHAINED:
            raise FilterError("too many comparisons are chained")
        return node

    def _between(self, node: _Node, *, checked: bool) -> _Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        above, below = _ordered(node, ">=", low), _ordered(node, "<=", high)
        numbers = low.kind == high.kind == "number"
        if checked and numbers and _compared(low.value, high.value) == 1:
            raise FilterError("Illegal values of between, left value must be less than right")
        return _joined([above.evaluate, below.evaluate], decisive=False)

    def _in(self, node: _Node) -> _Node:
        if node.kind != "property":
            raise FilterError("Expected a property for In expression")
        self._expect("(")
        values = {self._expect("string").value}
        while self._accept(","):
            values.add(self._expect("string").value)
        self._expect(")")
        evaluate = node.evaluate
        return _condition(
            lambda properties: None if (v := evaluate(properties)) is None else v in values
        )

    def _text_test(self, node: _Node, word: str, *, wanted: bool) -> _Node:
        """Return a test of text, or its negation; both are false for other values."""
        part, evaluate, test = str(self._expect("string").value), node.evaluate, _TEXT_TESTS[word]

        def tested(properties: Mapping[str, str]) -> Value:
            value = evaluate(properties)
            return part != "" and isinstance(value, str) and test(value, part) is wanted

        return _condition(tested)

    def _unary(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterError("the expression is nested too deeply")
        try:
            if self._accept("NOT"):
                return _not(self._unary())
            if self._accept("+"):
                return self._unary()
            if self._accept("-"):
                return _negative(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> _Node:
        token = self._advance() if self._token.kind != "end" else self._fail()
        if token.kind == "name":
            return _Node("property", lambda properties: properties.get(token.text), token.text)
        if token.kind == "number" and token.value is None:
            raise FilterError(f"too large or too small: the number {token.text}")
        if token.kind in ("number", "string"):
            return _constant(token.kind, token.value)
        if token.kind in ("TRUE", "FALSE"):
            return _constant("boolean", token.kind == "TRUE")
        if token.kind == "NULL":
            return _constant("null", None)
        if token.kind != "(":
            raise FilterError(f"ParseException: Encountered {token.text!r}")
        node = self._disjunction()
        self._expect(")")
        return node


def _number(kind: str, text: str) -> float | None:
    """Return the value of a number; None: brokers reject it, such as 0.0."""
    if kind == "float":
        value = float(text)
        return value if 0 < value <= MAX_DOUBLE else None
    return int(text) if len(text) <= MAX_DIGITS and int(text) <= MAX_LONG else None


def _check_equality(left: _Node, right: _Node) -> None:
    if "null" in (left.kind, right.kind):
        raise FilterError("'NULL' cannot be compared.")
    if left.kind == "boolean" and right.kind in ("number", "string"):
        raise FilterError(f"a boolean cannot be compared with {right.value!r}")


def _negative(node: _Node) -> _Node:
    evaluate = node.evaluate

    def negative(properties: Mapping[str, str]) -> Value:
        value = evaluate(properties)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
        return None

    return _Node("negative", negative, node.value)
