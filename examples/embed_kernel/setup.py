"""Builds the example: `python setup.py build_ext --inplace`, then `import embed_kernel`."""

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

import leakcore

setup(
    name="embed-kernel",
    version="1.0",
    ext_modules=[Pybind11Extension("embed_kernel", ["example.cpp"], include_dirs=[leakcore.get_include()], cxx_std=17)],
    cmdclass={"build_ext": build_ext},
)
