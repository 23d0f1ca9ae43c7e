"""Builds the two native libraries: _C (schemas and CPU kernels, always) and _C_cuda (where nvcc is).

GPUPRIMS_CUDA=1 insists on the CUDA library, 0 leaves it out; by default it is built where nvcc is found and
PyTorch has CUDA. TORCH_CUDA_ARCH_LIST picks architectures ("9.0", "8.0;9.0+PTX").
"""

import os
import shutil
import sys
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from torch.utils import cpp_extension

ROOT = Path(__file__).parent.resolve()
VERSION = "0.1.0"
TARGET = "0x020b000000000000ULL"  # the oldest PyTorch served: 2.11
HEADERS = (".h", ".cuh", ".inc")
WHEEL_ARCHS = "8.0;9.0;10.0;12.0+PTX"

# PyTorch looks for ninja on PATH alone; without it every build compiles everything, one file at a time.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def find_cuda_home():
    """The CUDA toolkit's folder, or None; PyTorch's own answer is None on CPU-only builds."""
    nvcc = shutil.which("nvcc")  # a link into the toolkit, a script beside it, or in Debian's /usr/bin
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    if nvcc:
        homes[1:1] = [Path(nvcc).resolve().parents[1], Path(nvcc).parents[1]]
    needed = ("bin/nvcc", "include/cuda_runtime_api.h")
    return next((str(home) for home in homes if home and all(Path(home, f).exists() for f in needed)), None)


def wants_cuda(cuda_home):
    asked = os.environ.get("GPUPRIMS_CUDA", "")
    if asked == "1" and not cuda_home:
        raise SystemExit("GPUPRIMS_CUDA=1, but no nvcc was found: set CUDA_HOME to the CUDA toolkit's folder")
    wanted = asked == "1" or (asked != "0" and cuda_home is not None and torch.version.cuda is not None)
    if not wanted:
        why = "GPUPRIMS_CUDA=0" if asked == "0" else "no nvcc" if not cuda_home else "PyTorch is CPU-only"
        print(
            f"torch_gpuprims: building the CPU library alone ({why}; GPUPRIMS_CUDA=1 forces the CUDA library)"
        )
    return wanted


def gencode(arch):
    number = arch.removesuffix("+PTX").replace(".", "")
    codes = f"sm_{number},compute_{number}" if arch.endswith("+PTX") else f"sm_{number}"
    return f"-gencode=arch=compute_{number},code=[{codes}]"


def library(name, sources, defines, cuda_home=None, archs=()):
    torch_libs = ["-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch"]
    includes = [str(ROOT / "csrc")]
    links = []
    if cuda_home:
        defines = [*defines, "-DUSE_CUDA", f'-DGPUPRIMS_CUDA_ARCHS="{";".join(archs)}"']
        includes.append(f"{cuda_home}/include")
        links = [f"-L{cuda_home}/lib64", f"-L{cuda_home}/lib", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    common = ["-std=c++20", "-O3", "-fvisibility=hidden", "-g0", f"-ffile-prefix-map={ROOT}=."]
    return cpp_extension.CppExtension(
        f"torch_gpuprims.{name}",
        sorted(str(Path(source).relative_to(ROOT)) for source in sources),
        include_dirs=includes,
        extra_compile_args={
            "cxx": [*common, *warnings, f"-DTORCH_TARGET_VERSION={TARGET}", "-DTORCH_STABLE_ONLY", *defines],
            "nvcc": [
                "-std=c++20", "-O3", "-lineinfo", "-Xptxas=-v,--warn-on-spills", "--expt-relaxed-constexpr",
                "-Xcompiler=-fvisibility=hidden", *map(gencode, archs),
            ],
        },
        depends=sorted(
            str(file.relative_to(ROOT)) for file in (ROOT / "csrc").glob("*/*") if file.suffix in HEADERS
        ),
        py_limited_api=True,
        extra_link_args=[*torch_libs, "-Wl,--exclude-libs,ALL", *links],
    )  # fmt: skip


class Build(cpp_extension.BuildExtension):
    def run(self):
        # setuptools would keep a library built for other architectures, or ship one that is not wanted now;
        # ninja, which knows the commands and the headers, compiles only what changed.
        for name in ("_C.so", "_C_cuda.so"):
            Path(self.build_lib, "torch_gpuprims", name).unlink(missing_ok=True)
        super().run()

    def get_export_symbols(self, ext):
        return []  # op libraries, not Python modules: there is no PyInit


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def extensions():
    source = ROOT / "csrc"
    info = [f'-DGPUPRIMS_VERSION="{VERSION}"', f'-DGPUPRIMS_BUILT_WITH_TORCH="{torch.__version__}"']
    build_info = source / "common/build_info.cpp"
    cpu = [file for part in ("schema", "cpu", "explain") for file in source.glob(f"*/*{part}*.cpp")]
    result = [library("_C", [*cpu, build_info], info)]
    cuda_home = find_cuda_home()
    if wants_cuda(cuda_home):
        cpp_extension.CUDA_HOME = cuda_home
        default = "9.0" if os.environ.get("CI") or "bdist_wheel" not in sys.argv else WHEEL_ARCHS
        archs = os.environ.get("TORCH_CUDA_ARCH_LIST", default).replace(" ", ";").split(";")
        cuda = [*source.glob("*/*cuda*.cpp"), *source.glob("*/*.cu"), build_info]
        result.append(library("_C_cuda", cuda, info, cuda_home, archs))
    return result


setup(
    version=VERSION,
    ext_modules=extensions(),
    cmdclass={"build_ext": Build.with_options(no_python_abi_suffix=True), "bdist_wheel": Wheel},
)
