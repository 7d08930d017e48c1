"""A form of one declared shape through torch.compile: what it is compiled with, and what may differ from call to call.

Each shape has a code of its own, so none can push another out, and no guards: what a compiled form is called with is
chosen by shape, and nothing else of it changes.
"""

from collections.abc import Callable, Sequence
from types import FunctionType

import torch
from torch import Tensor
from torch._inductor import cpp_builder

from tokenmill.errors import ConfigError
from tokenmill.program.compiled.form import Call, Form, Inputs

__all__ = ["Compiler", "check_backend"]


class Compiler:
    """Compiles `form` with a backend. mode: static, dynamic or fullgraph."""

    def __init__(self, form: Form, backend: str, mode: str) -> None:
        check_backend(backend)
        self._form, self._backend, self._mode = form, backend, mode

    @torch.inference_mode()
    def compile(self, inputs: Inputs, cache: Sequence[Tensor]) -> Call:
        """What runs inputs of this shape. It is run once with these. ConfigError where the backend fails."""
        compiled = torch.compile(
            _own(_run_form),
            backend=self._backend,
            fullgraph=self._mode == "fullgraph",
            dynamic=False,  # what may differ is marked
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        if self._mode == "dynamic":
            _mark_dynamic(inputs)
        try:
            compiled(self._form, inputs.tensors, cache)
        except Exception as error:  # backends raise what they like
            reason = str(getattr(error, "inner_exception", error)).strip() or type(error).__name__
            line = reason.splitlines()[0]
            raise ConfigError(
                "compile_backend", self._backend, f"it failed for {inputs}: {line}; use another, or compile = no"
            ) from error

        def call(inputs: Inputs, cache: list[Tensor]) -> Tensor:
            logits_RV: Tensor = compiled(self._form, inputs.tensors, cache)
            return logits_RV

        return call


def _run_form(form: Form, inputs: Sequence[Tensor | None], cache: list[Tensor]) -> Tensor:
    logits_RV: Tensor = form(*inputs, cache)
    return logits_RV


def _own(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with a code of its own: torch.compile keeps what it compiled by code."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _mark_dynamic(inputs: Inputs) -> None:
    """Sequences, tokens and positions may be any number; of the former two, 1 is a case of its own."""
    for tensor, dimensions in (
        (inputs.token_ids_BC, (0, 1)),
        (inputs.positions_BC, (0, 1)),
        (inputs.tables_BM, (0,)),
        (inputs.rows_B, (0,)),
        (inputs.offsets_L, (0,)),
    ):
        for dimension in dimensions:
            if tensor is not None and tensor.shape[dimension] > 1:
                torch._dynamo.mark_dynamic(tensor, dimension)


def check_backend(name: str) -> None:
    """ConfigError for a name that torch.compile does not know, or for inductor without a C++ compiler."""
    names = torch._dynamo.list_backends(())
    if name not in names:
        raise ConfigError("compile_backend", name, f"torch.compile knows {', '.join(sorted(names))}")
    if name != "inductor":
        return
    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError as error:
        raise ConfigError("compile_backend", name, "it needs a C++ compiler: install g++, or set CXX") from error
