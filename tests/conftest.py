"""LEAKCORE_EMULATION=1 runs the tests on the emulated build (`make test-emulated`); slow tests have hours."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import zlib
from pathlib import Path

import pytest

BUILT = Path(__file__).resolve().parents[1] / "build" / f"emulated-{sys.implementation.cache_tag}"

if os.environ.get("LEAKCORE_EMULATION") == "1":
    modules = [p for suffix in importlib.machinery.EXTENSION_SUFFIXES if (p := BUILT / f"_C{suffix}").exists()]
    if not modules:
        raise RuntimeError(f"LEAKCORE_EMULATION=1, but {BUILT} holds no module: `make test-emulated` builds it")
    import leakcore

    spec = importlib.util.spec_from_file_location("leakcore._C", modules[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["leakcore._C"] = leakcore._C = module
    spec.loader.exec_module(module)

    @pytest.fixture(autouse=True)
    def schedule(request: pytest.FixtureRequest) -> None:
        """Each test has an order of blocks and threads of its own, the same every time."""
        leakcore._C.emulation_schedule(zlib.crc32(request.node.nodeid.encode()))


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`full(keep=n)`: n cases, spread over all, stay in `make test`.

    A slow test takes minutes on an idle machine, and this one may be busy: the usual limit is for quick tests.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (mark := item.get_closest_marker("full")) and mark.kwargs.get("keep"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in cases.values():
        keep = family[0].get_closest_marker("full").kwargs["keep"]
        for item in family[:: -(-len(family) // keep)]:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "full"]
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(7200))
