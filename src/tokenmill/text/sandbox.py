"""A Jinja environment for templates that nobody here has read: they can neither reach Python nor run away.

Jinja's own sandbox keeps a template from Python's internals and from changing its inputs, but not from `range` inside
`range`, `x ~ x` in a loop, or lists nested so that their text has 2**40 letters. Here every render has a budget,
counted in characters, and each thing a template does is paid by an upper bound of what it costs:

 - the tree of the template is rewritten: loop, macro and block bodies pay at each pass; what is printed, compared,
   joined by `~` or used as a key pays the length of its text;
 - operators, filters, tests and calls pay for their arguments, and for the product of the two largest where time or
   text can grow by it (`replace`, `join`, `center`, …), so that no single operation is out of proportion;
 - methods that make bytes or tables, and filters whose time is quadratic, are not there at all.

This file knows nothing of chats.
"""

import re
import threading
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sized, ValuesView
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Environment, Template, nodes, pass_environment
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from tokenmill.errors import RequestError

__all__ = ["BoundedEnvironment"]

BUDGET = 8_000_000  # characters: a quarter of a million steps, well under a second
BUDGET_PER_INPUT = 256  # so many more for each character that the caller passes
STEP = 32  # characters that take about as long as one step of the interpreter
ENTRY = 16  # characters that one entry of a container counts for
MAX_DEPTH = 60  # calls within calls; each takes several frames of Python's thousand
MAX_BITS = 4096  # of a whole number in arithmetic
MAX_DIGITS = 4  # of a width or precision in a format

REFUSED_METHODS = frozenset({"encode", "format_map", "fromkeys", "maketrans", "translate"})
REFUSED_FILTERS = frozenset("filesizeformat pprint random striptags tojson urlize wordwrap xmlattr".split())
# Filters and tests that look at the outside of what they are applied to: `messages | length` reads no message.
SHALLOW = frozenset(
    """boolean callable count d default defined false first float integer items iterable last length list map mapping
    none number reject rejectattr reverse sameas select selectattr sequence string true undefined""".split()
)
# Filters and methods of texts that take time and memory for the sum of their arguments, at most; `format` and `sum` pay
# for each part by itself.
LINEAR = frozenset({"attr", "endswith", "format", "removeprefix", "removesuffix", "startswith", "sum"})


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandboxed environment in which every render has a budget; RequestError when it is spent."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._budget = _Budget()
        del self.globals["lipsum"]
        filters: dict[str, Any] = {**self.filters, "format": _format, "sum": _sum}
        tests: dict[str, Any] = self.tests
        self.filters = {}
        for name in filters.keys() - REFUSED_FILTERS:
            self.add_filter(name, filters[name])
        self.tests = {name: self._metered(test, shallow=name in SHALLOW, grows=False) for name, test in tests.items()}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Give templates a filter, which pays like the others."""
        self.filters[name] = self._metered(
            function, shallow=name in SHALLOW - {"string"}, grows=name not in SHALLOW | LINEAR
        )

    def compile_bounded(self, source: str) -> Template:
        """The template with its payments built in; jinja2.TemplateSyntaxError where it is not one."""
        tree = _Payments().visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def render_bounded(self, template: Template, variables: dict[str, Any]) -> str:
        """The text of a template that `compile_bounded` made, within a budget that grows with the variables."""
        size = _deep_size(variables)
        self._budget.limit = self._budget.left = BUDGET + BUDGET_PER_INPUT * size
        self._budget.depth = 0
        return template.render(variables)

    def pay(self, characters: int) -> None:
        """Take so much from the budget of this render."""
        self._budget.left -= characters
        if self._budget.left < 0:
            raise RequestError(
                f"the chat template does more work than its limit of {self._budget.limit} characters allows; "
                "pass the prompt without --chat, or use a template that loops and repeats less"
            )

    def pay_for(self, value: Any) -> Any:
        """Pay for the text of a value, however deep, and hand it on."""
        self.pay(STEP + _deep_size(value, self._budget.left))
        return value

    def pay_for_copy(self, value: Any) -> Any:
        """Pay for a new text or container, not for what lies in it, and hand it on."""
        self.pay(STEP + _shallow_size(value))
        return value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Texts, lists and dicts have their methods that make no bytes; other objects what Jinja's sandbox allows."""
        builtin = isinstance(obj, (str, dict, list, tuple))
        allowed = attr not in REFUSED_METHODS if builtin else type(obj).__module__ != "builtins"
        return allowed and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, paid field by field."""
        if super().wrap_str_format(value) is None or value.__name__ != "format":
            return None
        formatter = _BoundedFormatter(self)

        def format(*args: Any, **kwargs: Any) -> str:
            return formatter.vformat(value.__self__, args, kwargs)

        return format

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call from a template: paid before and after, and bounded in depth."""
        if isinstance(obj, MethodType) and obj.__self__ is self:
            return obj(*args)  # a payment itself
        self.pay(STEP)
        if isinstance(obj, BuiltinMethodType) and obj.__self__ is not None:
            owner, name = obj.__self__, obj.__name__
            grows = isinstance(owner, str) and name not in LINEAR
            args = self._admit((owner, *args), kwargs, shallow=isinstance(owner, dict), grows=grows)[1:]
        elif not isinstance(obj, Macro):
            args = self._admit(args, kwargs, shallow=False, grows=False)
        if self._budget.depth == MAX_DEPTH:
            raise RequestError(
                f"the chat template calls itself more than {MAX_DEPTH} levels deep; use another template"
            )
        self._budget.depth += 1
        try:
            return self.pay_for_copy(super().call(context, obj, *args, **kwargs))
        finally:
            self._budget.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator: whole numbers stay small, and what grows is paid before it is there."""
        for number in (left, right):
            if isinstance(number, int) and number.bit_length() > MAX_BITS:
                raise RequestError(
                    f"the chat template computes with a number of {number.bit_length()} bits; at most {MAX_BITS} are "
                    "allowed, so pass the prompt without --chat, or use another template"
                )
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self.pay(left.bit_length() * abs(right))
        elif operator == "*":
            self.pay(_product(left, right))
        elif operator == "%" and isinstance(left, str):
            self.pay(_percent_size(left, right, self._budget.left))
        return self.pay_for_copy(super().call_binop(context, operator, left, right))

    def _metered(self, function: Callable[..., Any], *, shallow: bool, grows: bool) -> Callable[..., Any]:
        """A filter or test that pays. Those of Jinja that want the environment or context get it first."""
        skip = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            admitted = self._admit(args[skip:], kwargs, shallow=shallow, grows=grows)
            return self.pay_for_copy(function(*args[:skip], *admitted, **kwargs))

        return metered

    def _admit(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shallow: bool, grows: bool) -> tuple[Any, ...]:
        """Pay for arguments; the first is what the others are applied to. `grows`: and for their product."""
        if not shallow:  # what an iterator yields has a size only once it is there
            args = tuple(self._drained(value) if isinstance(value, Iterator) else value for value in args)
        subject, *others = (*args, *(value for key, value in kwargs.items() if not key.startswith("_"))) or (None,)
        left = self._budget.left
        sizes = [_shallow_size(subject) if shallow else _deep_size(subject, left)]
        sizes += [_deep_size(value, left) for value in others]
        self.pay(STEP + sum(sizes))
        if grows:
            numbers = [abs(value) for value in others if isinstance(value, int)]
            sizes.sort()
            self.pay(sizes[-1] * max(numbers, default=0) + (sizes[-1] * sizes[-2] if others else 0))
        return args

    def _drained(self, values: Iterator[Any]) -> Iterator[Any]:
        return iter([self.pay_for(value) for value in values])


class _Budget(threading.local):
    """What is left of this thread's render."""

    limit = left = BUDGET
    depth = 0


class _Payments(NodeTransformer):
    """Writes the payments into the tree of a template."""

    def visit_body(self, node: Any) -> nodes.Node:
        payment = _call("pay", nodes.Const(_price(node)), node)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(payment, lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:  # what is left out costs too; `pay` returns None
            node.test = nodes.And(nodes.Not(payment), node.test, lineno=node.lineno)
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = visit_Block = visit_body

    def visit_reader(self, node: Any) -> nodes.Node:
        """What reads its parts to their ends: a text that is printed, a value that is compared, a key."""
        self.generic_visit(node)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return _call("pay_for_copy", node, node)
        for name in READ[type(node)]:
            part = getattr(node, name)
            setattr(node, name, [_paid(child) for child in part] if isinstance(part, list) else _paid(part))
        return node  # type: ignore[no-any-return]

    visit_Output = visit_Concat = visit_Compare = visit_Operand = visit_Getitem = visit_Pair = visit_reader


READ: dict[type[nodes.Node], tuple[str, ...]] = {
    nodes.Output: ("nodes",),
    nodes.Concat: ("nodes",),
    nodes.Compare: ("expr",),
    nodes.Operand: ("expr",),
    nodes.Getitem: ("arg",),  # a tuple is hashed all the way down
    nodes.Pair: ("key",),
}


def _paid(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, (nodes.Const, nodes.TemplateData)) else _call("pay_for", node, node)


def _price(node: nodes.Node) -> int:
    """Of one pass: a step, its literal text, and a step for every 16 simple nodes."""
    literals = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    return STEP + literals + STEP // 16 * sum(1 for _ in node.find_all(nodes.Node))


def _call(method: str, argument: nodes.Expr, where: nodes.Node) -> nodes.Call:
    # A node of its own kind, not a name: a template cannot write it, nor put something else in its place.
    attribute = nodes.EnvironmentAttribute(method, lineno=where.lineno)
    return nodes.Call(attribute, [argument], [], None, None, lineno=where.lineno)


class _BoundedFormatter(SandboxedFormatter):
    """`str.format` that pays for each field and refuses absurd widths, wherever they come from."""

    _env: BoundedEnvironment

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(self._env.pay_for(value), conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if widths := re.search(rf"\d{{{MAX_DIGITS + 1},}}", format_spec):
            raise RequestError(
                f"the chat template formats with a width of {widths[0][:12]}; at most {MAX_DIGITS} digits are allowed"
            )
        return str(self._env.pay_for(super().format_field(value, format_spec)))


@pass_environment
def _format(environment: Environment, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Jinja's `format` filter, through the operator that it stands for."""
    assert isinstance(environment, BoundedEnvironment)
    return environment.call_binop(None, "%", str(value), kwargs or args)  # type: ignore[arg-type]


@pass_environment
def _sum(environment: Environment, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum` filter, one paid addition at a time: over lists it is quadratic."""
    assert isinstance(environment, BoundedEnvironment)
    if attribute is not None:
        values = environment.call_filter("map", values, kwargs={"attribute": attribute})
    for value in values:
        start = environment.call_binop(None, "+", start, value)  # type: ignore[arg-type]
    return start


def _shallow_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return 8 + value.bit_length() // 8
    return ENTRY * (1 + len(value)) if isinstance(value, Sized) else ENTRY


def _deep_size(value: Any, enough: int | None = None) -> int:
    """Characters in the text of a value, roughly; the walk ends when there are `enough`."""
    total, waiting = 0, [value]
    while waiting and (enough is None or total <= enough):
        item = waiting.pop()
        total += _shallow_size(item)
        if isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, (list, tuple, set, KeysView, ValuesView, ItemsView)):
            waiting += item
    return total


def _product(left: Any, right: Any) -> int:
    """What `left * right` takes when it repeats a text or a list; numbers are cheap."""
    times, repeated = (left, right) if isinstance(left, int) else (right, left)
    return abs(times) * _shallow_size(repeated) if isinstance(times, int) and isinstance(repeated, Sized) else 0


def _percent_size(text: str, values: Any, enough: int) -> int:
    """What `text % values` takes at most: every field as wide as the largest number there, and all values."""
    widths = [int(digits) for digits in re.findall(r"\d{1,9}", text)]
    if "*" in text:
        widths += [abs(v) for v in (values if isinstance(values, tuple) else (values,)) if isinstance(v, int)]
    return len(text) + text.count("%") * (max(widths, default=0) + _deep_size(values, enough))
