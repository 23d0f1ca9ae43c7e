"""python -m bench <op> [--cases GLOB] [--out FILE] [--record]; python -m bench <op> --help."""

import importlib
import sys

from bench import record


def main() -> None:
    ops = [op for op in record.ops() if (record.ROOT / "bench" / f"{op}.py").exists()]
    if len(sys.argv) < 2 or sys.argv[1] not in ops:
        raise SystemExit(f"python -m bench <op> [options]; op is one of: {', '.join(ops)}")
    importlib.import_module(f"bench.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
