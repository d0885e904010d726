"""The memory behind a caller's array, looked at before anything is read from it.

torch hands out tensors whose memory is freed (FSDP does so between uses), too small, elsewhere, or of another meaning
than its bytes say: reading those ends the process, or gives a number of nothing. Every reader of arrays comes through
here. torch is recognised without being imported.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np

_MAX_DIMS = 32
"""How many dimensions all of NumPy's functions take; its arrays may have 64."""


def is_torch(x: Any) -> bool:
    """Whether `x` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(x, torch.Tensor)


def _subject(name: str, kernel: str | None) -> str:
    """The argument as an error begins with it, after the kernel that reads it."""
    return f"`{name}`" if kernel is None else f"{kernel}: `{name}`"


def plain_tensor(name: str, x: Any, *, kernel: str | None = None) -> Any:
    """The same tensor as torch's own class, on its device, all of it in memory of its own.

    A parameter or subclass is read as the tensor that it is, without names of dimensions. Raises TypeError (without
    dense values, or values that its memory does not hold as they are) or ValueError (its storage is shorter than it
    reaches, or it is on the meta device); each begins with the kernel, if one is named, and `name`.
    """
    torch = sys.modules["torch"]
    kind = type(x)
    if kind is not torch.Tensor:
        _refuse_wrapper(torch, name, x, kernel)
        with torch._C.DisableTorchFunctionSubclass():
            x = x.as_subclass(torch.Tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or torch._is_functional_tensor(x):
        raise TypeError(
            f"{_subject(name, kernel)} cannot be read here: it is a tensor of torch.func (vmap, grad, jvp, "
            "functionalize), which has no values of its own inside the transform"
        )
    if x.is_meta:
        raise ValueError(f"{_subject(name, kernel)} must be on the CPU or a CUDA device, got device 'meta'")
    if x.layout is not torch.strided or x.is_nested:
        layout = f"nested ({x.layout})" if x.is_nested else x.layout
        raise TypeError(f"{_subject(name, kernel)} must be a dense (strided) tensor, got layout {layout}")
    if x.is_quantized:
        dtype = str(x.dtype).removeprefix("torch.")
        raise TypeError(f"{_subject(name, kernel)} must not be quantized, got {dtype}")
    if hasattr(x, "has_names") and x.has_names():  # torch before 2.13
        x = x.rename(None)
    _require_memory(name, x, kernel)
    return x


def _refuse_wrapper(torch: Any, name: str, x: Any, kernel: str | None) -> None:
    kind = type(x)
    if issubclass(kind, torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{_subject(name, kernel)} must be initialized: run the model once before")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(
            f"{_subject(name, kernel)} must be a plain torch tensor, got a {kind.__name__}, whose values are not those "
            "of a memory of its own"
        )


def _require_memory(name: str, x: Any, kernel: str | None) -> None:
    """ValueError where the storage ends before the last element that sizes and strides reach."""
    if x.numel() == 0:
        return
    last = x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    size = x.element_size()
    stored_bytes = x.untyped_storage().nbytes()
    if stored_bytes < last * size:
        state = "is freed" if stored_bytes == 0 else f"has {stored_bytes} bytes left"
        raise ValueError(
            f"{_subject(name, kernel)} reaches over {last * size} bytes, but its storage {state} (as FSDP does between "
            "uses, untyped_storage().resize_): gather it before"
        )


def in_forward_mode() -> bool:
    """Whether torch differentiates forwards (`torch.func.jvp`, `forward_ad.dual_level`) around this call."""
    forward = sys.modules.get("torch.autograd.forward_ad")
    return forward is not None and getattr(forward, "_current_level", -1) >= 0


def differentiated(x: Any) -> bool:
    """Whether a tensor has a forward-mode tangent."""
    if not in_forward_mode():
        return False
    return sys.modules["torch.autograd.forward_ad"].unpack_dual(x).tangent is not None


def refuse_gradients(name: str, x: Any) -> None:
    """ValueError for a tensor whose operations torch follows."""
    if x.requires_grad:
        raise ValueError(f"`{name}` must not require grad: pass {name}.detach()")
    if differentiated(x):
        raise ValueError(f"`{name}` must not have a tangent: pass {name}.detach()")


def transformed() -> bool:
    """Whether this call is made under one of torch.func's transforms, which follow the operations of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and torch._C._functorch.peek_interpreter_stack() is not None


def refuse_transforms(name: str) -> None:
    """TypeError under a transform of torch.func, which would change what trains or differentiates inside it, and where
    all tensors are to be fake."""
    if transformed() or _fake_mode():
        raise TypeError(f"`{name}` is read inside a transform of torch's, which cannot follow this: call it outside")


def _fake_mode() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or torch._C._len_torch_dispatch_stack() == 0:
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def untransformed() -> Any:
    """A context in which torch.func's transforms do not follow what is done to a tensor that is none of theirs."""
    return sys.modules["torch"]._C._DisableFuncTorch() if transformed() else contextlib.nullcontext()


def of_tensor(name: str, x: Any) -> np.ndarray:
    """A tensor on the CPU as NumPy sees it, without a copy, except that bfloat16 comes as float32. Raises as
    `plain_tensor`, ValueError for a tensor elsewhere or one that requires grad, TypeError for complex numbers and
    element types that NumPy has no name for."""
    refuse_gradients(name, x)
    x = plain_tensor(name, x)
    if not x.is_cpu:
        raise ValueError(f"`{name}` must be on the CPU, where this computation runs, got {x.device}: pass {name}.cpu()")
    torch = sys.modules["torch"]
    if x.is_complex():
        raise TypeError(f"`{name}` must be an array of real numbers, got {x.dtype}")
    with untransformed():
        x = x.resolve_neg()
        try:
            out: np.ndarray = (x.float() if x.dtype is torch.bfloat16 else x).numpy()
        except (TypeError, RuntimeError) as why:
            raise TypeError(f"`{name}` must be an array of real numbers, got {x.dtype} ({why})") from why
    return out


def of_numpy(name: str, x: np.ndarray, *, kernel: str | None = None) -> np.ndarray:
    """An array of NumPy's as its plain class; TypeError where a mask would be lost, ValueError where its file is cut
    short."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{_subject(name, kernel)} must be a plain array, got a masked one, whose mask would be lost")
    base: Any = x
    while base is not None:
        owner = base.obj if isinstance(base, memoryview) else base
        if isinstance(owner, mmap.mmap):
            _require_file(name, owner, 0, kernel)
            break
        if isinstance(owner, np.memmap):
            offset = getattr(owner, "offset", 0) or 0
            mapped = getattr(owner, "_mmap", None)
            if isinstance(mapped, mmap.mmap):
                _require_file(name, mapped, offset - offset % mmap.ALLOCATIONGRANULARITY, kernel)
                break
        base = owner.base if isinstance(owner, np.ndarray) else None
    return np.asarray(x)


def _require_file(name: str, mapped: mmap.mmap, start: int, kernel: str | None) -> None:
    if mapped.size() < start + len(mapped):
        raise ValueError(
            f"{_subject(name, kernel)} must be whole, got an array of {start + len(mapped)} bytes of a file that now "
            f"ends after {mapped.size()}"
        )


def host(name: str, value: Any) -> Any:
    """What NumPy may make an array of: arrays and tensors looked at, those in sequences as well; all else as it is."""
    if isinstance(value, np.ndarray):
        return of_numpy(name, value)
    if is_torch(value):
        return of_tensor(name, value)
    if isinstance(value, (list, tuple)):
        if all(type(part) is float or type(part) is int for part in value):
            return value  # the usual case
        return [host(f"{name}[{i}]", part) for i, part in enumerate(value)]
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as why:
            raise TypeError(f"`{name}` cannot be read through DLPack: {why}") from why
    return value


def array(name: str, value: Any) -> np.ndarray:
    """`host`, as an array; TypeError for nested sequences of unequal lengths and for what does not say its values."""
    ready = host(name, value)
    try:
        out = np.asarray(ready)
    except Exception as why:  # whatever an object's own conversion raises
        raise TypeError(f"`{name}` must be an array of numbers ({why})") from why
    if out.ndim > _MAX_DIMS:
        raise ValueError(f"`{name}` must have at most {_MAX_DIMS} dimensions, got {out.ndim}")
    return out
