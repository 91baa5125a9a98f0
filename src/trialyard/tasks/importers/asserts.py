"""One ``assert`` of a data set as a case: what the candidate computes, what it must be.

The expected side never goes to the candidate. Forms, best first:

1. ``assert f(<literals>) == <literal>``: a plain call;
2. ``assert <expression with f> == <literal>``: the left side is evaluated in the
   candidate's module (its classes, ``int``, set-up code), the value is compared outside;
3. the right side is not a literal: a clean box computes it;
4. ``isclose``, ``abs(a - b) < eps``: a comparison with tolerance;
5. ``assert e``, ``assert not e``, ``e is True``: the truth value counts.

Literals may contain arithmetic and calls of the plain containers, as in ``1.0/3`` or
``set([1, 2])``. Comparison is Python's ``==`` on the plain values.
"""

import ast
import builtins
import warnings
from typing import Any

from trialyard.core import plain
from trialyard.core.cases import Case
from trialyard.core.errors import TaskError

_CONSTRUCTORS: dict[str, Any] = {
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "sorted": sorted,
    "float": float,
    "complex": complex,
}
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_SIGNS: dict[type[ast.unaryop], Any] = {ast.USub: lambda a: -a, ast.UAdd: lambda a: +a}
_DEFAULT_TOLERANCE = 1e-9
_MODULES = frozenset({"sys", "math", "collections"})


def entry_function(tests: list[str], code: str) -> str:
    """The function under test: defined by the reference and called by the tests."""
    tree = _parse(code, "the reference code")
    definitions = (ast.FunctionDef, ast.ClassDef)
    defined = [node.name for node in tree.body if isinstance(node, definitions)]
    called = [
        node.func.id
        for test in tests
        for node in ast.walk(_parse(test, "a test"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    functions = [name for name in called if name in defined]
    functions = functions or [name for name in called if name not in vars(builtins)]
    if not functions:
        raise TaskError("no test calls a function of the reference code")
    return functions[0]


def case_of(test: str, function: str, *, setup: str = "") -> Case:
    """The case of one assert statement. Raises `TaskError` when it is no assert."""
    body = _parse(test, "a test").body
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise TaskError(f"a test must be one assert statement: {test[:80]!r}")
    return _Assertion(function, setup).case(body[0].test)


def _parse(source: str, what: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings are the data's own affair
            return ast.parse(source.strip())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TaskError(f"{what} is not Python: {source[:80]!r}: {error}") from error


class _Assertion:
    def __init__(self, function: str, setup: str) -> None:
        self.function, self.setup = function, setup

    def case(self, node: ast.expr) -> Case:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._computed(node.operand, expected=False, compare="truth")
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            case = self._comparison(node.left, node.ops[0], node.comparators[0])
        elif isinstance(node, ast.Call):
            case = self._isclose(node)
        else:
            case = None
        return case or self._computed(node, expected=True, compare="truth")

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Case | None:
        if isinstance(op, (ast.Lt, ast.LtE)):
            return self._difference(left, right)
        if not isinstance(op, (ast.Eq, ast.Is)):
            return None
        if not self._calls_function(left):
            left, right = right, left
        if self._calls_function(right):
            return None
        try:
            return self._computed(left, expected=literal(right), compare="equal")
        except ValueError:
            return self._computed(left, expected_source=_source(right), compare="equal")

    def _difference(self, left: ast.expr, limit: ast.expr) -> Case | None:
        """``abs(a - b) < eps`` with the function on one side."""
        match left:
            case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(left=a, op=ast.Sub(), right=b)]):
                return self._close(a, b, limit)
        return None

    def _isclose(self, node: ast.Call) -> Case | None:
        if ast.unparse(node.func) not in ("math.isclose", "isclose") or len(node.args) != 2:
            return None
        limits = [keyword.value for keyword in node.keywords]
        return self._close(node.args[0], node.args[1], limits[0] if limits else None)

    def _close(self, a: ast.expr, b: ast.expr, limit: ast.expr | None) -> Case | None:
        if not self._calls_function(a):
            a, b = b, a
        try:
            tolerance = float(literal(limit)) if limit is not None else _DEFAULT_TOLERANCE
            return self._computed(a, expected=literal(b), compare="equal", tolerance=tolerance)
        except (ValueError, TypeError):
            return None

    def _computed(self, node: ast.expr, **wanted: Any) -> Case:
        """What the candidate computes: a plain call where possible, else an expression."""
        match node:
            case ast.Call(func=ast.Name(id=self.function)) if not self.setup:
                try:
                    args = tuple(literal(argument) for argument in node.args)
                    kwargs = {str(k.arg): literal(k.value) for k in node.keywords if k.arg}
                    if len(kwargs) == len(node.keywords):
                        return Case(args=args, kwargs=kwargs, **wanted)
                except ValueError:
                    pass
        return Case(expression=ast.unparse(node), setup=self.setup, **wanted)

    def _calls_function(self, node: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id == self.function for n in ast.walk(node))


def literal(node: ast.expr) -> Any:
    """Value of a literal, with arithmetic and plain containers. Raises `ValueError`."""
    try:
        value = _evaluate(node)
        plain.encode(value)
    except (TypeError, ArithmeticError, RecursionError, plain.PlainError) as error:
        raise ValueError(f"not a plain literal: {error}") from error
    return value


def _evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item) for item in items)
        case ast.Set(elts=items):
            return {_evaluate(item) for item in items}
        case ast.Dict(keys=keys, values=values) if all(keys):
            pairs = zip(keys, values, strict=True)
            return {_evaluate(key): _evaluate(value) for key, value in pairs if key}
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _SIGNS[type(op)](_evaluate(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            numbers = _evaluate(left), _evaluate(right)
            if all(type(number) in (int, float, complex) for number in numbers):
                return _OPERATORS[type(op)](*numbers)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CONSTRUCTORS:
            return _CONSTRUCTORS[name](*(_evaluate(argument) for argument in args))
    raise ValueError(f"not a literal: {ast.unparse(node)[:80]}")


class _Imports(ast.NodeTransformer):
    """``sys.x`` with no import beside it, as an expression that stands alone."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in _MODULES:
            return node
        function = ast.Name("__import__", ast.Load())
        return ast.Call(func=function, args=[ast.Constant(node.id)], keywords=[])


def _source(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(_Imports().visit(node)))
