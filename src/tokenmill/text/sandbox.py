"""A Jinja environment for templates that nobody here has read, with limits on the time and memory that one may take.

Jinja's own sandbox keeps a template from Python's internals and from changing its inputs, but not from `range` inside
`range`, `x ~ x` in a loop, or lists nested so that their text has 2**40 letters. Here every render has a budget,
counted in characters, and each operation pays an upper bound of its cost before it runs: loop, macro and block bodies
at each pass; what is printed, compared, joined or used as a key by the length of its text; operators, filters, tests
and calls by their arguments, and by the product of these where time or text can grow by it (`replace`, `center`, …).
"""

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sized
from functools import partial, reduce, wraps
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenmill.errors import AS_TEXT, RequestError

BUDGET = 8_000_000  # characters: a quarter of a million steps, well under a second
BUDGET_PER_INPUT = 256  # so many more for each character that the caller passes
STEP = 32  # characters that take about as long as one step of the interpreter
ENTRY = 16  # characters that one entry of a container counts for
MAX_BITS = 4096  # of a whole number in arithmetic

# Methods that make bytes or tables; filters whose time is quadratic, or whose result is random.
REFUSED_METHODS = frozenset({"encode", "format_map", "fromkeys", "maketrans", "translate"})
REFUSED_FILTERS = frozenset("filesizeformat pprint random striptags urlize wordwrap xmlattr".split())
# These do not read what lies in the value that they are applied to: `messages | length` reads no message. `format` and
# `sum` do, and pay for it by themselves.
SHALLOW_FILTERS = frozenset(
    """attr count d default first float format int items last length list map reject rejectattr reverse select
    selectattr sum""".split()
)
SHALLOW_TESTS = frozenset(
    """boolean callable defined false float integer iterable mapping none number sameas sequence string true
    undefined""".split()
)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandboxed environment in which every render has a budget; RequestError when it is spent."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, **options: Any) -> None:
        # With a context, since Jinja then pays for constants too where they are printed, and not while it compiles.
        super().__init__(finalize=pass_context(lambda _, value: self.pay_for(value)), **options)
        self._budget = threading.local()  # what is left of this thread's render
        del self.globals["lipsum"]
        filters: dict[str, Any] = {**self.filters, "format": self._format, "sum": self._sum, "tojson": self._tojson}
        tests: dict[str, Any] = self.tests
        self.filters = {
            name: self._metered(function, shallow=name in SHALLOW_FILTERS, grows=name not in SHALLOW_FILTERS)
            for name, function in filters.items()
            if name not in REFUSED_FILTERS
        }
        self.tests = {name: self._metered(test, shallow=name in SHALLOW_TESTS) for name, test in tests.items()}

    def compile_bounded(self, source: str) -> Template:
        """Compile a template with its payments built in. jinja2.TemplateSyntaxError for a wrong one."""
        return self.from_string(_with_payments(self.parse(source)))

    def render_bounded(self, template: Template, variables: dict[str, Any]) -> str:
        """Render a template that `compile_bounded` made, within a budget that grows with the variables."""
        self._budget.limit = self._budget.left = BUDGET + BUDGET_PER_INPUT * _deep_size(variables)
        return template.render(variables)

    def pay(self, characters: int) -> None:
        """Take characters from this render's budget. RequestError when it is spent."""
        self._budget.left -= characters
        if self._budget.left < 0:
            raise RequestError(
                f"the chat template does more work than its limit of {self._budget.limit} characters allows; "
                f"{AS_TEXT}, or use a template that loops and repeats less"
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
        """Allow texts, lists and dicts their methods that make no bytes; other objects what Jinja's sandbox allows."""
        if isinstance(obj, (str, dict, list, tuple)):
            allowed = attr not in REFUSED_METHODS
        else:
            allowed = type(obj).__module__ != "builtins" or (obj is dict and attr == "fromkeys")
        return allowed and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look up `obj[argument]`, and pay for the argument: a key that is a tuple is hashed all the way down."""
        return super().getitem(obj, self.pay_for(argument))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Wrap `str.format`: fields may name arguments, but neither parts of them nor widths that are arguments."""
        if super().wrap_str_format(value) is None or value.__name__ != "format":
            return None
        text = value.__self__

        def format(*args: Any, **kwargs: Any) -> str:
            for _, name, form, _ in Formatter().parse(text):
                if re.search(r"\W", name or "") or "{" in (form or ""):
                    raise RequestError(f"the chat template formats with {text[:40]!r}; fields may name arguments only")
            self.pay(_formatted_size(text, [args, kwargs], self._budget.left))
            return str(value(*args, **kwargs))

        return format

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, MethodType) and obj.__self__ is self:
            return obj(*args)  # a payment itself
        if isinstance(obj, BuiltinMethodType):
            owner = obj.__self__
            grows, shallow = isinstance(owner, str), isinstance(owner, dict)
            args = self._admit((owner, *args), kwargs, shallow=shallow, grows=grows)[1:]
        elif not isinstance(obj, Macro):  # whose body pays for itself
            args = self._admit(args, kwargs)
        self.pay(STEP)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        size = _shallow_size(left) + _shallow_size(right)
        if operator == "%" and isinstance(left, str):
            size += _formatted_size(left, right, self._budget.left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            size += left.bit_length() * abs(right)
        elif operator == "*":
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and isinstance(repeated, Sized):
                size += abs(times) * _shallow_size(repeated)
        self.pay(STEP + size)
        return self.binop_table[operator](left, right)

    def _metered(self, function: Callable[..., Any], *, shallow: bool, grows: bool = False) -> Callable[..., Any]:
        """Make a filter or test that pays. Jinja's own that want the environment or context get it first."""
        skip = int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            admitted = self._admit(args[skip:], kwargs, shallow=shallow, grows=grows)
            return function(*args[:skip], *admitted, **kwargs)

        return metered

    def _admit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, shallow: bool = False, grows: bool = False
    ) -> tuple[Any, ...]:
        """Pay for arguments and return them; the others are applied to the first.

        `shallow`: of the first argument only the outside is read. `grows`: time or result can be as long as the first
        argument times all others, and times the numbers among them.
        """
        if not shallow:  # what an iterator yields has a size only once it is there
            args = tuple(list(map(self.pay_for, arg)) if isinstance(arg, Iterator) else arg for arg in args)
        subject, *others = (*args, *(value for key, value in kwargs.items() if not key.startswith("_"))) or (None,)
        first = _shallow_size(subject) if shallow else _deep_size(subject, self._budget.left)
        rest = sum(_deep_size(value, self._budget.left) for value in others)
        numbers = sum(abs(value) for value in others if isinstance(value, int))
        self.pay(STEP + ((1 + first) * (1 + rest + numbers) if grows else first + rest))
        return args

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Format as Jinja's `format` filter does, through the operator that it stands for."""
        return self.call_binop(None, "%", str(self.pay_for(value)), kwargs or args)

    def _sum(self, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
        """Add as Jinja's `sum` filter does, one paid addition at a time: over lists it is quadratic."""
        if attribute is not None:
            values = self.call_filter("map", values, kwargs={"attribute": attribute})
        return reduce(partial(self.call_binop, None, "+"), values, start)

    def _tojson(
        self, value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
    ) -> str:
        """Write JSON as Python does; Jinja's filter escapes for HTML. Paid piece by piece: indentation multiplies."""
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return "".join(map(self.pay_for, encoder.iterencode(value)))


def _with_payments(tree: nodes.Template) -> nodes.Template:
    """Have a template pay for its bodies at each pass, and for what it reads to its end; it is changed in place."""
    for node in list(tree.find_all(nodes.Node)):
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            # One pass costs a step, its literal text, and a step for every 16 simple nodes.
            literals = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
            price = STEP + literals + STEP // 16 * sum(1 for _ in node.find_all(nodes.Node))
            payment = _call("pay", nodes.Const(price))
            node.body.insert(0, nodes.ExprStmt(payment))
            if isinstance(node, nodes.For) and node.test is not None:  # what it leaves out costs too
                node.test = nodes.And(nodes.Not(payment), node.test)  # `pay` returns None
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node.node = _call("pay_for_copy", node.node)
        elif isinstance(node, nodes.Concat):
            node.nodes = [_call("pay_for", part) for part in node.nodes]
        elif isinstance(node, (nodes.Compare, nodes.Operand)):
            node.expr = _call("pay_for", node.expr)
        elif isinstance(node, nodes.Pair):
            node.key = _call("pay_for", node.key)
    tree.set_lineno(1)  # of the nodes that are new here
    return tree


def _call(method: str, argument: nodes.Expr) -> nodes.Call:
    # A node of its own kind, not a name: a template cannot write it, nor put something else in its place.
    return nodes.Call(nodes.EnvironmentAttribute(method), [argument], [], None, None)


def _shallow_size(value: Any) -> int:
    """Count the characters of a value without what lies in it; RequestError for an enormous number."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise RequestError(
            f"the chat template computes with a number of {value.bit_length()} bits; at most {MAX_BITS} are "
            f"allowed: {AS_TEXT}, or use another template"
        )
    return ENTRY * (1 + len(value)) if isinstance(value, Sized) else ENTRY


def _deep_size(value: Any, enough: int | None = None) -> int:
    """Count the characters in the text of a value, roughly, and at most until there are `enough`."""
    total, waiting = 0, [value]
    while waiting and (enough is None or total <= enough):
        item = waiting.pop()
        total += _shallow_size(item)
        if isinstance(item, Collection) and not isinstance(item, (str, range)):
            waiting += item.items() if isinstance(item, dict) else item
    return total


def _formatted_size(text: str, values: Any, enough: int) -> int:
    """Return the largest size of a formatted text: every field as wide as the largest number there, and all values."""
    widths = [int(digits) for digits in re.findall(r"\d{1,9}", text)]
    if "*" in text:
        widths += [abs(v) for v in (values if isinstance(values, tuple) else (values,)) if isinstance(v, int)]
    fields = text.count("%") + text.count("{")
    return len(text) + fields * (max(widths, default=0) + _deep_size(values, enough))
