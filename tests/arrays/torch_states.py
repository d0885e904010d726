"""What torch can make of a tensor: without memory, with too little of it, or with values that its memory does not hold
as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.arrays.state import State


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


class Hollow(torch.Tensor):
    """A wrapper without memory of its own, as DTensor is: its values lie in another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        out = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        out.inner = inner
        return out

    def __init__(self, inner: torch.Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(x: Any) -> Any:
            return x.inner if isinstance(x, Hollow) else x

        return function(*torch.utils._pytree.tree_map(bare, args), **(kwargs or {}))


def copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone(memory_format=torch.contiguous_format)


def _freed(t: torch.Tensor) -> torch.Tensor:
    out = copy(t)
    out.untyped_storage().resize_(0)
    return out


def _shrunk(t: torch.Tensor) -> torch.Tensor:
    out = copy(t)
    out.untyped_storage().resize_(max(out.nbytes - 1, 0))
    return out


def _negated(t: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-t)


def _same_rows(t: torch.Tensor) -> torch.Tensor:
    return copy(t[:1]).expand(t.shape)


def _sparse(layout: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(t: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if layout in (torch.sparse_bsr, torch.sparse_bsc):
                return t.to_sparse(layout=layout, blocksize=(1, 1))
            return t.to_sparse(layout=layout)

    return make


def _quantized(t: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)


def _nested(layout: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(t: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.nested.nested_tensor([row.clone() for row in t], layout=layout)

    return make


def _fake(t: torch.Tensor) -> Any:
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(t)


def _hollow(kind: Any) -> Callable[[torch.Tensor], Any]:
    return lambda t: kind(t.clone())


def _result_in(box: list[Any], call: Callable[[Any], Any], x: Any) -> Any:
    box.append(call(x))
    return x.sum() if x.dtype.is_floating_point else x.double().sum()


def _vmap(call: Callable[[Any], Any], t: Any) -> Any:
    """The one sample of a batch of one: the result is that of the sample."""
    return [x[0] for x in torch.func.vmap(lambda x: _tensors(call(x)))(t[None])]


def _grad(call: Callable[[Any], Any], t: Any) -> Any:
    box: list[Any] = []
    torch.func.grad(lambda x: _result_in(box, call, x))(t)
    return box[0]


def _jvp(call: Callable[[Any], Any], t: Any) -> Any:
    box: list[Any] = []
    torch.func.jvp(lambda x: _result_in(box, call, x), (t,), (torch.ones_like(t),))
    return box[0]


def _tensors(result: Any) -> list[torch.Tensor]:
    from tests.arrays.compare import leaves

    return [x if isinstance(x, torch.Tensor) else torch.as_tensor(np.array(x)) for _, x in leaves(result)]


def _to(dtype: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype)


def _through(dtype: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: copy(t).to(dtype).to(t.dtype)


def _uninitialized(t: torch.Tensor) -> Any:
    return torch.nn.parameter.UninitializedParameter(dtype=t.dtype)


STATES = (
    State("plain", copy, copy),
    State("freed", _freed),
    State("one byte short", _shrunk),
    State("negated view", _negated, copy),
    State("conjugated real", lambda t: t.conj(), copy),
    State("complex", lambda t: torch.complex(t, t)),
    *(State(str(x), _sparse(x)) for x in (torch.sparse_coo, torch.sparse_csr)),
    State("quantized", _quantized),
    State("nested, strided", _nested(torch.strided)),
    State("meta", lambda t: t.to("meta")),
    State("fake", _fake),
    State("requires grad", lambda t: t.clone().requires_grad_(), copy),
    State("parameter", lambda t: torch.nn.Parameter(t.clone()), copy),
    State("uninitialized parameter", _uninitialized),
    State("subclass", lambda t: t.clone().as_subclass(Plain), copy),
    State("wrapper subclass", _hollow(Hollow), copy),
    State("transposed", lambda t: copy(t.mT).mT, copy),
    State("spaced", lambda t: torch.stack([t, t], -1)[..., 0], copy),
    State("offset", lambda t: torch.cat([t[:1], t])[1:], copy),
    State("repeated rows (stride 0)", _same_rows, lambda t: copy(_same_rows(t))),
    State("no rows", lambda t: t[:0], lambda t: copy(t[:0])),
    State("no columns", lambda t: t[..., :0], lambda t: copy(t[..., :0])),
    State("no dimensions", lambda t: t.reshape(-1)[0], lambda t: copy(t.reshape(-1)[0])),
    State("list of tensors", list, copy),
    State("float32", _to(torch.float32), _through(torch.float32)),
    State("float16", _to(torch.float16), _through(torch.float16)),
    State("bfloat16", _to(torch.bfloat16), _through(torch.bfloat16)),
    State("bool", _to(torch.bool), lambda t: t.to(torch.bool)),
    State("int8", _to(torch.int8), lambda t: t.to(torch.int8)),
    State("mapped by vmap", copy, copy, _vmap),
    State("differentiated by grad", copy, copy, _grad),
    State("differentiated by jvp", copy, copy, _jvp),
)
