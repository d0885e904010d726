"""What torch can make of a tensor: without memory, with too little of it, or with values that its memory does not hold
as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.arrays.state import State, require_axes


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


class Renamed(torch.Tensor):
    """A subclass that sees every function, as units and labelled tensors do."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


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


class Offset(Hollow):
    """A wrapper whose values are not those of its memory: the same, and 1 more."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(x: Any) -> Any:
            return x.inner + 1 if isinstance(x, Hollow) else x

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


def _view_of_freed(t: torch.Tensor) -> torch.Tensor:
    base = torch.zeros(t.numel() + 3, dtype=t.dtype)
    out = base[3:].view(t.shape)
    base.untyped_storage().resize_(3 * t.element_size())
    return out


def _short_transposed(t: torch.Tensor) -> torch.Tensor:
    """The last element in memory is missing; the first of every row is there."""
    out = copy(t.mT).mT if t.ndim > 1 else copy(t)
    out.untyped_storage().resize_(out.nbytes - t.element_size())
    return out


def _negated(t: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-t)


def _imaginary(t: torch.Tensor) -> torch.Tensor:
    return torch.complex(torch.zeros_like(t), -t).conj().imag


def _overlapping(t: torch.Tensor) -> torch.Tensor:
    require_axes(t, 1, 2)
    columns = int(np.prod(t.shape[1:]))
    line = copy(t).reshape(-1).repeat(2)[: len(t) + columns].clone()
    return torch.as_strided(line, (len(t), columns), (1, 1)).view_as(t)


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


def _quantized_by_channel(t: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n = len(t)
        return torch.quantize_per_channel(t.float(), torch.full((n,), 0.1), torch.zeros(n), 0, torch.quint8)


def _nested(layout: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(t: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.nested.nested_tensor([row.clone() for row in t], layout=layout)

    return make


def _fake(t: torch.Tensor) -> Any:
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(t)


def _masked(t: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.masked import masked_tensor

        mask = torch.ones_like(t, dtype=torch.bool)
        mask.view(-1)[0] = False
        return masked_tensor(t.clone(), mask)


def _named(t: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return t.clone().refine_names(*"abcdefgh"[: t.ndim])


def _mkldnn(t: torch.Tensor) -> torch.Tensor:
    return t.float().to_mkldnn()


def _inference(t: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return t.clone()


def _pinned(t: torch.Tensor) -> torch.Tensor:
    if not torch.cuda.is_available():
        raise RuntimeError("pinned memory needs CUDA")
    return t.pin_memory()


def _hollow(kind: Any) -> Callable[[torch.Tensor], Any]:
    return lambda t: kind(t.clone())


def _result_in(box: list[Any], call: Callable[[Any], Any], x: Any) -> Any:
    box.append(call(x))
    return x.sum() if x.dtype.is_floating_point else x.double().sum()


def _functional(call: Callable[[Any], Any], t: Any) -> Any:
    """Under `functionalize`: results leave it as plain tensors."""
    return torch.func.functionalize(lambda x: _tensors(call(x)))(t)


def _vmap(call: Callable[[Any], Any], t: Any) -> Any:
    """The one sample of a batch of one: the result is that of the sample."""
    return [x[0] for x in torch.func.vmap(lambda x: _tensors(call(x)))(t[None])]


def _vmap_closed_over(call: Callable[[Any], Any], t: Any) -> Any:
    """A tensor that vmap does not map over."""
    box: list[Any] = []
    torch.func.vmap(lambda x: (box.append(call(t)), x)[1])(torch.zeros(1))
    return box[0]


def _grad(call: Callable[[Any], Any], t: Any) -> Any:
    box: list[Any] = []
    torch.func.grad(lambda x: _result_in(box, call, x))(t)
    return box[0]


def _grad_closed_over(call: Callable[[Any], Any], t: Any) -> Any:
    box: list[Any] = []
    torch.func.grad(lambda x: (box.append(call(t)), x)[1])(torch.zeros(()))
    return box[0]


def _jvp(call: Callable[[Any], Any], t: Any) -> Any:
    box: list[Any] = []
    torch.func.jvp(lambda x: _result_in(box, call, x), (t,), (torch.ones_like(t),))
    return box[0]


def _dual(call: Callable[[Any], Any], t: Any) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return call(forward_ad.make_dual(t, torch.ones_like(t)))


def _traced(call: Callable[[Any], Any], t: Any) -> Any:
    """A fake tensor mode around the call, as torch.export has it."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        return call(mode.from_tensor(t))


def _tensors(result: Any) -> list[torch.Tensor]:
    from tests.arrays.compare import leaves

    return [x if isinstance(x, torch.Tensor) else torch.as_tensor(np.array(x)) for _, x in leaves(result)]


def _to(dtype: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype)


def _through(dtype: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: copy(t).to(dtype).to(t.dtype)


def _uninitialized(t: torch.Tensor) -> Any:
    return torch.nn.parameter.UninitializedParameter(dtype=t.dtype)


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.clone(memory_format=torch.channels_last)


STATES = (
    State("plain", copy, copy),
    State("freed", _freed),
    State("one byte short", _shrunk),
    State("a view of freed memory", _view_of_freed),
    State("the last element missing", _short_transposed),
    State("negated view", _negated, copy),
    State("imaginary part of a conjugate", _imaginary, copy),
    State("conjugated real", lambda t: t.conj(), copy),
    State("complex", lambda t: torch.complex(t, t)),
    State("complex conjugated", lambda t: torch.complex(t, t).conj()),
    *(State(str(x), _sparse(x)) for x in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr)),
    State("quantized", _quantized),
    State("quantized by channel", _quantized_by_channel),
    State("nested, strided", _nested(torch.strided)),
    State("nested, jagged", _nested(torch.jagged)),
    State("meta", lambda t: t.to("meta")),
    State("fake", _fake),
    State("fake, in its mode", copy, None, _traced),
    State("masked", _masked),
    State("named", _named, copy),
    State("mkldnn", _mkldnn),
    State("inference mode", _inference, copy),
    State("requires grad", lambda t: t.clone().requires_grad_(), copy),
    State("result that requires grad", lambda t: t.clone().requires_grad_() * 1, copy),
    State("parameter", lambda t: torch.nn.Parameter(t.clone()), copy),
    State("parameter without grad", lambda t: torch.nn.Parameter(t.clone(), requires_grad=False), copy),
    State("uninitialized parameter", _uninitialized),
    State("pinned", _pinned, copy),
    State("subclass", lambda t: t.clone().as_subclass(Plain), copy),
    State("subclass with __torch_function__", lambda t: t.clone().as_subclass(Renamed), copy),
    State("wrapper subclass", _hollow(Hollow), copy),
    State("wrapper subclass of other values", _hollow(Offset), lambda t: t + 1),
    State("copy on write", lambda t: torch._lazy_clone(copy(t)), copy),
    State("transposed", lambda t: copy(t.mT).mT, copy),
    State("spaced", lambda t: torch.stack([t, t], -1)[..., 0], copy),
    State("offset", lambda t: torch.cat([t[:1], t])[1:], copy),
    State("channels last", _channels_last, copy),
    State("repeated rows (stride 0)", _same_rows, lambda t: copy(_same_rows(t))),
    State("overlapping", _overlapping, lambda t: copy(_overlapping(t))),
    State("no rows", lambda t: t[:0], lambda t: copy(t[:0])),
    State("no columns", lambda t: t[..., :0], lambda t: copy(t[..., :0])),
    State("freed, no rows", lambda t: _freed(t)[:0], lambda t: copy(t[:0])),
    State("no dimensions", lambda t: t.reshape(-1)[0], lambda t: copy(t.reshape(-1)[0])),
    State("list of tensors", list, copy),
    State("list of freed tensors", lambda t: list(_freed(t))),
    State("list of tensors that require grad", lambda t: list(t.clone().requires_grad_()), copy),
    State("float32", _to(torch.float32), _through(torch.float32)),
    State("float16", _to(torch.float16), _through(torch.float16)),
    State("bfloat16", _to(torch.bfloat16), _through(torch.bfloat16)),
    State("bfloat16, negated", lambda t: torch._neg_view(-t.to(torch.bfloat16)), _through(torch.bfloat16)),
    State("float8", _to(torch.float8_e4m3fn), _through(torch.float8_e4m3fn)),
    State("float8, e5m2", _to(torch.float8_e5m2), _through(torch.float8_e5m2)),
    State("bool", _to(torch.bool), lambda t: t.to(torch.bool)),
    State("int8", _to(torch.int8), lambda t: t.to(torch.int8)),
    State("uint16", lambda t: t.abs().to(torch.uint16), lambda t: t.abs().to(torch.uint16)),
    State("bits", lambda t: t.to(torch.uint8).view(torch.bits8)),
    State("functionalized", copy, copy, _functional),
    State("mapped by vmap", copy, copy, _vmap),
    State("under vmap, not mapped", copy, copy, _vmap_closed_over),
    State("differentiated by grad", copy, copy, _grad),
    State("under grad, not differentiated", copy, copy, _grad_closed_over),
    State("differentiated by jvp", copy, copy, _jvp),
    State("with a tangent", copy, copy, _dual),
)
