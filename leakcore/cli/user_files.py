"""What a user brings: arrays in files, and a model by the name of its factory. Nothing is unpickled."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def read_arrays(path: Path) -> dict[str, Any]:
    """Arrays by name; nothing is unpickled."""
    if path.suffix == ".npz":
        from leakcore._base.archives import read_npz

        return dict(read_npz(path))
    if path.suffix == ".safetensors":
        from leakcore.models import read_safetensors

        return dict(read_safetensors(path))
    raise ValueError(f"a file of arrays must end in .safetensors or .npz, got {path}")


def built_model(spec: str) -> Any:
    """The torch module that `package.module:factory` returns; the current folder is searched as well."""
    import torch

    where, _, name = spec.partition(":")
    if not where or not name:
        raise ValueError(f"`model` must be package.module:factory, got {spec!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(where)
    except (Exception, SystemExit) as error:  # a module of the user's raises what it likes
        raise ValueError(
            f"`model` must name a module that can be imported, got {spec!r} ({type(error).__name__}: {error})"
        ) from error
    finally:
        sys.path.remove(str(Path.cwd()))
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ValueError(f"`model` must name a callable, got {spec!r}: {where} has no callable {name!r}")
    try:
        built = factory()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"`model` must name a factory, got {spec!r}, which failed ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(built, torch.nn.Module):
        raise TypeError(f"`model` must return a torch.nn.Module, got {type(built).__name__} from {spec!r}")
    return built
