"""The calls of one model: its arguments as they were before the call, and its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from leakcore.dpsgd.opacus.recorder.aside import is_aside
from leakcore.dpsgd.opacus.recorder.forward_passes import Arguments, copied
from leakcore.dpsgd.opacus.row_check.left_alone import Randomness
from leakcore.dpsgd.opacus.row_check.uncopied import Uncopied

_Hook = TypeVar("_Hook", bound=Callable[..., None])


def uncompiled(hook: _Hook) -> _Hook:
    """A hook that runs as Python: torch.compile does not put it into what it compiles."""
    plain: _Hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return plain


class ModelCalls:
    """Hooks on a model, which see its keywords, from `watch` to `stop`.

    Args:
        returned: called with the model, the arguments, the output, and whether random numbers were drawn, after each
            call.
    """

    def __init__(self, returned: Callable[[nn.Module, Arguments, Any, bool], None]) -> None:
        self._returned = returned
        self._entered: list[tuple[tuple[Any, ...], dict[str, Any] | None, Randomness]] = []
        self._handles: list[Any] = []

    @property
    def are_under_way(self) -> bool:
        """Whether the model runs just now."""
        return bool(self._entered)

    def watch(self, model: nn.Module, inputs: tuple[Any, ...] | None = None) -> None:
        """Begin. `inputs`: the positional arguments of a call that has begun; torch shows its keywords at its end."""
        if inputs is not None:
            self._entered.append((copied(inputs, {})[0], None, Randomness.now()))
        self._handles = [
            model.register_forward_pre_hook(Uncopied(self._before), with_kwargs=True),
            model.register_forward_hook(Uncopied(self._after), with_kwargs=True, always_call=True),
        ]

    def clear(self) -> None:
        """A step ended."""
        self._entered = []

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._entered = [], []

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_aside():
            self._entered.append((*copied(args, kwargs), Randomness.now()))

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_aside() or not self._entered:
            return
        inputs, settings, before = self._entered.pop()
        arguments = inputs, copied((), kwargs)[1] if settings is None else settings
        self._returned(module, arguments, output, before != Randomness.now())
