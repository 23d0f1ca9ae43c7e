"""Small calls through every kernel of an op, for compute-sanitizer: python -m bench.sanitize topk.

The calls are in bench/<op>_sanitize.py. Inputs are made on the CPU and copied, so that nearly every kernel
the tools watch is ours, and initcheck knows which bytes were written. Results are compared with PyTorch's on
the CPU. The last line is `sanitize: done`.
"""

import importlib
import sys

import torch


def main() -> None:
    importlib.import_module(f"bench.{sys.argv[1]}_sanitize").run()
    torch.cuda.synchronize()
    print("sanitize: done")


if __name__ == "__main__":
    main()
