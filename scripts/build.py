"""Builds the native libraries in place: python scripts/build.py STAMP (setup.py reads GPUPRIMS_CUDA).

setup.py's and ninja's noise goes to build/build.log and is shown only where it fails; what ptxas said of each
kernel is kept in build/ptxas.json. STAMP, which make compares with the sources, lists the libraries built.
"""

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import ptxas

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "torch_gpuprims"
BUILD = ROOT / "build"


def run_setup() -> tuple[int, str]:
    """setup.py build_ext, which relinks both libraries; ninja compiles only what changed."""
    env = {"MAX_JOBS": str(os.cpu_count() or 1), **os.environ}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    (BUILD / "build.log").write_text(done.stdout)
    return done.returncode, done.stdout


def headers_of(source: Path, seen: set[Path]) -> set[Path]:
    """The project's headers that a source includes, at any depth."""
    for name in re.findall(r'#include "([^"]+)"', source.read_text()):
        header = ROOT / "csrc" / name
        if header.exists() and header not in seen:
            seen.add(header)
            headers_of(header, seen)
    return seen


def drop_stale_objects() -> None:
    """Under a CPU-only PyTorch, its ninja file knows no headers of .cu files: objects older than one go."""
    for source in (ROOT / "csrc").glob("*/*.cu"):
        newest = max(path.stat().st_mtime for path in {source, *headers_of(source, set())})
        for item in BUILD.glob(f"temp*/csrc/{source.parent.name}/{source.stem}.o"):
            if item.stat().st_mtime < newest:
                item.unlink()


def write_stamp(stamp: Path, libraries: list[Path], began: float) -> None:
    archs = f"archs={os.environ.get('TORCH_CUDA_ARCH_LIST', '')}"
    for other in BUILD.glob("built-*"):
        if archs not in other.read_text().splitlines():
            other.unlink()  # its libraries have just been replaced by those of other architectures
    stamp.write_text("\n".join([*(str(path.relative_to(ROOT)) for path in libraries), archs, ""]))
    os.utime(stamp, (began, began))  # a file edited while the build ran is newer


def build(stamp: Path) -> int:
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ninja does not survive two builds in one folder
        began = time.time()
        drop_stale_objects()
        code, output = run_setup()
        ptxas.collect(output)
        said = [line for line in output.splitlines() if line.startswith("torch_gpuprims:")]
        print("".join(f"{line}\n" for line in said), end="")
        if code:
            lines = output.splitlines()
            errors = [line for line in lines if "error:" in line or line.startswith("FAILED")]
            print("\n".join([*lines[-40:], *(["first errors:"] if errors else []), *errors[:20]]))
            print(f"torch_gpuprims: the build failed; the whole log is {BUILD / 'build.log'}")
            return code
        libraries = [PACKAGE / name for name in (["_C.so"] if said else ["_C.so", "_C_cuda.so"])]
        names = " and ".join(path.name for path in libraries)
        print(f"torch_gpuprims: built {names} in {time.time() - began:.0f} s")
        write_stamp(stamp, libraries, began)
    return 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD / "built-auto"))
