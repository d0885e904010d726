"""Builds leakcore._C with ninja: C++ always, CUDA when nvcc is found, no torch anywhere.

`setup.py build_probe` builds the benchmark's own module (csrc/testing/probe) into build/probe-*, and nothing else.

setuptools compiles one file after the other and rebuilds everything when anything changed; ninja compiles in parallel,
follows header dependencies and does nothing in a quarter of a second when nothing changed.

Environment:
  LEAKCORE_CUDA=auto|0|1    auto (default): CUDA kernels when nvcc and the static runtime are found; 1: an error if not
  LEAKCORE_CUDA=emulate     for tests: the CUDA kernels compiled for the CPU, into build/emulated-*
  LEAKCORE_CUDA_ARCHS       e.g. "80 90": compute capabilities to compile for (default: those of the GPUs at hand, else
                            the oldest and its PTX, which newer GPUs compile at first use); "all": all of 75…120 that
                            nvcc knows, for a wheel that is installed elsewhere
  CUDA_HOME, CUDA_PATH      where to look for CUDA first
  CXX, CXXFLAGS, LDFLAGS    host compiler and extra flags, appended to ours
  LEAKCORE_SANITIZE=1       AddressSanitizer and UndefinedBehaviorSanitizer, for the sanitizer test run

Host floating point: no -ffast-math (it flips the whole process to flush-to-zero) and -ffp-contract=off, so that the
compiler never fuses a multiply and an add behind our back (nor does nvcc: -fmad=false). A loop then gives the same bits
whether it was vectorised or not, with any chunk size. A tier that wants fused multiply-add asks for it by name (madd in
csrc/core/simd/arith.h and vec.h) and states its bound. -fno-math-errno and -fno-trapping-math change no value: they let
square roots and selections be vectorised.

Sources named *_simd.cpp are compiled once per instruction tier, with LEAKCORE_TIER set to its name, and chosen between
at run time (csrc/core/simd/isa.h). Compilers for other processors than x86-64 build the baseline alone.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError, OptionError

ROOT = pathlib.Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
TESTING = CSRC / "testing"
INCLUDE = ROOT / "leakcore" / "include"


def sources(pattern: str, folder: pathlib.Path = CSRC) -> list[str]:
    """Those below a folder; what is in csrc/testing is part of no build but its own."""
    found = (p for p in folder.rglob(pattern) if folder.is_relative_to(TESTING) or not p.is_relative_to(TESTING))
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


CXX_SOURCES, CUDA_SOURCES = sources("*.cpp"), sources("*.cu")
EMULATION_SOURCES = [s for pattern in ("*.cpp", "*.cu") for s in sources(pattern, TESTING / "cuda_emulation")]
PROBE_SOURCES = [*sources("*.cpp", TESTING / "probe"), "csrc/core/runtime/pool.cpp", "csrc/core/simd/isa.cpp"]
HEADERS = sorted(
    p.relative_to(ROOT).as_posix() for p in [*CSRC.rglob("*.h"), *CSRC.rglob("*.cuh"), *INCLUDE.rglob("*.h")]
)
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")), "-mprefer-vector-width=512"]
X86_TIERS = {"avx2": AVX2, "avx512": AVX512}
CUDA_ARCHS = ("75", "80", "86", "89", "90", "100", "120")


class Cuda:
    """A CUDA toolkit with a compiler and a static runtime."""

    def __init__(self, home: pathlib.Path, libdir: pathlib.Path) -> None:
        self.home, self.libdir, self.nvcc = home, libdir, home / "bin" / "nvcc"

    def archs(self) -> list[str]:
        chosen = os.environ.get("LEAKCORE_CUDA_ARCHS", "").replace(",", " ").replace(";", " ").split()
        if chosen and chosen != ["all"]:
            return [arch.replace(".", "") for arch in chosen]
        known = subprocess.run([self.nvcc, "--list-gpu-arch"], check=True, capture_output=True, text=True).stdout
        every = [arch for arch in CUDA_ARCHS if f"compute_{arch}" in known.split()]
        if chosen:
            return every
        # Built for this machine: its own GPUs; without one, the oldest, whose PTX newer ones compile at first use.
        here = [arch for arch in local_gpus() if f"compute_{arch}" in known.split()]
        return here or every[:1]


def local_gpus() -> list[str]:
    """Compute capabilities of the GPUs at hand, ascending; none without a driver."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted({line.strip().replace(".", "") for line in found.splitlines() if line.strip()}, key=int)


def find_cuda() -> Cuda | None:
    """The toolkit to build with, None for a CPU-only build; an error when one was demanded and none is complete."""
    wish = os.environ.get("LEAKCORE_CUDA", "auto")
    if wish not in ("auto", "0", "1", "emulate"):
        raise OptionError(f"`LEAKCORE_CUDA` must be auto, 0, 1 or emulate, got {wish!r}")
    if wish in ("0", "emulate"):
        return None
    homes = [pathlib.Path(os.environ[v]) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    if on_path := shutil.which("nvcc"):
        homes.append(pathlib.Path(on_path).resolve().parent.parent)
    homes += sorted(pathlib.Path("/usr/local").glob("cuda*"), reverse=True)
    for home in homes:
        for libdir in (home / "lib64", home / "lib", home / "targets" / "x86_64-linux" / "lib"):
            if (home / "bin" / "nvcc").is_file() and (libdir / "libcudart_static.a").is_file():
                return Cuda(home, libdir)
    if wish == "1":
        looked = ", ".join(map(str, homes)) or "CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda*"
        raise OptionError(
            f"`LEAKCORE_CUDA` must be auto or 0 without bin/nvcc and libcudart_static.a, got 1 (looked in {looked})"
        )
    return None


def emulated() -> bool:
    return os.environ.get("LEAKCORE_CUDA") == "emulate"


def folder_of(kind: str) -> pathlib.Path:
    """Of a build in the tree: kept, so that the next one is incremental. Tests and bench load theirs from there."""
    return ROOT / "build" / f"{kind}-{sys.implementation.cache_tag}"


def knows_python(source: str) -> bool:
    """The files that bind to Python, which alone are compiled with its headers."""
    return "/bindings/" in source or source.endswith(("/bindings.cpp", "/python.cpp"))


def ninja_program() -> str:
    import ninja

    inside = pathlib.Path(ninja.BIN_DIR) / "ninja"
    # In pip's isolated build environment BIN_DIR points at the wrong scripts folder, but PATH is right.
    found = str(inside) if ninja.BIN_DIR and inside.is_file() else shutil.which("ninja")
    if found is None:
        raise CompileError("ninja is installed but its program was not found")
    return found


def target_of(cxx: list[str]) -> str:
    """What a compiler compiles for, as "x86_64-linux-gnu"."""
    try:
        return subprocess.run([*cxx, "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(
            f"no C++ compiler: `{shlex.join(cxx)} -dumpmachine` failed ({error}); install GCC 11 or Clang 14 or newer "
            "(Debian, Ubuntu: apt install g++), or name one in CXX"
        ) from error


def replace(source: pathlib.Path, target: pathlib.Path) -> None:
    """A copy by rename, never in place: a running process may have the old module mapped."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copy2(source, fresh)
    fresh.replace(target)


class NinjaBuild(build_ext):
    """Hands each extension to ninja; a build folder that survives makes the next build incremental."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.in_tree = bool(self.inplace or self.editable_mode)
        if emulated() and not self.inplace:
            raise OptionError("`LEAKCORE_CUDA` must be auto, 0 or 1 without --inplace, got emulate, which is for tests")

    def build_extension(self, ext: Extension) -> None:
        # An editable install gets a temporary build_temp, which would lose ninja's memory.
        kind = "emulated" if emulated() else "ninja"
        build = folder_of(kind) if self.in_tree else pathlib.Path(self.build_temp).resolve()
        module = self.build_module(build, "_C", CXX_SOURCES, find_cuda(), emulate=emulated())
        if not emulated():  # tests load that one from where it was built
            replace(module, pathlib.Path(self.get_ext_fullpath(ext.name)).resolve())

    def build_module(
        self, build: pathlib.Path, name: str, sources: list[str], cuda: Cuda | None = None, emulate: bool = False
    ) -> pathlib.Path:
        build.mkdir(parents=True, exist_ok=True)
        module = build / (name + sysconfig.get_config_var("EXT_SUFFIX"))
        self.write_ninja(build, module, sources, cuda, emulate)
        jobs = ["-j", str(self.parallel)] if self.parallel else []
        quiet = [] if self.verbose else ["--quiet"]
        if subprocess.run([ninja_program(), *quiet, *jobs, "-C", str(build)]).returncode:
            raise CompileError(f"building {name} failed; ninja's output is above, its file is {build}/build.ninja")
        return module

    def copy_extensions_to_source(self) -> None:
        for ext in [] if emulated() else self.extensions:
            name = self.get_ext_filename(ext.name)
            replace(pathlib.Path(self.build_lib, name).resolve(), ROOT / name)

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *CUDA_SOURCES, *EMULATION_SOURCES, *PROBE_SOURCES, *HEADERS]

    def write_ninja(
        self, build: pathlib.Path, module: pathlib.Path, sources: list[str], cuda: Cuda | None, emulate: bool
    ) -> None:
        import pybind11
        from ninja.ninja_syntax import Writer

        cxx = shlex.split(os.environ.get("CXX", "")) or ["c++"]
        target = target_of(cxx)
        archs = cuda.archs() if cuda else ["emulated"] if emulate else []
        self.write_config(build / "leakcore_build.h", cxx, archs)
        includes = [f"-I{CSRC}", f"-I{INCLUDE}", f"-I{build}"]
        python = [f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_path('include')}"]
        tiers = {"baseline": [], **(X86_TIERS if target.startswith(("x86_64", "amd64")) else {})}
        common = [f"-DLEAKCORE_WITH_CUDA={int(bool(archs))}", f"-DLEAKCORE_X86_TIERS={int(len(tiers) > 1)}"]
        # Without the tracking of variables, which takes the compiler ten times as long as all else for unrolled loops.
        sanitized = ["-fsanitize=address,undefined", "-g1", "-fno-var-tracking", "-O1"]
        sanitize = sanitized if os.environ.get("LEAKCORE_SANITIZE") == "1" else []
        host = ["-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
        warn = ["-Wall", "-Wextra", "-Wshadow"]
        cxxflags = [
            "-std=c++17",
            "-O3",
            *host,
            "-pthread",
            *warn,
            *(sanitize or ["-DNDEBUG"]),  # without it pybind11 looks for the GIL at every reference it counts
            *shlex.split(os.environ.get("CXXFLAGS", "")),
        ]
        # Apple's linker wants to be told that Python's symbols are found when the module is loaded.
        apple = "-apple-" in target or "macos" in target
        symbols, strip = ("-undefined,dynamic_lookup", "-x") if apple else ("--exclude-libs,ALL", "-s")
        ldflags = ["-shared", "-pthread", f"-Wl,{symbols}", *sanitize, *shlex.split(os.environ.get("LDFLAGS", ""))]
        if not sanitize:
            ldflags.append(f"-Wl,{strip}")

        with open(build / "build.ninja.new", "w") as file:
            w = Writer(file, width=120)
            w.comment("Written by setup.py")
            w.variable("cxx", shlex.join(cxx))
            w.variable("cxxflags", shlex.join([*cxxflags, *common, *includes]))
            w.variable("python", shlex.join(python))
            w.rule("cxx", "$cxx $cxxflags $extra -MMD -MF $out.d -c $in -o $out", depfile="$out.d", deps="gcc")
            objects = []
            for source in sources:
                if source.endswith("_simd.cpp"):
                    for tier, flags in tiers.items():
                        extra = {"extra": shlex.join([f"-DLEAKCORE_TIER={tier}", *flags])}
                        objects += w.build(
                            f"{tier}_{self.object_of(source)}", "cxx", str(ROOT / source), variables=extra
                        )
                    continue
                switch = " -DLEAKCORE_EMULATION=1" if emulate else ""
                extra = {"extra": f"$python{switch}"} if knows_python(source) else {}
                objects += w.build(self.object_of(source), "cxx", str(ROOT / source), variables=extra)
            if emulate:
                # As nvcc reads them: fused multiply-add in hardware, unrolling asked for by its own pragma.
                flags = shlex.join(["-DLEAKCORE_EMULATION=1", *AVX2, "-Wno-unknown-pragmas", "-x", "c++"])
                for source in [*CUDA_SOURCES, *EMULATION_SOURCES]:
                    extra = {"extra": f"{flags} $python" if knows_python(source) else flags}
                    objects += w.build(self.object_of(source), "cxx", str(ROOT / source), variables=extra)
            if cuda:
                codes = [f"arch=compute_{a},code=sm_{a}" for a in archs]
                # PTX, for GPUs that come later: of the newest, and of Hopper for what lies between.
                codes += [f"arch=compute_{a},code=compute_{a}" for a in archs if a in ("90", archs[-1])]
                nvflags = ["-std=c++17", "-O3", "-fmad=false", "--threads=2"]
                nvflags += ["-Xcompiler", ",".join(host), "-ccbin", shlex.join(cxx)]
                w.variable("nvcc", shlex.quote(str(cuda.nvcc)))
                w.variable("nvflags", shlex.join([*nvflags, *common, *includes, *(f"-gencode={c}" for c in codes)]))
                w.rule("nvcc", "$nvcc $nvflags -MD -MF $out.d -c $in -o $out", depfile="$out.d", deps="gcc")
                for source in CUDA_SOURCES:
                    objects += w.build(self.object_of(source), "nvcc", str(ROOT / source))
                # Static: the module then imports on a machine without CUDA and says what is missing.
                ldflags += [f"-L{cuda.libdir}"]
            libs = ["-lcudart_static", "-ldl", "-lrt"] if cuda else []
            w.rule("link", "$cxx $in -o $out $ldflags $libs")
            w.variable("ldflags", shlex.join(ldflags))
            w.variable("libs", shlex.join(libs))
            w.build(str(module), "link", objects)
        os.replace(build / "build.ninja.new", build / "build.ninja")

    @staticmethod
    def object_of(source: str) -> str:
        return source.replace("/", "_") + ".o"

    def write_config(self, header: pathlib.Path, cxx: list[str], archs: list[str]) -> None:
        """What the module says about itself; rewritten only when it changed, or everything would be rebuilt."""
        banner = subprocess.run([*cxx, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        quoted = banner.replace("\\", "").replace('"', "")
        text = (
            "#pragma once\n"
            f'#define LEAKCORE_VERSION "{self.distribution.get_version()}"\n'
            f'#define LEAKCORE_COMPILER "{quoted}"\n'
            f'#define LEAKCORE_CUDA_ARCHS "{" ".join(archs)}"\n'
        )
        if not header.exists() or header.read_text() != text:
            header.write_text(text)


class ProbeBuild(NinjaBuild):
    """The benchmark's module; the shipped one has nothing of it."""

    description = "build the benchmark's probe of the processor into build/probe-*"

    def finalize_options(self) -> None:
        super().finalize_options()
        self.in_tree = True

    def run(self) -> None:
        self.build_module(folder_of("probe"), "_probe", PROBE_SOURCES)


def source_date() -> int:
    """Seconds since 1970 of the sources: SOURCE_DATE_EPOCH, else the commit's, else 1980-01-01, as in zip files."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    git = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(git.stdout) if git.returncode == 0 and (ROOT / ".git").exists() else 315532800


class ReproducibleSdist(sdist):
    """The same sources give the same bytes: no clock, user, umask or order of a folder goes into the archive."""

    def make_archive(self, base_name: str, format: str, root_dir: str | None = None, base_dir: str | None = None,
                     owner: str | None = None, group: str | None = None) -> str:  # fmt: skip
        if format != "gztar":
            raise ValueError(f"`formats` must be gztar, which is reproducible, got {format}")
        assert base_dir is not None
        path = pathlib.Path(f"{base_name}.tar.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        date = source_date()
        top = pathlib.Path(root_dir or ".")
        files = sorted(p for p in (top / base_dir).rglob("*") if p.is_file())
        with (
            path.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file in files:
                entry = tarfile.TarInfo(file.relative_to(top).as_posix())
                entry.size, entry.mtime = file.stat().st_size, date
                entry.mode = 0o755 if os.access(file, os.X_OK) else 0o644
                with file.open("rb") as content:
                    archive.addfile(entry, content)
        return str(path)


setup(
    ext_modules=[Extension("leakcore._C", sources=CXX_SOURCES, depends=HEADERS)],
    cmdclass={"build_ext": NinjaBuild, "build_probe": ProbeBuild, "sdist": ReproducibleSdist},
)
