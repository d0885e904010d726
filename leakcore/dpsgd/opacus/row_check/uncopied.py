"""Hooks on a user's objects that copies and pickles leave out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


class Uncopied:
    """A callable on a module or an optimizer of the user's, which belongs to leakcore and not to that object.

    A copy of the object (`copy.deepcopy`, an average of the weights) and a pickle of it (`torch.save`) hold a function
    of the standard library in its place that does nothing. They neither take along what leakcore knows of the run nor
    need leakcore to be loaded.

    Args:
        function: is called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch.compile does not compile it
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")
