"""Screens of the command line: rich where it is installed, plain text elsewhere."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

try:
    import rich.box
    import rich.console
    import rich.progress
    import rich.table

    RICH = True
except ImportError:
    RICH = False

WIDTH = 100  # of a screen that is not a terminal


def _console(stderr: bool = False) -> Any:
    console = rich.console.Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error for `total` steps; yields the function that ends one step."""
    if RICH:
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
        )
        with rich.progress.Progress(*columns, console=_console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)
        return
    done, live = 0, sys.stderr.isatty()

    def advance() -> None:
        nonlocal done
        done += 1
        if live:
            filled = 30 * done // total
            print(f"\r{label} [{'#' * filled:.<30}] {done}/{total}", end="", file=sys.stderr, flush=True)

    yield advance
    if live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def same(equal: bool | None) -> str:
    """same, DIFFER, or a dash where the question does not arise."""
    return "-" if equal is None else "same" if equal else "DIFFER"


def lines(rows: Sequence[tuple[str, str, bool | None]]) -> None:
    """Print a label and a text a line, texts aligned; True and False colour the text green and red."""
    width = max(len(label) for label, _, _ in rows)
    for label, text, ok in rows:
        if RICH:
            style = {None: "none", True: "green", False: "bold red"}[ok]
            escaped = text.replace("[", r"\[")
            _console().print(f"[bold]{label:<{width}}[/]  [{style}]{escaped}[/]", soft_wrap=True)
        else:
            print(f"{label:<{width}}  {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> None:
    """Print a table; the first `left` columns are text, the rest are aligned to the right."""
    if RICH:
        view = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(header):
            view.add_column(name, justify="left" if i < left else "right", no_wrap=i != 1)
        for row in rows:
            cells = [cell.replace("[", r"\[") for cell in row]
            view.add_row(*[f"[bold red]{cell}[/]" if cell == "DIFFER" else cell for cell in cells])
        _console().print(view)
        return
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        padded = (
            f"{c:<{w}}" if i < left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(padded))
