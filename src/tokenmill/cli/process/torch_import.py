"""torch is imported without the modules that trace, three tenths of the time; they come when they are needed.

`import torch` ends with torch._meta_registrations, which brings torch._decomp, torch._refs and torch._prims with it:
the shape functions by which torch.compile, torch.export and tensors without memory compute. They can be imported later,
but only before any other module of torch, because torch's modules import each other in circles.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

META_KERNELS = "torch._meta_registrations"
UNRELATED = frozenset({"torch.utils._device"})  # of `with torch.device(...)`; it imports nothing of torch but torch


@contextmanager
def without_meta_kernels() -> Iterator[None]:
    """Leave those modules out when torch is imported inside. Without effect where torch is imported already.

    They are imported before the next module of torch that is imported after this context, as torch.compile imports
    many. Before that, operations on tensors of device "meta" whose shape function is written in Python are refused.
    """
    if "torch" in sys.modules:
        yield
        return
    empty = sys.modules[META_KERNELS] = ModuleType(META_KERNELS)
    try:
        yield
    finally:
        if sys.modules.get(META_KERNELS) is empty:
            del sys.modules[META_KERNELS]
        names = vars(sys.modules["torch"]) if "torch" in sys.modules else {}
        if names.get("_meta_registrations") is empty:  # this torch imports it, and has imported the empty one
            del names["_meta_registrations"]
            sys.meta_path.insert(0, _Completion())


class _Completion(MetaPathFinder):
    """Imports what was left out, once, when a module of torch is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("torch.") or name in UNRELATED:
            return None
        sys.meta_path.remove(self)
        if name == META_KERNELS:
            return None
        import torch._meta_registrations  # noqa: F401

        return ModuleSpec(name, _Imported(sys.modules[name])) if name in sys.modules else None


class _Imported(Loader):
    """The loader of a module that an earlier import has executed: it must not be executed twice."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__
        module.__spec__ = None  # the import system would take it, with the loader that executes the module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
