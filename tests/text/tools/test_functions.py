"""The functions of a request and the choice among them, as OpenAI's API has them."""

import pytest

from tokenmill.errors import RequestError
from tokenmill.text.tools.functions import NO_PARAMETERS, Function, ToolChoice, read_choice, read_functions


def tool(name="f", **more):
    return {"type": "function", "function": {"name": name, **more}}


FUNCTIONS = read_functions([tool("f"), tool("g.h-i")])


def test_functions_are_read():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert read_functions([tool("a", description="Does.", parameters=schema, strict=True), tool("b")]) == (
        Function("a", "Does.", schema, True),
        Function("b", "", NO_PARAMETERS, None),
    )
    assert read_functions([{"function": {"name": "a"}}])[0].name == "a"
    assert [each.name for each in read_functions([tool("21st-x"), tool("-x")])] == ["21st-x", "-x"]
    assert Function("a", "", schema, strict=False).schema == {"type": "object"}


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([tool("f"), tool("g"), tool("f")], r"tools\[2\]: a second function 'f': give each a name of its own"),
        (["f"], r"tools\[0\] is not allowed"),
        ([{"type": "other", "function": {"name": "f"}}], r"tools\[0\] is not allowed"),
        ([tool("")], r"tools\[0\]: the name '' is not allowed"),
        ([tool("a b")], "the name 'a b' is not allowed: letters, digits and _"),
        ([tool("a\n")], "the name"),
        ([tool(None)], "the name"),
        ([tool("f", description=3)], "the description of 'f' must be a text"),
        ([tool("f", parameters="x")], "the parameters of 'f' must be a JSON schema"),
        ([tool("f", strict="yes")], "strict = 'yes' is not allowed: true or false"),
    ],
)
def test_what_is_no_list_of_functions_is_refused(tools, message):
    with pytest.raises(RequestError, match=message):
        read_functions(tools)


@pytest.mark.parametrize(
    ("given", "parallel", "choice"),
    [
        (None, None, ToolChoice("auto")),
        ("auto", False, ToolChoice("auto", parallel=False)),
        ("none", None, ToolChoice("none")),
        ("required", True, ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, None, ToolChoice("required", "f", False)),
        ({"type": "function", "name": "f"}, True, ToolChoice("required", "f", False)),
        ({"type": "custom", "custom": {"name": "f"}}, None, ToolChoice("required", "f", False)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("f")]}},
            None,
            ToolChoice("auto", allowed=("f",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g.h-i"}]},
            False,
            ToolChoice("required", None, False, ("g.h-i",)),
        ),
    ],
)
def test_choices_are_read(given, parallel, choice):
    assert read_choice(given, FUNCTIONS, parallel) == choice


@pytest.mark.parametrize(
    ("given", "functions", "message"),
    [
        ({"type": "function", "function": {"name": "x"}}, FUNCTIONS, "names the function 'x', .* tools: f, g.h-i"),
        ({"type": "function", "function": {"name": "x"}}, (), "which is not among tools: none"),
        ({"type": "other"}, FUNCTIONS, "tool_choice = .* is not allowed"),
        ({"type": "allowed_tools", "allowed_tools": 1}, FUNCTIONS, "tool_choice = 1 is not allowed"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, FUNCTIONS, "tool_choice = .* is not allowed"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [tool("x")]}, FUNCTIONS, "names the function 'x'"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [1]}, FUNCTIONS, "tool_choice = 1 is not allowed"),
        ("some", FUNCTIONS, "tool_choice = 'some' is not allowed: one of auto, none, required, or a function"),
        ("required", (), "tool_choice = 'required' needs tools"),
    ],
)
def test_what_is_no_choice_is_refused(given, functions, message):
    with pytest.raises(RequestError, match=message):
        read_choice(given, functions)


def test_functions_that_may_be_called():
    assert ToolChoice().among(FUNCTIONS) == FUNCTIONS
    assert ToolChoice("none").among(FUNCTIONS) == ()
    assert ToolChoice("required", "f").among(FUNCTIONS) == FUNCTIONS[:1]
    assert read_choice(None, ()).mode == "none"
    assert ToolChoice("auto", allowed=("f",)).among(FUNCTIONS) == FUNCTIONS[:1]
    assert ToolChoice("auto", allowed=()).among(FUNCTIONS) == ()
